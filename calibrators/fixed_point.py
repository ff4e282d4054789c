"""Sums of arrays that depend on neither order nor grouping of the samples, because integers add exactly.

A sample's values are rounded to a grid of their own: multiples of 2^(E - bits), where 2^E is the least power of two
with an exponent divisible by four that no magnitude of the sample exceeds. Sums on one grid are integers, and the grids
stay apart, so that a total is a few integer arrays, one for each exponent that occurred.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from quantool.errors import QuantoolError

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

#: exponents of grids are multiples of this: few grids, and at most this many bits of a sample lost
EXPONENT_STEP = 4
#: two sums up to this can be added
_LARGEST = 1 << 62


def grid_exponent(peak: float) -> int:
    """E of the grid for a sample whose largest magnitude is `peak`, positive and finite."""
    return -(-math.frexp(peak)[1] // EXPONENT_STEP) * EXPONENT_STEP


def on_grid(values: npt.NDArray[np.floating], exponent: int, *, bits: int) -> Float64:
    """Values as integers on the grid, ties to even: float64, at most 2^bits in magnitude."""
    # Exact: no exponent of a float32 leaves float64's range so.
    return np.rint(values * np.float64(math.ldexp(1.0, bits - exponent)))


@dataclass(frozen=True, slots=True, eq=False)
class GridSums:
    """Sums of equally shaped integer arrays by the exponent of their grid.

    Attributes:
        parts: exponent E -> int64[*S], in units of 2^(E - bits) to a power that the owner knows.
    """

    parts: Mapping[int, Int64] = field(default_factory=lambda: MappingProxyType({}))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GridSums):
            return NotImplemented
        same_grids = self.parts.keys() == other.parts.keys()
        return same_grids and all(np.array_equal(part, other.parts[e]) for e, part in self.parts.items())

    def __hash__(self) -> int:
        return hash(tuple((e, part.tobytes()) for e, part in self))

    def __iter__(self) -> Iterator[tuple[int, Int64]]:
        """The parts in the order of their exponents."""
        return iter(sorted(self.parts.items()))

    def merge(self, other: GridSums) -> GridSums:
        """Both sums together.

        Raises:
            QuantoolError: 64 bits do not hold them.
        """
        parts = dict(self.parts)
        for exponent, part in other.parts.items():
            held = parts.get(exponent)
            parts[exponent] = part if held is None else _added(held, part)
        return GridSums(parts)

    def total(self, *, bits: int, power: int = 1) -> Float64:
        """The sum as float64[*S]: of values on grids of so many bits, or of products of `power` of them."""
        parts = [np.ldexp(part.astype(np.float64), power * (e - bits)) for e, part in self]
        return np.sum(parts, axis=0) if parts else np.zeros(())


def _added(a: Int64, b: Int64) -> Int64:
    sums = a + b
    # Both below 2^62 cannot wrap around, and a wrapped sum is caught before the next one.
    if sums.size and max(int(sums.max()), -int(sums.min())) > _LARGEST:
        raise QuantoolError(
            "sums-full",
            "a sum over the samples no longer fits 64 bits",
            where="statistics",
            fix="Calibrate on fewer samples.",
        )
    return sums
