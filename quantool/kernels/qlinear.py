"""ONNX MatMulInteger-10 and QLinearMatMul-10 and -21."""

from __future__ import annotations

import numpy as np

from quantool.kernels.dtypes import (
    BFLOAT16,
    FLOAT8,
    FLOAT16,
    FLOAT32,
    Array,
    require_dtype,
    require_profile,
)
from quantool.kernels.integer_products import (
    INT8_TYPES,
    centered,
    product_int32,
    require_int8,
    rescale_after_zero,
    rescale_before_zero,
)
from quantool.kernels.low_precision import cast_float8
from quantool.kernels.parameters import require_same_shape

SCALE_TYPES = (FLOAT32, FLOAT16, BFLOAT16)
UINT8, INT8 = INT8_TYPES
ORT_TYPES = ((UINT8, UINT8, UINT8), (UINT8, INT8, UINT8), (INT8, INT8, INT8))


def matmul_integer(
    a: Array,
    b: Array,
    a_zero_point: Array | None = None,
    b_zero_point: Array | None = None,
    *,
    profile: str = "ort",
) -> Array:
    """Multiply integer matrices: (a - a_zero_point) @ (b - b_zero_point) in int32, wrapping.

    a: uint8 or int8 [*, M, K]; b: uint8 or int8 [*, K, N], batches as numpy.matmul. a_zero_point: [] (ONNX
        Runtime)
    or also per row [*, M, 1] (reference). b_zero_point: [], [N] or [*, 1, N]. Returns int32 [*, M, N].

    Raises:
        TypeError: an operand is not of 8 bits, or a zero point not of its operand's type.
        ValueError: a shape or the profile does not fit.
    """
    require_profile(profile)
    a, b = require_int8(a, argument="a"), require_int8(b, argument="b")
    a_zero = None if a_zero_point is None else np.asarray(a_zero_point)
    b_zero = None if b_zero_point is None else np.asarray(b_zero_point)
    if profile == "ort":
        if a_zero is not None:
            _require_one_element(a_zero, argument="a_zero_point")
        if b_zero is not None:
            _require_per_column(b_zero, b, argument="b_zero_point")
    return product_int32(centered(a, a_zero, argument="a_zero_point"), centered(b, b_zero, argument="b_zero_point"))


def qlinear_matmul(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    *,
    profile: str = "ort",
) -> Array:
    """Multiply quantized matrices and quantize the product.

    a: [*, M, K]; b: [*, K, N]; uint8 or int8 (or float8, see below), batches and 1-D operands as
        numpy.matmul.
    Scales float32, float16 or bfloat16; each zero point has its scale's shape. Parameters of b: [], [N] or
    [*, 1, N]; the reference also takes [*, M, 1] for a and y. Returns [*, M, N] in y_zero_point's type.

    ONNX Runtime: clamp(rint(f32(acc) * f32(f32(sa * sb) / sy))) + zy. The reference multiplies in float64
    and adds zy before it rounds, so that ties go the other way where zy is odd. float8 operands follow the
    documented formula: dequantize, multiply in float32, cast saturating; no oracle implements them. ONNX
    Runtime's result for K = 0 is uninitialised memory; here it is zy, as in the reference.

    Raises:
        TypeError: a type, or for ONNX Runtime a combination of types, is not one of those allowed.
        ValueError: a shape or the profile does not fit.
    """
    require_profile(profile)
    operands = [np.asarray(v) for v in (a, b, y_zero_point)]
    scales = [np.asarray(v) for v in (a_scale, b_scale, y_scale)]
    zeros = [np.asarray(v) for v in (a_zero_point, b_zero_point, y_zero_point)]
    _check_types(operands, scales, zeros, profile)
    a, b, y_zero = operands
    if profile == "ort" and a.dtype not in FLOAT8:
        _require_one_element(scales[0], argument="a_scale")
        _require_per_column(scales[1], b, argument="b_scale")
        _require_one_element(scales[2], argument="y_scale")
    if a.dtype in FLOAT8:
        return _qlinear_matmul_float8(operands, scales, zeros)
    acc = product_int32(centered(a, zeros[0], argument="a_zero_point"), centered(b, zeros[1], argument="b_zero_point"))
    with np.errstate(all="ignore"):
        if profile == "ort":
            sa, sb, sy = (s.astype(FLOAT32) for s in scales)
            columns = _drop_row_axis(sa * sb / sy, b)
            return rescale_before_zero(acc.astype(FLOAT32) * columns, y_zero, y_zero.dtype)
        values = acc * _drop_row_axis(scales[0] * scales[1] / scales[2], b)
        return _same_shape(rescale_after_zero(values.astype(np.float64), y_zero, y_zero.dtype), acc)


