"""ONNX QuantizeLinear and DynamicQuantizeLinear, opsets 10 to 28."""

from __future__ import annotations

from typing import Any

import numpy as np

from quantool.kernels.dtypes import (
    BFLOAT16,
    FLOAT8_E8M0,
    FLOAT16,
    FLOAT32,
    INT32,
    INTEGER_GRIDS,
    QUANTIZED,
    Array,
    DTypeName,
    dtype_of,
    listed,
    output_array,
    require_dtype,
    require_profile,
)
from quantool.kernels.flat_reader import flat_view
from quantool.kernels.granularity import per_tensor_layout
from quantool.kernels.integer_quantize import IntegerJob, divisions_of, quantize_by_table, quantize_integer
from quantool.kernels.parameters import Parameters, resolve_parameters
from quantool.kernels.quantize_rules import QuantizeRule, choose_rule, quantize_by_rule, supported_divisions

X_TYPES = (FLOAT32, FLOAT16, BFLOAT16, INT32)
SCALE_TYPES = (FLOAT32, FLOAT16, BFLOAT16, INT32, FLOAT8_E8M0)
FIRST_OPSET, LAST_OPSET = 10, 28

# A float16 tensor several times larger than the type itself is read through a table of all 65,536 values.
HALF_PATTERNS = 1 << 16
TABLE_FACTOR = 4


def quantize_linear(
    x: Array,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: DTypeName | None = None,
    saturate: bool = True,
    precision: DTypeName | None = None,
    opset: int = 23,
    profile: str = "ort",
    threads: int = 1,
    out: Array | None = None,
) -> Array:
    """Quantize x to saturate(round_half_even(x / y_scale) + y_zero_point), exactly as an oracle does.

    x: float32, float16, bfloat16 or int32 [*S]. y_scale: [] per tensor, [S[axis]] per axis, or S with S[axis]
    divided by block_size, rounded up. y_zero_point: of the scale's shape. Returns S in the zero point's
    type, else in ``output_dtype``, else in uint8. NaN becomes qmin and Inf saturates (``profile="ref"``:
    both qmin).

    Memory: the output and, a thread, a few slabs of 192 Ki elements. Source: ONNX QuantizeLinear-10 to -25; where
    onnx and ONNX Runtime differ, ``profile`` says which of them is followed.

    Args:
        x: the values.
        y_scale: the scale; float32, float16, bfloat16, int32 or float8_e8m0fnu.
        y_zero_point: the zero point; its type decides the output's. Ignored in value by float8 outputs.
        axis: the quantized axis, unless the scale is one element.
        block_size: entries of the axis that share a scale; 0 for none.
        output_dtype: type of the codes where there is no zero point.
        saturate: float8 only: clip to the largest finite value instead of overflowing.
        precision: type of the division, one of float32, float16, bfloat16.
        opset: version of the operator; from 23 on the division is rounded to the scale's type.
        profile: "ort" (ONNX Runtime, CPU) or "ref" (onnx reference evaluator).
        threads: threads over the slabs of one tensor.
        out: where the result goes instead of a new array: C-contiguous, of x's shape and the result's type. Memory
            that was in use before spares the page faults of a new array, a sixth of the time of a large tensor.

    Raises:
        TypeError: a dtype is not one of those allowed.
        ValueError: shapes, axis, block_size, precision, opset, profile or out do not fit.
    """
    require_profile(profile)
    if not FIRST_OPSET <= opset <= LAST_OPSET:
        raise ValueError(f"opset is {opset}; QuantizeLinear is defined from {FIRST_OPSET} to {LAST_OPSET}.")
    x, y_scale = np.asarray(x), np.asarray(y_scale)
    require_dtype(x, X_TYPES, argument="x")
    require_dtype(y_scale, SCALE_TYPES, argument="y_scale")
    zero_point = None if y_zero_point is None else np.asarray(y_zero_point)
    dtype = _output_dtype(zero_point, output_dtype)
    parameters = resolve_parameters(
        x.shape,
        y_scale,
        zero_point,
        axis=axis,
        block_size=block_size,
        profile=profile,
        zero_point_name="y_zero_point",
    )
    rule = choose_rule(
        x=x.dtype,
        scale=y_scale.dtype,
        dtype=dtype,
        precision=_precision(precision),
        opset=opset,
        saturate=saturate,
        profile=profile,
    )
    inputs = (x, y_scale) if zero_point is None else (x, y_scale, zero_point)
    y = output_array(out, x.shape, dtype, inputs=inputs)
    _fill(x, y, parameters, rule=rule, threads=threads)
    return y


