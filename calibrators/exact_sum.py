"""Sums of float32 that depend on neither order nor grouping, to the last bit.

Every float32 is a multiple of 2^-149, so that a sum is an integer in that unit and integers add exactly. The
extraction of leading bits by adding and subtracting a large constant is that of Rump, Ogita and Oishi,
Accurate Floating-Point Summation Part I, SIAM J. Sci. Comput. 31(1), 2008, section 3 (ExtractVector).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

# Every float32, subnormal ones included, is an integer multiple of 2^-UNIT_BITS.
UNIT_BITS = 149
# 256 KiB of float64: larger pieces made the allocator return its memory and fault it in again, six times slower.
_PIECE = 1 << 15
# Heads are multiples of 2^(e-37), at most 2^e; 2^15 of them sum to at most 2^52 units, which float64 adds exactly.
_HEAD_BITS = 37


def exact_sum(values: npt.NDArray[np.float32]) -> int:
    """The sum of finite float32[n], in units of 2^-149, exactly."""
    total = 0
    head = np.empty(min(values.size, _PIECE))
    for start in range(0, values.size, _PIECE):
        rest = values[start : start + _PIECE].astype(np.float64)
        while rest.size and (peak := max(float(rest.max()), -float(rest.min()))) > 0.0:
            magic = math.ldexp(1.5, math.frexp(peak)[1] - _HEAD_BITS + 52)
            leading = np.add(rest, magic, out=head[: rest.size])
            np.subtract(leading, magic, out=leading)
            total += int(math.ldexp(float(leading.sum()), UNIT_BITS))
            np.subtract(rest, leading, out=rest)
            # Few have more bits than the head: those 13 octaves below the largest.
            rest = rest[rest != 0.0]
    return total


def to_float(total: int) -> float:
    """A sum as the nearest float64."""
    return total / (1 << UNIT_BITS)
