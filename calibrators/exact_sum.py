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
_PIECE_BITS = 16
# Heads are multiples of 2^(e-36) below 2^e; 2^16 of them stay below 2^52 units, so float64 adds them exactly.
_HEAD_BITS = 36
# Squares of anything larger could exceed float32.
_LARGEST_ROOT = 2.0**63
_SCALE_DOWN = 2.0**-64


def exact_sum(values: npt.NDArray[np.float32]) -> int:
    """The sum of finite float32[n], in units of 2^-149, exactly."""
    total = 0
    for start in range(0, values.size, 1 << _PIECE_BITS):
        rest = values[start : start + (1 << _PIECE_BITS)].astype(np.float64)
        while rest.size and (peak := max(float(rest.max()), -float(rest.min()))) > 0.0:
            exponent = math.frexp(peak)[1]
            magic = math.ldexp(1.5, exponent - _HEAD_BITS + 52)
            head = (rest + magic) - magic
            total += int(math.ldexp(float(head.sum()), UNIT_BITS))
            np.subtract(rest, head, out=rest)
            rest = rest[rest != 0.0]
    return total


def exact_sum_of_squares(values: npt.NDArray[np.float32]) -> int:
    """The sum of x * x, each square rounded to float32's precision, in units of 2^-149, exactly.

    values: finite float32[n]. Squares below 2^-149 round to a multiple of it. Squares beyond float32's largest
    number are rounded to 24 bits all the same.
    """
    large = np.abs(values) >= _LARGEST_ROOT
    if not large.any():
        return exact_sum(np.square(values))
    # Scaling by a power of two is exact and these squares are normal, so the rounding is the same.
    scaled = values[large] * np.float32(_SCALE_DOWN)
    return exact_sum(np.square(values[~large])) + (exact_sum(np.square(scaled)) << 128)


def to_float(total: int) -> float:
    """A sum as the nearest float64."""
    return total / (1 << UNIT_BITS)
