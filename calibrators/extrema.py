"""Exact minimum, maximum and counts of a tensor: the part that every statistic holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

# 1 MiB of float32: it stays in the second-level cache while several passes read it.
CHUNK = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Extrema:
    """How many elements were seen, and the smallest and largest finite ones.

    Attributes:
        count: finite elements.
        nonfinite: NaN and infinite elements, which count nowhere else.
        minimum: smallest finite element, +inf where there is none; zero is always +0.0.
        maximum: largest finite element, -inf where there is none.
    """

    kind: ClassVar[str] = "extrema"

    count: int = 0
    nonfinite: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf

    @property
    def extrema(self) -> Extrema:
        """Itself, so that every statistic answers to this name."""
        return self

    def observe(self, array: npt.ArrayLike) -> Extrema:
        """The statistic of everything seen so far and `array` (any shape, empty included)."""
        values = as_float32(array)
        result = self
        for chunk in chunks(values):
            result = result.merge(measure(chunk))
        return result

    def merge(self, other: Extrema) -> Extrema:
        """The statistic of both together."""
        return Extrema(
            count=self.count + other.count,
            nonfinite=self.nonfinite + other.nonfinite,
            minimum=min(self.minimum, other.minimum),
            maximum=max(self.maximum, other.maximum),
        )


def as_float32(array: npt.ArrayLike) -> Float32:
    """The elements as float32[n], contiguous; a float64 that float32 cannot hold becomes infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32).reshape(-1)


def chunks(values: Float32) -> Iterator[Float32]:
    """Consecutive pieces of float32[n] that fit a processor's cache."""
    for start in range(0, values.size, CHUNK):
        yield values[start : start + CHUNK]


def measure(values: Float32) -> Extrema:
    """Extrema of float32[n]; both reductions also prove that everything is finite where it is."""
    if values.size == 0:
        return Extrema()
    with np.errstate(invalid="ignore"):
        low, high = float(values.min()), float(values.max())
    if math.isfinite(low) and math.isfinite(high):
        # Adding +0.0 turns -0.0 into 0.0: which of them a reduction finds depends on the order.
        return Extrema(count=values.size, minimum=low + 0.0, maximum=high + 0.0)
    finite = finite_part(values)
    kept = measure(finite)
    return kept.merge(Extrema(nonfinite=values.size - finite.size))


def finite_part(values: Float32) -> Float32:
    """The finite elements of float32[n], in order."""
    return values[np.isfinite(values)]
