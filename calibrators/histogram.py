"""The mergeable statistic behind every range method but moving averages."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from calibrators.buckets import BUCKETS, NEGATIVE_ZERO, POSITIVE_ZERO, by_key, count_by_bits
from calibrators.extrema import Extrema, Float32, as_float32, chunks, finite_part, measure

Keys = npt.NDArray[np.uint16]
Counts = npt.NDArray[np.int64]


def _no_keys() -> Keys:
    return np.empty(0, np.uint16)


def _no_counts() -> Counts:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Histogram:
    """Exact extrema, and counts by logarithmic bucket.

    Where a large tensor is sampled, the extrema cover all of it, and the rest covers `counted` elements.

    Attributes:
        extrema: counts and extrema of every element.
        keys: uint16[k], ascending: the occupied buckets (see :mod:`calibrators.buckets`).
        counts: int64[k], positive.
    """

    kind: ClassVar[str] = "histogram"

    extrema: Extrema = field(default_factory=Extrema)
    keys: Keys = field(default_factory=_no_keys)
    counts: Counts = field(default_factory=_no_counts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Histogram):
            return NotImplemented
        return (
            self.extrema == other.extrema
            and np.array_equal(self.keys, other.keys)
            and np.array_equal(self.counts, other.counts)
        )

    def __hash__(self) -> int:
        return hash((self.extrema, self.keys.tobytes(), self.counts.tobytes()))

    @property
    def counted(self) -> int:
        """How many elements the buckets hold."""
        return int(self.counts.sum())

    @property
    def zeros(self) -> int:
        """How many of them are zero, or so small (below 2^-133) that no scale tells them from zero."""
        return int(self.counts[(self.keys == NEGATIVE_ZERO) | (self.keys == POSITIVE_ZERO)].sum())

    def observe(self, array: npt.ArrayLike) -> Histogram:
        """The statistic of everything seen so far and `array` (any shape, empty included)."""
        return self.merge(summarize(as_float32(array)))

    def merge(self, other: Histogram) -> Histogram:
        """The statistic of both together."""
        keys, counts = _add_counts(self, other)
        return Histogram(extrema=self.extrema.merge(other.extrema), keys=keys, counts=counts)


def summarize(values: Float32) -> Histogram:
    """The statistic of float32[n] alone."""
    whole = Histogram()
    for chunk in chunks(values):
        extrema = measure(chunk)
        finite = chunk if extrema.nonfinite == 0 else finite_part(chunk)
        whole = whole.merge(replace(count(finite), extrema=extrema))
    return whole


def count(values: Float32) -> Histogram:
    """The buckets of finite float32[*S] alone, without extrema."""
    whole = Histogram()
    for chunk in chunks(values.reshape(-1)):
        keys, counts = by_key(count_by_bits(chunk))
        whole = whole.merge(Histogram(keys=keys, counts=counts))
    return whole


def _add_counts(a: Histogram, b: Histogram) -> tuple[Keys, Counts]:
    if a.keys.size == 0 or b.keys.size == 0:
        filled = b if a.keys.size == 0 else a
        return filled.keys, filled.counts
    # Calloc'd memory costs only the pages that the occupied buckets lie on.
    dense = np.zeros(BUCKETS, np.int64)
    dense[a.keys] = a.counts
    dense[b.keys] += b.counts
    keys = np.flatnonzero(dense != 0)
    return keys.astype(np.uint16), dense[keys]
