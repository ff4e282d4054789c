"""Cast to the float types of 8, 6 and 4 bits as ONNX Cast-19 to -25 do."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from quantool.kernels.dtypes import (
    BFLOAT16,
    FLOAT8,
    FLOAT8_E8M0,
    FLOAT16,
    FLOAT32,
    SMALL_FLOAT,
    Array,
    DTypeName,
    dtype_of,
    listed,
    require_dtype,
    require_profile,
)

_TARGETS = (*sorted(FLOAT8, key=str), FLOAT8_E8M0, *sorted(SMALL_FLOAT, key=str))
_LARGEST_E8M0_EXPONENT = 0xFE


def cast_lowp(
    x: Array, *, to: DTypeName, saturate: bool = True, round_mode: str | None = None, profile: str = "ort"
) -> Array:
    """Cast x to a float type below 16 bits.

    x: float32, float16 or bfloat16 [*S]. Returns S in ``to``. float8: ties to even, clipped to the largest
        finite
    value if ``saturate``, else with the type's own overflow. float8_e8m0fnu: the exponent, rounded by
    ``round_mode``; NaN and Inf become its NaN. float6, float4: ties to even, always saturating. Both
    profiles give the reference's values: ONNX Runtime without saturation differs at the overflow boundary,
    which looks like a defect. Source: ONNX Cast-24.

    Args:
        x: the values.
        to: the target type.
        saturate: clip instead of overflowing; for float8_e8m0fnu, do not round past the largest exponent.
        round_mode: "up" (default), "down" or "nearest"; float8_e8m0fnu only.
        profile: "ort" or "ref".

    Raises:
        TypeError: x or ``to`` has another type.
        ValueError: round_mode or profile is unknown, or round_mode is given for another type.
    """
    require_profile(profile)
    x = np.asarray(x)
    require_dtype(x, (FLOAT32, FLOAT16, BFLOAT16), argument="x")
    dtype = dtype_of(to, argument="to")
    if dtype not in _TARGETS:
        raise TypeError(f"to is {dtype}; allowed: {listed(_TARGETS)}.")
    if dtype == FLOAT8_E8M0:
        return _cast_e8m0(x, saturate=saturate, round_mode=round_mode or "up")
    if round_mode is not None:
        raise ValueError(f"round_mode is {round_mode!r}; it applies to float8_e8m0fnu only, not to {dtype}.")
    with np.errstate(all="ignore"):
        return cast_float8(x, dtype, saturate=saturate) if dtype in FLOAT8 else x.astype(dtype)


def cast_float8(values: Array, dtype: np.dtype[Any], *, saturate: bool) -> Array:
    """Round to float8, ties to even, after clipping to the largest finite value if ``saturate``.

    Both oracles send Inf to the largest value too, for the FNUZ types as well, where the published table
    says NaN.
    """
    if saturate:
        info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # ml_dtypes carries no annotations
        bound = values.dtype.type(float(info.max))
        values = np.clip(values, -bound, bound)
    return values.astype(dtype)


def _cast_e8m0(x: Array, *, saturate: bool, round_mode: str) -> Array:
    """The biased exponent of float32(x); the sign is dropped, as the reference does."""
    bits = x.astype(FLOAT32).view(np.uint32)
    exponent = (bits >> np.uint32(23)) & np.uint32(0xFF)
    fraction = bits & np.uint32(0x7FFFFF)
    half = np.uint32(0x400000)
    match round_mode:
        case "up":
            carry = fraction > 0
        case "down":
            carry = np.zeros(x.shape, np.bool_)
        case "nearest":
            # A tie goes up, but not from the subnormals, whose exponent field is 0.
            carry = (fraction > half) | ((fraction == half) & (exponent > 0))
        case _:
            raise ValueError(f"round_mode is {round_mode!r}; allowed: 'up', 'down', 'nearest'.")
    if saturate:
        carry &= exponent != _LARGEST_E8M0_EXPONENT
    carry &= exponent != 0xFF
    return (exponent + carry).astype(np.uint8).view(FLOAT8_E8M0)
