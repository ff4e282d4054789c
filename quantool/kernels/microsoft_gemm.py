"""com.microsoft QGemm, MatMulIntegerToFloat and DynamicQuantizeMatMul."""

from __future__ import annotations

import numpy as np

from quantool.kernels.dtypes import FLOAT32, INT32, Array, require_dtype
from quantool.kernels.integer_products import (
    centered,
    product_int32,
    require_int8,
    rescale_before_zero,
    wrap_int32,
)
from quantool.kernels.onnx_linear import dynamic_quantize_linear


def qgemm(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    c: Array | None = None,
    y_scale: Array | None = None,
    y_zero_point: Array | None = None,
    *,
    transA: int = 0,
    transB: int = 0,
    alpha: float = 1.0,
) -> Array:
    """Gemm of quantized matrices with an int32 bias; there is no beta.

    a: [M, K], b: [K, N] after transposing; c: int32 that broadcasts to [M, N], with scale alpha * sa * sb.
        b's
    parameters: [] or [N]. With y_scale: codes, rescaled as :func:`qlinear_matmul` with
    m = f32(f32(f32(alpha * sa) * sb) / sy). Without: float32, acc * f32(f32(alpha * sa) * sb).

    Raises:
        TypeError: a type is not one of those allowed.
        ValueError: a shape does not fit, or only one of y_scale and y_zero_point is given.
    """
    a, b = require_int8(a, argument="a"), require_int8(b, argument="b")
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError(f"a has shape {list(a.shape)} and b {list(b.shape)}; both must be matrices.")
    if (y_scale is None) != (y_zero_point is None):
        raise ValueError("y_scale and y_zero_point must be given together or not at all.")
    a, b = (a.T if transA else a), (b.T if transB else b)
    sa = _scale(a_scale, 1, argument="a_scale")
    sb = _scale(b_scale, b.shape[1], argument="b_scale")
    acc = product_int32(
        centered(a, np.asarray(a_zero_point), argument="a_zero_point"),
        centered(b, np.asarray(b_zero_point), argument="b_zero_point"),
    )
    if c is not None:
        bias = np.asarray(c)
        require_dtype(bias, (INT32,), argument="c")
        acc = wrap_int32(acc.astype(np.int64) + _broadcast(bias, acc.shape))
    with np.errstate(all="ignore"):
        multiplier = np.float32(alpha) * sa * sb
        if y_scale is None or y_zero_point is None:
            result: Array = acc.astype(FLOAT32) * multiplier
            return result
        y_zero = require_int8(y_zero_point, argument="y_zero_point")
        sy = _scale(y_scale, 1, argument="y_scale")
        return rescale_before_zero(acc.astype(FLOAT32) * (multiplier / sy), y_zero, y_zero.dtype)


def matmul_integer_to_float(
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero_point: Array | None = None,
    b_zero_point: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Multiply quantized matrices into float32: f32(acc) * f32(sa * sb) + bias.

    a: [*, M, K]; b: [*, K, N]; uint8 or int8. Parameters of b: [] or [N]; bias: float32 [N]. ONNX Runtime
        may fuse
    the last addition, so its result can differ by two units in the last place.

    Raises:
        TypeError: a type is not one of those allowed.
        ValueError: a shape does not fit.
    """
    a, b = require_int8(a, argument="a"), require_int8(b, argument="b")
    columns = b.shape[-1]
    acc = product_int32(
        centered(a, _optional(a_zero_point), argument="a_zero_point"),
        centered(b, _optional(b_zero_point), argument="b_zero_point"),
    )
    scales = _scale(a_scale, 1, argument="a_scale") * _scale(b_scale, columns, argument="b_scale")
    values: Array = acc.astype(FLOAT32) * scales
    return values if bias is None else values + _scale(bias, columns, argument="bias")


def dynamic_quantize_matmul(
    a: Array, b: Array, b_scale: Array, b_zero_point: Array | None = None, bias: Array | None = None
) -> Array:
    """Quantize float32 a to uint8 by its own range, then :func:`matmul_integer_to_float`.

    Raises:
        TypeError: a type is not one of those allowed.
        ValueError: a shape does not fit.
    """
    codes, scale, zero_point = dynamic_quantize_linear(a)
    return matmul_integer_to_float(codes, b, scale, b_scale, zero_point, b_zero_point, bias)


def _optional(value: Array | None) -> Array | None:
    return None if value is None else np.asarray(value)


def _scale(value: Array, columns: int, *, argument: str) -> Array:
    value = np.asarray(value)
    require_dtype(value, (FLOAT32,), argument=argument)
    if value.size != 1 and value.shape != (columns,):
        wanted = "one element" if columns == 1 else f"[] or [{columns}]"
        raise ValueError(f"{argument} has shape {list(value.shape)}; it must be {wanted}.")
    return value.reshape(-1)


def _broadcast(bias: Array, shape: tuple[int, ...]) -> Array:
    try:
        return np.broadcast_to(bias, shape)
    except ValueError as error:
        raise ValueError(f"c has shape {list(bias.shape)}, which does not broadcast to {list(shape)}.") from error
