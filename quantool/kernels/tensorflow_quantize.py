"""TensorFlow QuantizeV2 as its CPU kernel computes without oneDNN."""

from __future__ import annotations

import numpy as np

from quantool.kernels.dtypes import FLOAT32, Array, require_dtype
from quantool.kernels.rounding import round_half_away, round_half_even, to_int32_x86
from quantool.kernels.tensorflow_types import (
    MODES,
    QuantizedType,
    along_axis,
    quantized_type,
    range_bounds,
    require_choice,
)

ROUND_MODES = ("HALF_AWAY_FROM_ZERO", "HALF_TO_EVEN")
FLOAT_MAX = np.float32(np.finfo(np.float32).max)
# The largest float32 below 2**31: MIN_FIRST clamps qint32 there.
LARGEST_INT32_FLOAT = 2147483520.0


def tf_quantize_v2(
    input: Array,  # TensorFlow calls it so, and the contract follows TensorFlow
    min_range: Array,
    max_range: Array,
    *,
    T: str,
    mode: str = "MIN_COMBINED",
    round_mode: str = "HALF_AWAY_FROM_ZERO",
    narrow_range: bool = False,
    axis: int = -1,
    ensure_minimum_range: float = 0.01,
) -> tuple[Array, Array, Array]:
    """Quantize float32 input by a real range, in one of TensorFlow's three modes.

    input: float32 [*S]. min_range, max_range: one element, or [S[axis]]. The range is widened to include zero and
    to ``ensure_minimum_range * max(1, abs(min), abs(max))``. Returns codes S and the range used, [] or [S[axis]].

    MIN_COMBINED: round((clamp(x) - lo) * f) + qmin. MIN_FIRST: round(x * f) - (round(lo * f) - qmin). SCALED:
    round(clamp(x) * f) with f = min(qmin / lo, qmax / hi) over the bounds of equal sign; its range comes back
    nudged. All float32. Source: tensorflow/core/kernels/quantize_op.cc. NaN and a range of width 0 with
    ensure_minimum_range 0 are undefined there.

    Args:
        input: the values.
        min_range: lower bound of the range.
        max_range: upper bound of the range.
        T: quint8, qint8, quint16, qint16 or qint32.
        mode: MIN_COMBINED, MIN_FIRST or SCALED.
        round_mode: HALF_AWAY_FROM_ZERO, or for SCALED also HALF_TO_EVEN.
        narrow_range: SCALED only (ignored otherwise): leave the smallest code out.
        axis: axis of a range for each slice; any negative value means none.
        ensure_minimum_range: least width of the range.

    Raises:
        TypeError: a type is not one of those allowed.
        ValueError: an option, the range or a shape does not fit.
    """
    values = np.asarray(input)
    require_dtype(values, (FLOAT32,), argument="input")
    kind = quantized_type(T)
    require_choice(mode, MODES, argument="mode")
    require_choice(round_mode, ROUND_MODES, argument="round_mode")
    if round_mode == "HALF_TO_EVEN" and mode != "SCALED":
        raise ValueError(f"round_mode is HALF_TO_EVEN; mode {mode} allows HALF_AWAY_FROM_ZERO only.")
    low, high = range_bounds(min_range, max_range, shape=values.shape, axis=axis, names=("min_range", "max_range"))
    if low.ndim and mode == "MIN_FIRST":
        raise ValueError(f"axis is {axis}; mode MIN_FIRST takes no axis (-1), as in TensorFlow.")
    if np.any(high < low):
        raise ValueError(f"min_range is {low.tolist()} and max_range {high.tolist()}; max must not be below min.")
    with np.errstate(all="ignore"):
        low, high = _widened(low, high, np.float32(ensure_minimum_range))
        if mode == "SCALED":
            factor, low, high = _scaled_range(low, high, kind, narrow_range)
            bounds = (along_axis(v, rank=values.ndim, axis=axis) for v in (factor, low, high))
            codes = _scaled(values, *bounds, half_even=round_mode == "HALF_TO_EVEN")
        elif mode == "MIN_FIRST":
            codes = _min_first(values, low, high, kind)
        else:
            lows, highs = (along_axis(v, rank=values.ndim, axis=axis) for v in (low, high))
            codes = _min_combined(values, lows, highs, kind)
        return _to_codes(codes, kind), np.asarray(low), np.asarray(high)


def _widened(low: Array, high: Array, minimum: np.float32) -> tuple[Array, Array]:
    zero = np.zeros((), FLOAT32)
    lo = np.where(low < 0, low, zero)
    epsilon = _cpp_max(np.ones((), FLOAT32), _cpp_max(np.abs(low), np.abs(high))) * minimum
    return lo, _cpp_max(zero, _cpp_max(high, lo + epsilon))


def _cpp_max(a: Array, b: Array) -> Array:
    """Maximum as std::max picks it, a where b is NaN: it decides what a NaN bound gives."""
    return np.where(a < b, b, a)


def _clamped(x: Array, low: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


def _min_combined(x: Array, low: Array, high: Array, kind: QuantizedType) -> Array:
    width = np.asarray(high - low).astype(np.float64)
    factor = ((kind.highest - kind.lowest) / width).astype(FLOAT32)
    steps = (_clamped(x, low, high) - low) * factor
    if kind.signed:
        return round_half_away(np.asarray(steps - np.float32(-kind.lowest)))
    # Adding 0.5 makes 0.49999997 become 1: the kernel does so.
    result: Array = np.trunc(steps + np.float32(0.5))
    return result


def _min_first(x: Array, low: Array, high: Array, kind: QuantizedType) -> Array:
    width = np.asarray(high - low).astype(np.float64)
    factor = np.where(width == 0, 0.0, ((1 << kind.bits) - 1) / width).astype(FLOAT32)
    offset = round_half_away(np.asarray(low * factor)) - np.float32(kind.lowest)
    highest = LARGEST_INT32_FLOAT if kind.bits == 32 else kind.highest
    codes = round_half_away(np.asarray(x * factor)) - offset
    return _clamped(codes, np.asarray(kind.lowest, FLOAT32), np.asarray(highest, FLOAT32))


def _scaled_range(low: Array, high: Array, kind: QuantizedType, narrow_range: bool) -> tuple[Array, Array, Array]:
    """The factor and the nudged range: the bound that limits the factor keeps its place, the other moves."""
    lowest, highest = np.float32(kind.lowest + narrow_range), np.float32(kind.highest)
    by_low = np.where(lowest * low > 0, lowest / low, FLOAT_MAX)
    by_high = np.where(highest * high > 0, highest / high, FLOAT_MAX)
    factor = np.minimum(by_low, by_high)
    return factor, lowest / factor, highest / factor


def _scaled(x: Array, factor: Array, low: Array, high: Array, *, half_even: bool) -> Array:
    steps = np.asarray(_clamped(x, low, high) * factor)
    return round_half_even(steps) if half_even else round_half_away(steps)


def _to_codes(values: Array, kind: QuantizedType) -> Array:
    """Convert integral float32 to codes; 2**31, which qint32 cannot hold, becomes INT_MIN as on x86."""
    return to_int32_x86(values).astype(kind.dtype)
