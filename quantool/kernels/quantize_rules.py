"""QuantizeLinear for every pair of types and both oracles, one slab at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantool.kernels.dtypes import (
    BFLOAT16,
    FLOAT4,
    FLOAT8,
    FLOAT16,
    FLOAT32,
    INTEGER_GRIDS,
    Array,
    IntegerGrid,
)
from quantool.kernels.flat_reader import FlatReader
from quantool.kernels.granularity import Slab
from quantool.kernels.low_precision import cast_float8
from quantool.kernels.parameter_source import ParameterSource
from quantool.kernels.parameters import Parameters
from quantool.kernels.rounding import round_half_even, to_int32_x86
from quantool.kernels.slab_runner import run_over_slabs


@dataclass(frozen=True, slots=True)
class QuantizeRule:
    """How one call computes.

    Attributes:
        dtype: type of the codes.
        division: type in which x / scale is rounded; None leaves it to NumPy's promotion, as the reference
            does.
        wraps: convert to int32 as the reference does, where Inf and large values become INT_MIN; else
            saturate.
        saturate: clip float8 codes to the largest finite value instead of overflowing.
    """

    dtype: np.dtype[Any]
    division: np.dtype[Any] | None
    wraps: bool
    saturate: bool


def choose_rule(
    *,
    x: np.dtype[Any],
    scale: np.dtype[Any],
    dtype: np.dtype[Any],
    precision: np.dtype[Any] | None,
    opset: int,
    saturate: bool,
    profile: str,
) -> QuantizeRule:
    """The rule of the oracle that ``profile`` names.

    ONNX Runtime divides in ``precision``, else from opset 23 in the scale's type, else in float32 (float16
    x and scale included). Where it has no kernel (bfloat16, int32 and float8e8m0 operands) the reference's
    division is the only one known and is taken; saturation stays that of ONNX Runtime.
    """
    if profile == "ref":
        return QuantizeRule(dtype, precision, True, saturate)
    if precision is None and {x, scale} <= {FLOAT16, FLOAT32}:
        precision = scale if opset >= 23 else FLOAT32
    return QuantizeRule(dtype, precision, False, saturate)


def quantize_by_rule(
    x: Array | FlatReader,
    codes: Array,
    *,
    parameters: Parameters,
    rule: QuantizeRule,
    threads: int,
) -> None:
    """Write the codes of x into ``codes``, both flat."""
    layout, zero_point = parameters.layout, parameters.zero_point

    def work(pieces: Iterable[Slab]) -> None:
        scales = ParameterSource(parameters.scale, layout)
        zeros = None if zero_point is None else ParameterSource(zero_point, layout)
        with np.errstate(all="ignore"):
            for slab in pieces:
                zero = None if zeros is None else zeros.flat(slab)
                quotient = _divide(x[slab.start : slab.stop], scales.flat(slab), rule.division)
                codes[slab.start : slab.stop] = _encode(quotient, zero, rule)

    run_over_slabs(layout, work, threads=threads)


def _divide(x: Array, scale: Array, division: np.dtype[Any] | None) -> Array:
    if division is not None:
        x, scale = x.astype(division), scale.astype(division)
    quotient: Array = np.asarray(x / scale)
    return quotient


def _encode(quotient: Array, zero: Array | None, rule: QuantizeRule) -> Array:
    grid = INTEGER_GRIDS.get(rule.dtype)
    if grid is not None:
        encode = _wrap_to_integer if rule.wraps else _saturate_to_integer
        return encode(quotient, zero, grid)
    if rule.dtype in FLOAT8:
        return cast_float8(quotient, rule.dtype, saturate=rule.saturate)
    if zero is not None:
        quotient = np.asarray(quotient + zero)
    return quotient.astype(rule.dtype)


def _saturate_to_integer(quotient: Array, zero: Array | None, grid: IntegerGrid) -> Array:
    """clip(rint(q) + zero_point): NaN becomes qmin, Inf the nearer bound. Exact in float64."""
    values = round_half_even(quotient.astype(np.float64))
    if zero is not None:
        values += zero.astype(np.float64)
    values[np.isnan(values)] = grid.qmin
    return np.clip(values, grid.qmin, grid.qmax).astype(grid.carrier).astype(grid.dtype)


def _wrap_to_integer(quotient: Array, zero: Array | None, grid: IntegerGrid) -> Array:
    """The reference's int32 arithmetic: out-of-range quotients are INT_MIN, and the sum wraps."""
    codes = to_int32_x86(round_half_even(quotient))
    if zero is not None:
        codes += zero.astype(np.int32)
    return np.clip(codes, grid.qmin, grid.qmax).astype(grid.carrier).astype(grid.dtype)


def supported_divisions() -> tuple[np.dtype[Any], ...]:
    """The types that the attribute ``precision`` may name."""
    return (FLOAT32, FLOAT16, BFLOAT16)


def takes_zero_point(dtype: np.dtype[Any]) -> bool:
    """Whether DequantizeLinear subtracts a zero point of this type: the reference ignores it for float4."""
    return dtype not in FLOAT8 and dtype != FLOAT4
