"""Weights and biases: scales from the weights themselves, integers made one weight at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from quantool.errors import ModelError
from quantool.formulas import compute
from quantool.kernels import quantize_linear
from quantool.schema import (
    AnyArray,
    FloatArray,
    Grid,
    IntArray,
    QuantParams,
    WeightParams,
    WeightSpec,
)
from quantool.solve.extrema import extrema
from quantool.solve.mapped import mapped

#: the runtime rounds a bias code in float32, so it must stay clear of 2^31
BIAS_LIMIT = 2.0**30
#: scales below this are raised, so that the product of two stays a normal float32
SMALLEST_WEIGHT_SCALE = 2.0**-100
#: the formula's float64 arrays hold so many scales at once
SCALES = 1 << 16

Load = Callable[[str], AnyArray]
Bounds = tuple[FloatArray, FloatArray]
#: (weight, spec) -> scale and zero point in the shape of the granularity, None where rounding to nearest will do;
#: the scale of a block that holds NaN or infinity is not finite either
ScaleRule = Callable[[AnyArray, WeightSpec], tuple[FloatArray, IntArray] | None]
BoolArray = NDArray[np.bool_]


def solve_weight(
    spec: WeightSpec,
    load: Load,
    *,
    activations: Mapping[str, QuantParams],
    correction: NDArray[np.float64] | None = None,
    fitted: FloatArray | None = None,
    search: ScaleRule | None = None,
) -> WeightParams:
    """Scale, zero point and (lazily) codes of one weight, and its reader's int32 bias.

    s = max|w| / qmax where symmetric, the asymmetric formula of ONNX elsewhere. A channel whose bias would
    overflow gets a larger scale: its weights are negligible beside that bias. fitted: the scale to use instead;
    search: what may find better ones.
    Raises ModelError where the weight or the bias holds NaN or infinity.
    """
    weight = load(spec.tensor)
    found, bounds = None if search is None else search(weight, spec), None
    if found is None:
        bounds = extrema(weight, axis=spec.axis, block_size=spec.block_size)
        _refuse_nonfinite(bounds, spec.tensor)
        scale, zero_point = weight_scales(bounds, spec)
    else:
        scale, zero_point = found
        _refuse_nonfinite((scale, scale), spec.tensor)
    if fitted is not None and spec.index == 1:
        scale = fitted
    scale = stored_scale(scale, spec.scale_type)
    bias = bias_scale = None
    if spec.activation is not None:
        input_scale = activations[spec.activation].scale.reshape(())
        if spec.bias is not None:
            bias_values = load(spec.bias).astype(np.float64)
            _refuse_nonfinite((bias_values, bias_values), spec.bias)
            if correction is not None:
                bias_values = bias_values - correction
            if spec.own_bias_scale:
                bias_scale = own_bias_scale(bias_values)
            else:
                assert bounds is not None, "only weights whose biases stay float are searched"
                empty = np.asarray((bounds[0] == 0) & (bounds[1] == 0))
                scale = _raised(scale, bias_values, float(input_scale), empty=empty)
                bias_scale = np.multiply(input_scale, scale, dtype=np.float32)
            bias, bias_scale = solve_bias(bias_values, bias_scale)
    params = QuantParams(
        dtype=spec.dtype,
        scale=mapped(scale),
        zero_point=mapped(zero_point),
        axis=spec.axis,
        block_size=spec.block_size,
    )
    return WeightParams(
        spec=spec,
        params=params,
        key=_key(spec, params),
        shape=weight.shape,
        codes=partial(_codes, spec, params, load),
        bias=bias,
        bias_scale=bias_scale,
    )


def weight_scales(bounds: Bounds, spec: WeightSpec) -> tuple[FloatArray, IntArray]:
    """Scale and zero point, int32, from the smallest and largest values; zeros take no memory."""
    grid = Grid.of(spec.dtype, symmetric=spec.symmetric, bits=spec.bits)
    formula = "onnx-symmetric" if spec.symmetric else "onnx"
    shape, (lo, hi) = bounds[0].shape, (bound.reshape(-1) for bound in bounds)
    scale, zero_point = np.empty(lo.size, np.float32), np.zeros(lo.size, np.int32)
    for part in (slice(start, start + SCALES) for start in range(0, lo.size, SCALES)):
        solved = compute(formula, lo[part], hi[part], qmin=grid.qmin, qmax=grid.qmax)
        scale[part], zero_point[part] = solved.scale, solved.zero_point
    np.maximum(scale, np.float32(SMALLEST_WEIGHT_SCALE), out=scale)
    if not zero_point.any():
        zero_point = np.broadcast_to(np.zeros((), np.int32), zero_point.shape)
    return scale.reshape(shape), zero_point.reshape(shape)


def stored_scale(scale: FloatArray, scale_type: str) -> FloatArray:
    """The scale as its stored type holds it, rounded up so that no weight saturates, and never zero; float32[*S]."""
    if scale_type == "float32":
        return scale
    kind = np.dtype(scale_type)
    stored = scale.astype(kind)
    above = np.nextafter(stored, np.asarray(np.inf, kind))
    return np.where(stored.astype(np.float32) < scale, above, stored).astype(np.float32)


def solve_bias(bias: AnyArray, scale: FloatArray) -> tuple[IntArray, FloatArray]:
    """int32 codes of a bias on the scale activation x weight. bias: float64[N]; scale: float32[] or [N]."""
    scale = np.maximum(scale, np.finfo(np.float32).tiny)  # a product of two tiny scales may vanish
    codes = np.rint(bias / scale.astype(np.float64))
    return np.clip(codes, -BIAS_LIMIT, BIAS_LIMIT).astype(np.int32), scale


def own_bias_scale(bias: AnyArray) -> FloatArray:
    """The scale, float32[], that spreads a bias over 31 bits: finer than float32 itself."""
    return np.asarray(np.abs(bias).max(initial=SMALLEST_WEIGHT_SCALE) / BIAS_LIMIT, np.float32)


def _raised(scale: FloatArray, bias: AnyArray, input_scale: float, *, empty: BoolArray) -> FloatArray:
    """Raise the scale of every channel until |bias| / (input scale x scale) fits.

    empty: the channels of nothing but zeros, whose bias alone sets the scale.
    """
    needed = np.abs(bias) / (input_scale * BIAS_LIMIT)
    if scale.ndim == 0:
        needed = needed.max(initial=0.0)
    least = np.nextafter(needed.astype(np.float32), np.float32(np.inf))
    raised = np.where((needed > scale) | (empty & (needed > SMALLEST_WEIGHT_SCALE)), least, scale)
    return raised.astype(np.float32)


def _codes(spec: WeightSpec, params: QuantParams, load: Load) -> AnyArray:
    """The integers of a weight, on the grid of its bits."""
    grid = Grid.of(spec.dtype, symmetric=spec.symmetric, bits=spec.bits)
    codes = quantize_linear(
        np.asarray(load(spec.tensor), np.float32),
        params.scale,
        params.zero_point.astype(np.dtype(spec.dtype)),
        axis=0 if spec.axis is None else spec.axis,
        block_size=spec.block_size,
    )
    if spec.bits < 8 and spec.dtype in ("int8", "uint8"):
        return np.clip(codes, grid.qmin, grid.qmax)
    return codes


def _refuse_nonfinite(values: tuple[AnyArray, AnyArray], tensor: str) -> None:
    """Refuse a tensor by its smallest and largest values, which a NaN reaches."""
    if not all(np.isfinite(part).all() for part in values):
        raise ModelError(
            "nonfinite-weight",
            "the tensor holds NaN or infinity",
            where=tensor,
            fix="Repair the weights, or keep the nodes that read it in float with --exclude.",
        )


def _key(spec: WeightSpec, params: QuantParams) -> str:
    """Equal keys mean equal codes: same tensor, type, form and scales."""
    zero_points = params.zero_point.tobytes() if params.zero_point.any() else b""
    digest = hashlib.sha256(params.scale.tobytes() + zero_points).hexdigest()[:16]
    return f"{spec.tensor}|{spec.dtype}|{spec.axis}|{spec.block_size}|{digest}"
