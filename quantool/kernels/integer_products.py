"""The int32 accumulators of the integer operators, and how they are rescaled to codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from quantool.kernels.dtypes import INTEGER_GRIDS, Array, require_dtype

INT8_TYPES = (np.dtype(np.uint8), np.dtype(np.int8))


def require_int8(array: Array, *, argument: str) -> Array:
    """The argument as an array of uint8 or int8, else TypeError."""
    array = np.asarray(array)
    require_dtype(array, INT8_TYPES, argument=argument)
    return array


def wrap_int32(values: Array) -> Array:
    """Integers modulo 2**32 as int32: what a 32-bit accumulator holds."""
    return values.astype(np.int64).astype(np.int32)


def centered(x: Array, zero_point: Array | None, *, argument: str) -> Array:
    """Subtract the zero point: float64 that holds the exact difference, of x's shape.

    Raises:
        TypeError: the zero point's type is not x's.
        ValueError: its shape does not broadcast to x's.
    """
    wide = x.astype(np.float64)
    if zero_point is None:
        return wide
    if zero_point.dtype != x.dtype:
        raise TypeError(f"{argument} has dtype {zero_point.dtype}; it must be {x.dtype}.")
    try:
        np.broadcast_to(zero_point, x.shape)
    except ValueError as error:
        raise ValueError(
            f"{argument} has shape {list(zero_point.shape)}, which does not broadcast to {list(x.shape)}."
        ) from error
    return wide - zero_point.astype(np.float64)


def product_int32(a: Array, b: Array) -> Array:
    """Matmul of two centered operands as int32, wrapping.

    In float64, which is exact (each product is below 2**17) and runs through BLAS, unlike NumPy's integer
    matmul.

    Raises:
        ValueError: the shapes do not multiply.
    """
    try:
        return wrap_int32(np.matmul(a, b))
    except ValueError as error:
        raise ValueError(
            f"a has shape {list(a.shape)} and b {list(b.shape)}; they must multiply as numpy.matmul does."
        ) from error


def rescale_before_zero(values: Array, zero_point: Array, dtype: np.dtype[Any]) -> Array:
    """ONNX Runtime's requantization: clamp to [qmin - zp, qmax - zp], round half to even, add zp.

    values: float32 in units of codes. Returns codes in ``dtype``; NaN becomes qmin.
    """
    grid = INTEGER_GRIDS[dtype]
    zero = zero_point.astype(np.float64)
    codes = np.rint(values.astype(np.float64)) + zero
    return np.clip(np.where(np.isnan(codes), grid.qmin, codes), grid.qmin, grid.qmax).astype(dtype)


def rescale_after_zero(values: Array, zero_point: Array, dtype: np.dtype[Any]) -> Array:
    """Add zp, then round half to even, then clip: an odd zero point turns the ties the other way."""
    grid = INTEGER_GRIDS[dtype]
    codes = np.rint(values + zero_point.astype(values.dtype))
    return np.clip(np.where(np.isnan(codes), grid.qmin, codes), grid.qmin, grid.qmax).astype(dtype)