def _drop_row_axis(multiplier: Array, b: Array) -> Array:
    """A multiplier [*, 1, N] against a product that lost its row axis because ``b`` or ``a`` has one axis."""
    return multiplier.reshape(()) if multiplier.size == 1 and b.ndim == 1 else multiplier


def _same_shape(codes: Array, acc: Array) -> Array:
    if codes.shape != acc.shape:
        raise ValueError(
            f"the parameters widen the product {list(acc.shape)} to {list(codes.shape)}; per-row parameters have "
            "shape [*, M, 1], per-column ones [*, 1, N]."
        )
    return codes


def _qlinear_matmul_float8(operands: list[Array], scales: list[Array], zeros: list[Array]) -> Array:
    real = [
        (v.astype(FLOAT32) - z.astype(FLOAT32)) * s.astype(FLOAT32)
        for v, s, z in zip(operands[:2], scales[:2], zeros[:2], strict=True)
    ]
    with np.errstate(all="ignore"):
        values = np.matmul(real[0], real[1]) / scales[2].astype(FLOAT32) + zeros[2].astype(FLOAT32)
        return cast_float8(np.asarray(values), zeros[2].dtype, saturate=True)


def _check_types(operands: list[Array], scales: list[Array], zeros: list[Array], profile: str) -> None:
    allowed = tuple(FLOAT8) if operands[0].dtype in FLOAT8 else INT8_TYPES
    for name, operand, scale, zero in zip(("a", "b", "y"), operands, scales, zeros, strict=True):
        require_dtype(operand, allowed, argument="y_zero_point" if name == "y" else name)
        require_dtype(scale, SCALE_TYPES, argument=f"{name}_scale")
        if zero.dtype != operand.dtype:
            raise TypeError(f"{name}_zero_point has dtype {zero.dtype}; it must be {operand.dtype}.")
        require_same_shape(zero, scale, argument=f"{name}_zero_point")
    types = tuple(v.dtype for v in operands)
    if profile == "ort" and allowed is INT8_TYPES and types not in ORT_TYPES:
        raise TypeError(
            f"a, b, y have dtypes {', '.join(map(str, types))}; ONNX Runtime multiplies uint8 by uint8 or int8 into "
            "uint8, and int8 by int8 into int8."
        )


def _require_one_element(parameter: Array, *, argument: str) -> None:
    if parameter.size != 1:
        raise ValueError(
            f"{argument} has shape {list(parameter.shape)}; ONNX Runtime takes one element (profile='ref' also "
            "takes one a row)."
        )


def _require_per_column(parameter: Array, b: Array, *, argument: str) -> None:
    shape = parameter.shape
    columns = b.shape[-1] if b.ndim > 1 else 1
    vector = b.ndim == 2 and shape == (columns,)
    full = b.ndim > 1 and shape in ((*b.shape[:-2], 1, columns), (1, columns))
    if parameter.size != 1 and not vector and not full:
        raise ValueError(
            f"{argument} has shape {list(shape)}; for b of shape {list(b.shape)} it must be one element or one a "
            f"column, [{columns}] or {[*b.shape[:-2], 1, columns]}."
        )
