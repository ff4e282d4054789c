"""ONNX DequantizeLinear, opsets 10 to 28."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from quantool.kernels.dtypes import (
    BFLOAT16,
    FLOAT8,
    FLOAT8_E8M0,
    FLOAT16,
    FLOAT32,
    INT32,
    QUANTIZED,
    Array,
    DTypeName,
    dtype_of,
    listed,
    output_array,
    require_dtype,
    require_profile,
)
from quantool.kernels.flat_reader import FlatReader, flat_view
from quantool.kernels.granularity import Slab
from quantool.kernels.parameter_source import ParameterSource
from quantool.kernels.parameters import resolve_parameters
from quantool.kernels.quantize_rules import takes_zero_point
from quantool.kernels.slab_runner import run_over_slabs

X_TYPES = (*QUANTIZED, INT32)
SCALE_TYPES = (FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E8M0)


def dequantize_linear(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: DTypeName | None = None,
    profile: str = "ort",
    threads: int = 1,
    out: Array | None = None,
) -> Array:
    """Dequantize x: (x - x_zero_point) * x_scale, computed in float32 and rounded once to the output type.

    x: any type of QuantizeLinear's output, or int32, [*S]. x_scale, x_zero_point: shapes as in
    :func:`quantize_linear`. Returns S in ``output_dtype``, else in the scale's type. For int32 ONNX Runtime
    subtracts in int32 and the reference in float64; everything else is the same in both. Memory and
    ``out`` as in :func:`quantize_linear`. Source: ONNX DequantizeLinear-10 to -25.

    Raises:
        TypeError: a dtype is not one of those allowed, or the zero point's is not x's.
        ValueError: shapes, axis, block_size, profile or out do not fit, or a float8 zero point is not zero.
    """
    require_profile(profile)
    x, scale = np.asarray(x), np.asarray(x_scale)
    require_dtype(x, X_TYPES, argument="x")
    require_dtype(scale, SCALE_TYPES, argument="x_scale")
    dtype = scale.dtype if output_dtype is None else dtype_of(output_dtype, argument="output_dtype")
    if dtype not in SCALE_TYPES:
        raise TypeError(f"output_dtype is {dtype}; allowed: {listed(SCALE_TYPES)}.")
    zero_point = None if x_zero_point is None else _checked_zero_point(np.asarray(x_zero_point), x)
    parameters = resolve_parameters(
        x.shape,
        scale,
        zero_point,
        axis=axis,
        block_size=block_size,
        profile=profile,
        zero_point_name="x_zero_point",
    )
    scales, zeros = parameters.scale.astype(FLOAT32, copy=False), _zeros(parameters.zero_point, profile)
    inputs = (x, scale) if zero_point is None else (x, scale, zero_point)
    y = output_array(out, x.shape, dtype, inputs=inputs)

    def work(pieces: Iterable[Slab]) -> None:
        _dequantize_slabs(
            flat_view(x),
            y.reshape(-1),
            pieces,
            scale=ParameterSource(scales, parameters.layout),
            zero=None if zeros is None else ParameterSource(zeros, parameters.layout),
        )

    run_over_slabs(parameters.layout, work, threads=threads)
    return y


def _checked_zero_point(zero_point: Array, x: Array) -> Array:
    if zero_point.dtype != x.dtype:
        raise TypeError(f"x_zero_point has dtype {zero_point.dtype}; it must be x's, {x.dtype}.")
    if x.dtype in FLOAT8 and zero_point.view(np.uint8).any():
        raise ValueError(f"x_zero_point is {zero_point.tolist()!r}; for {x.dtype} it must be zero.")
    return zero_point


def _zeros(zero_point: Array | None, profile: str) -> Array | None:
    """The zero point in the type of the subtraction: int32 against int32 in ONNX Runtime, else a float."""
    if zero_point is None or not takes_zero_point(zero_point.dtype) or not zero_point.any():
        return None
    if zero_point.dtype != INT32:
        return zero_point.astype(FLOAT32)
    return zero_point.astype(np.float64) if profile == "ref" else zero_point


def _dequantize_slabs(
    x: Array | FlatReader,
    y: Array,
    pieces: Iterable[Slab],
    *,
    scale: ParameterSource,
    zero: ParameterSource | None,
) -> None:
    direct = y.dtype == FLOAT32
    with np.errstate(all="ignore"):
        for slab in pieces:
            part = x[slab.start : slab.stop]
            target = y[slab.start : slab.stop] if direct else np.empty(slab.stop - slab.start, FLOAT32)
            if zero is not None and zero.dtype != FLOAT32:
                np.copyto(target, _subtract_wide(part, zero.flat(slab), scale.flat(slab)), casting="unsafe")
            else:
                np.copyto(target, part, casting="unsafe")
                if zero is not None:
                    zero.apply(np.subtract, target, slab, target)
                scale.apply(np.multiply, target, slab, target)
            if not direct:
                y[slab.start : slab.stop] = target


def _subtract_wide(x: Array, zero: Array, scale: Array) -> Array:
    """An int32 slab: subtracted in int32 (wrapping) before float32, or in float64 from the float32 of x."""
    if zero.dtype == INT32:
        difference = np.subtract(x, zero).astype(FLOAT32)
        return difference * scale
    product: Array = (x.astype(FLOAT32) - zero) * scale
    return product
