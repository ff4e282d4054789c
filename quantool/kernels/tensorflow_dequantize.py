"""TensorFlow Dequantize as its CPU kernel computes without oneDNN."""

from __future__ import annotations

import numpy as np

from quantool.kernels.dtypes import BFLOAT16, FLOAT32, Array, DTypeName, dtype_of, listed, require_dtype
from quantool.kernels.rounding import round_half_away
from quantool.kernels.tensorflow_types import (
    MODES,
    QuantizedType,
    along_axis,
    quantized_type,
    range_bounds,
    require_choice,
)


def tf_dequantize(
    input: Array,  # TensorFlow calls it so, and the contract follows TensorFlow
    min_range: Array,
    max_range: Array,
    *,
    T: str,
    mode: str = "MIN_COMBINED",
    narrow_range: bool = False,
    axis: int = -1,
    dtype: DTypeName = "float32",
) -> Array:
    """Dequantize codes by the real range that they were spread over, in one of TensorFlow's three modes.

    input: codes of T [*S]. min_range, max_range: one element, or [S[axis]]. Returns S in ``dtype``. The
        range is
    taken as given: not widened, and max may lie below min. All float32; bfloat16 is rounded from it at the
    end. Source: tensorflow/core/kernels/dequantize_op.cc.

    Args:
        input: the codes.
        min_range: lower bound of the range.
        max_range: upper bound of the range.
        T: quint8, qint8, quint16, qint16 or qint32.
        mode: MIN_COMBINED, MIN_FIRST (no axis) or SCALED.
        narrow_range: SCALED only: the smallest code is left out.
        axis: axis of a range for each slice, -1 for none.
        dtype: float32, or with MIN_COMBINED bfloat16.

    Raises:
        TypeError: a type is not one of those allowed.
        ValueError: an option or a shape does not fit.
    """
    codes, kind = np.asarray(input), quantized_type(T)
    require_dtype(codes, (kind.dtype,), argument="input")
    require_choice(mode, MODES, argument="mode")
    output = dtype_of(dtype, argument="dtype")
    if output not in (FLOAT32, BFLOAT16):
        raise TypeError(f"dtype is {output}; allowed: {listed((FLOAT32, BFLOAT16))}.")
    if output == BFLOAT16 and mode != "MIN_COMBINED":
        raise ValueError(f"dtype is bfloat16; mode {mode} gives float32 only.")
    if axis < -1:
        raise ValueError(f"axis is {axis}; it must be -1 (none) or an axis.")
    if axis != -1 and mode == "MIN_FIRST":
        raise ValueError(f"axis is {axis}; mode MIN_FIRST takes no axis (-1), as in TensorFlow.")
    bounds = range_bounds(min_range, max_range, shape=codes.shape, axis=axis, names=("min_range", "max_range"))
    low, high = (along_axis(v, rank=codes.ndim, axis=axis) for v in bounds)
    x = codes.astype(FLOAT32)
    with np.errstate(all="ignore"):
        if mode == "MIN_COMBINED":
            real = _min_combined(x, low, high, kind)
        elif mode == "MIN_FIRST":
            real = _min_first(x, low, high, kind)
        else:
            real = x * _scaled_step(low, high, kind, narrow_range)
        return np.asarray(real).astype(output, copy=False)


def _min_combined(x: Array, low: Array, high: Array, kind: QuantizedType) -> Array:
    step = (high - low) / np.float32(kind.highest - kind.lowest)
    result: Array = (x + np.float32(-kind.lowest)) * step + low
    return result


def _min_first(x: Array, low: Array, high: Array, kind: QuantizedType) -> Array:
    step = np.asarray((high - low) / np.float32((1 << kind.bits) - 1))
    rounded = round_half_away(np.asarray(low / step)) * step
    base = np.where(high == low, low, rounded)
    result: Array = (base - np.float32(kind.lowest) * step) + x * step
    return result


def _scaled_step(low: Array, high: Array, kind: QuantizedType, narrow_range: bool) -> Array:
    by_high: Array = high / np.float32(kind.highest)
    if not kind.signed:
        return by_high
    return np.maximum(low / np.float32(kind.lowest + narrow_range), by_high)
