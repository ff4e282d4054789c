"""The rounding rules of the oracles, each in one place."""

from __future__ import annotations

import numpy as np

from quantool.kernels.dtypes import Array

INT32_MIN = -(2**31)


def round_half_even(values: Array) -> Array:
    """Round to the nearest integer, ties to even: ONNX QuantizeLinear and TensorFlow's HALF_TO_EVEN."""
    result: Array = np.rint(values)
    return result


def round_half_away(values: Array) -> Array:
    """Round to the nearest integer, ties away from zero: C ``round()``, TensorFlow's HALF_AWAY_FROM_ZERO.

    The fraction is compared with one half instead of adding 0.5, which would carry 0.49999997 over to 1.
    """
    whole = np.trunc(values)
    half = values.dtype.type(0.5)
    step = np.where(np.abs(values - whole) >= half, np.copysign(values.dtype.type(1), values), 0)
    result: Array = np.where(np.isfinite(values), whole + step.astype(values.dtype), values)
    return result


def round_half_up(values: Array) -> Array:
    """floor(v + 0.5), TensorFlow's HALF_UP, the sum rounded to the values' type."""
    result: Array = np.floor(values + values.dtype.type(0.5))
    return result


def to_int32_x86(values: Array) -> Array:
    """Convert integral floats to int32 as x86 does: NaN and everything outside the range become INT_MIN.

    NumPy inherits this from the processor; here it is written out, so that other processors agree.
    """
    wide = values.astype(np.float64)
    inside = (wide >= INT32_MIN) & (wide < 2**31)
    return np.where(inside, wide, INT32_MIN).astype(np.int32)