def _fill(x: Array, y: Array, parameters: Parameters, *, rule: QuantizeRule, threads: int) -> None:
    grid, flat, codes = INTEGER_GRIDS.get(rule.dtype), flat_view(x), y.reshape(-1)
    if grid is None or rule.wraps or rule.division not in divisions_of(x.dtype):
        quantize_by_rule(flat, codes, parameters=parameters, rule=rule, threads=threads)
        return
    if x.dtype == FLOAT16 and parameters.scale.size == 1 and x.size >= TABLE_FACTOR * HALF_PATTERNS:
        table = _half_table(parameters, rule)
        quantize_by_table(flat, codes.view(grid.carrier), table=table.view(grid.carrier), threads=threads)
        return
    zero_point = parameters.zero_point
    if zero_point is not None and not zero_point.any():
        zero_point = None
    job = IntegerJob(
        x=flat,
        codes=codes.view(grid.carrier),
        scale=parameters.scale.astype(rule.division, copy=False).astype(FLOAT32, copy=False),
        zero_point=None if zero_point is None else zero_point.astype(FLOAT32),
        layout=parameters.layout,
        grid=grid,
        half_quotient=rule.division == FLOAT16,
    )
    quantize_integer(job, threads=threads)


def _half_table(parameters: Parameters, rule: QuantizeRule) -> Array:
    """The code of every float16 bit pattern under one scale."""
    patterns = np.arange(HALF_PATTERNS, dtype=np.uint16).view(FLOAT16)
    table = np.empty(HALF_PATTERNS, rule.dtype)
    one_scale = Parameters(per_tensor_layout(HALF_PATTERNS), parameters.scale, parameters.zero_point)
    quantize_by_rule(patterns, table, parameters=one_scale, rule=rule, threads=1)
    return table


def _output_dtype(zero_point: Array | None, output_dtype: DTypeName | None) -> np.dtype[Any]:
    named = None if output_dtype is None else dtype_of(output_dtype, argument="output_dtype")
    if zero_point is not None:
        require_dtype(zero_point, QUANTIZED, argument="y_zero_point")
        if named is not None and named != zero_point.dtype:
            raise ValueError(
                f"output_dtype is {named} but y_zero_point has dtype {zero_point.dtype}; they must be equal."
            )
        return zero_point.dtype
    if named is None:
        return np.dtype(np.uint8)
    if named not in QUANTIZED:
        raise TypeError(f"output_dtype is {named}; allowed: {listed(QUANTIZED)}.")
    return named


def _precision(precision: DTypeName | None) -> np.dtype[Any] | None:
    if precision is None:
        return None
    found = dtype_of(precision, argument="precision")
    if found not in supported_divisions():
        raise ValueError(f"precision is {found}; allowed: {listed(supported_divisions())}.")
    return found


def dynamic_quantize_linear(x: Array, *, profile: str = "ort") -> tuple[Array, Array, Array]:
    """Quantize float32 x to uint8 with the range of its own values, zero included (DynamicQuantizeLinear-11).

    scale = (max - min) / 255, zero_point = round_half_even(clamp(-min / scale, 0, 255)), all in float32. ONNX
    Runtime leaves NaN out of the range and gives scale 1 where all values are zero; the reference makes the
    scale NaN or 1/255 there.

    Returns:
        uint8 codes of x's shape, the float32 scale [] and the uint8 zero point [].

    Raises:
        TypeError: x is not float32.
        ValueError: the profile is unknown, or "ref" with an empty x.
    """
    require_profile(profile)
    x = np.asarray(x)
    require_dtype(x, (FLOAT32,), argument="x")
    if profile == "ref" and x.size == 0:
        raise ValueError(f"x has shape {list(x.shape)}; the reference evaluator refuses an empty x.")
    with np.errstate(all="ignore"):
        scale, zero_point = _dynamic_parameters(x, profile)
    y = np.zeros(x.shape, np.uint8)
    if not np.isnan(scale):  # the reference's NaN scale turns every code into 0
        y = quantize_linear(x, scale, zero_point, opset=21)
    return y, scale, zero_point


def _dynamic_parameters(x: Array, profile: str) -> tuple[Array, Array]:
    nothing = np.float32(0)
    low, high = np.fmin.reduce, np.fmax.reduce
    if profile == "ref":
        low, high = np.minimum.reduce, np.maximum.reduce
    lo = np.minimum(nothing, low(x, axis=None, initial=nothing))
    hi = np.maximum(nothing, high(x, axis=None, initial=nothing))
    if profile == "ref":
        scale = (np.float32(1) if hi == lo else hi - lo) / np.float32(255)
    else:
        scale = np.float32(1) if hi == lo else (hi - lo) / np.float32(255)
    zero = np.float32(0) - lo / scale
    clamped = np.float32(255) if np.isnan(zero) else np.clip(zero, np.float32(0), np.float32(255))
    return np.array(scale, FLOAT32), np.array(np.rint(clamped), np.uint8)
