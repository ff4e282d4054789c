"""Turn a range of real values into a scale and a zero point, by the formulas of ONNX and TensorFlow.

Every formula gives a positive, finite, normal float32 scale and a zero point inside the grid, so that zero is
exactly representable: a padded convolution or a ReLU depends on it. Ranges are widened to include zero
first. What is written into a graph is ``QuantizeLinear(x) = saturate(rint(x / scale) + zero_point)``; a
formula of TensorFlow multiplies by the reciprocal instead and gives the same integers except within a few
float32 roundings of a tie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantool.elements import ELEMENTS
from quantool.kernels.rounding import round_half_away, round_half_even

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]

# Below the smallest normal float32 a scale loses bits, and a runtime that flushes subnormals reads it as
# zero.
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
LARGEST_FLOAT = float(np.finfo(np.float32).max)
LARGEST_POWER = 2.0**127


@dataclass(frozen=True, slots=True)
class ScaleZeroPoint:
    """What a formula gives for one range or an array of ranges, all of the ranges' shape.

    Attributes:
        scale: float32, positive, finite and normal.
        zero_point: int32, inside the grid.
        lo: float64, the real value of the smallest code.
        hi: float64, the real value of the largest code.
        residual_shift: float64, in codes: what the formula's own offset exceeds the zero point by. Zero
            except for ``tf-min-combined``, whose offset is not an integer.
    """

    scale: Float32
    zero_point: Int32
    lo: Float64
    hi: Float64
    residual_shift: Float64


@dataclass(frozen=True, slots=True)
class RangeOnGrid:
    """A checked range, zero included, and the codes that it is spread over.

    Attributes:
        lo: float32, at most 0.
        hi: float32, at least 0.
        qmin: smallest code used.
        qmax: largest code used.
    """

    lo: Float32
    hi: Float32
    qmin: int
    qmax: int


# The scale, the zero point, and the formula's own offset (equal to the zero point where that is an integer).
Solution = tuple[Float32, Float64, Float64]


@dataclass(frozen=True, slots=True)
class Formula:
    """One way from a range to a scale.

    Attributes:
        solve: the formula itself; degenerate ranges are dealt with outside.
        source: where it is defined.
        symmetric: the zero point does not depend on the range.
        uses_narrow_range: ``narrow_range`` drops the smallest code; TensorFlow ignores it outside SCALED.
    """

    solve: Callable[[RangeOnGrid], Solution]
    source: str
    symmetric: bool
    uses_narrow_range: bool


def compute(
    formula: str,
    lo: npt.ArrayLike,
    hi: npt.ArrayLike,
    *,
    qmin: int,
    qmax: int,
    narrow_range: bool = False,
    ensure_minimum_range: float = 0.0,
) -> ScaleZeroPoint:
    """Scale and zero point of the range [lo, hi] on the codes qmin to qmax.

    lo, hi: real [*S], lo <= hi. All arrays of the result have shape S. A range of nothing but zero gets
    scale 1; a scale below the smallest normal float32 is raised to it.

    Args:
        formula: a key of :data:`FORMULAS`.
        lo: smallest values.
        hi: largest values.
        qmin: smallest code of the grid.
        qmax: largest code of the grid.
        narrow_range: leave the smallest code out, where the formula knows this.
        ensure_minimum_range: widen the range to at least this times max(1, abs(lo), abs(hi)), as TensorFlow
            does.

    Raises:
        ValueError: unknown formula, a bound that is not finite in float32, lo > hi, qmin >= qmax, a negative
            ensure_minimum_range, or a grid without a code for zero.
    """
    chosen = FORMULAS.get(formula)
    if chosen is None:
        raise ValueError(f"formula is {formula!r}; allowed: {', '.join(FORMULAS)}.")
    lowest = qmin + 1 if narrow_range and chosen.uses_narrow_range else qmin
    if lowest >= qmax:
        raise ValueError(f"qmin is {lowest} and qmax is {qmax}; the grid needs at least two codes.")
    lo32, hi32 = _checked_range(lo, hi, ensure_minimum_range)
    with np.errstate(all="ignore"):
        scale, zero, offset = chosen.solve(RangeOnGrid(lo32, hi32, lowest, qmax))
    nothing = lo32 == hi32
    scale = np.where(nothing, np.float32(1), scale)
    if np.any((zero < lowest) | (zero > qmax)):
        raise ValueError(
            f"qmin is {lowest} and qmax is {qmax}; {formula!r} needs a code for zero, as a signed grid has."
        )
    wide = scale.astype(np.float64)
    return ScaleZeroPoint(
        scale=np.asarray(scale, np.float32),
        zero_point=np.asarray(zero, np.int32),
        lo=np.asarray((lowest - zero) * wide),
        hi=np.asarray((qmax - zero) * wide),
        residual_shift=np.asarray(np.where(nothing, 0.0, offset - zero)),
    )


def formula_for(dtype: str, named: str | None) -> str:
    """The formula that was named, else the usual one: floating types have no zero point."""
    return named or ("onnx-symmetric" if ELEMENTS[dtype].floating else "onnx")


def _checked_range(lo: npt.ArrayLike, hi: npt.ArrayLike, minimum: float) -> tuple[Float32, Float32]:
    if not (minimum >= 0 and np.isfinite(minimum)):
        raise ValueError(f"ensure_minimum_range is {minimum}; it must be finite and at least 0.")
    with np.errstate(over="ignore"):
        lo32, hi32 = np.broadcast_arrays(np.asarray(lo, np.float32), np.asarray(hi, np.float32))
    bad = ~(np.isfinite(lo32) & np.isfinite(hi32) & (lo32 <= hi32))
    if np.any(bad):
        first = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"range {first} is [{lo32.flat[first]}, {hi32.flat[first]}]; both bounds must be finite in "
            "float32 and lo at most hi."
        )
    low = np.minimum(lo32, np.float32(0))
    # QuantizeV2: the range is widened upwards from min(0, lo), in float32.
    largest = np.maximum(np.maximum(np.abs(lo32), np.abs(hi32)), np.float32(1))
    with np.errstate(over="ignore"):
        widened = low + largest * np.float32(minimum)
    return low, np.minimum(np.maximum(np.maximum(hi32, np.float32(0)), widened), np.float32(LARGEST_FLOAT))


def _span(on: RangeOnGrid) -> Float64:
    """The width hi - lo, rounded to float32 as every implementation does, unless that overflows."""
    rounded = (on.hi - on.lo).astype(np.float64)
    return np.where(np.isfinite(rounded), rounded, on.hi.astype(np.float64) - on.lo.astype(np.float64))


def _as_scale(values: Float64) -> Float32:
    """Round to float32, between the smallest normal and the largest number."""
    return np.clip(values, SMALLEST_SCALE, LARGEST_FLOAT).astype(np.float32)


def _onnx(on: RangeOnGrid) -> Solution:
    """Scale (hi - lo) / (qmax - qmin), zero point rint(clip(qmin - lo / scale)), all in float32."""
    scale = _as_scale(_span(on) / (on.qmax - on.qmin))
    exact = np.float32(on.qmin) - on.lo / scale
    zero = round_half_even(np.clip(exact, on.qmin, on.qmax)).astype(np.float64)
    return scale, zero, zero


def _symmetric_parts(on: RangeOnGrid) -> tuple[Float64, int]:
    """The scale that lets neither end saturate, and the zero point: 0, or the middle of an unsigned grid."""
    zero = 0 if on.qmin < 0 else (on.qmin + on.qmax + 1) // 2
    largest = np.maximum(-on.lo, on.hi).astype(np.float64)
    return largest / min(on.qmax - zero, zero - on.qmin), zero


def _onnx_symmetric(on: RangeOnGrid) -> Solution:
    """Scale max(abs(lo), abs(hi)) / steps, steps being the codes on the shorter side of the zero point."""
    exact, middle = _symmetric_parts(on)
    zero = np.full(on.lo.shape, float(middle))
    return _as_scale(exact), zero, zero


def _onnx_power_of_two(on: RangeOnGrid) -> Solution:
    """The smallest power of two that is not below the symmetric scale: rescaling becomes a shift."""
    exact, middle = _symmetric_parts(on)
    mantissa, exponent = np.frexp(exact)
    power = np.minimum(np.ldexp(1.0, exponent - (mantissa == 0.5)), LARGEST_POWER)
    zero = np.full(on.lo.shape, float(middle))
    return _as_scale(power), zero, zero


def _reciprocal(factor: Float32) -> tuple[Float32, Float32]:
    """The scale for a TensorFlow factor, and the factor; both finite where the range is subnormally small."""
    scale = _as_scale(1.0 / factor.astype(np.float64))
    return scale, np.where(np.isfinite(factor), factor, np.float32(1) / scale)


def _tf_min_first(on: RangeOnGrid) -> Solution:
    """Codes RHA(x * f) - (RHA(lo * f) - qmin), f = (qmax - qmin) / (hi - lo): the offset is an integer."""
    scale, factor = _reciprocal(((on.qmax - on.qmin) / _span(on)).astype(np.float32))
    zero = on.qmin - round_half_away(on.lo * factor).astype(np.float64)
    zero = np.clip(np.where(np.isnan(zero), on.qmin, zero), on.qmin, on.qmax)
    return scale, zero, zero


def _tf_scaled(on: RangeOnGrid) -> Solution:
    """Codes round(x * f), f = min(qmin / lo, qmax / hi) where the signs agree: the zero point is 0."""
    unlimited = np.float32(LARGEST_FLOAT)
    lower = np.where(on.qmin * on.lo > 0, np.float32(on.qmin) / on.lo, unlimited)
    upper = np.where(on.qmax * on.hi > 0, np.float32(on.qmax) / on.hi, unlimited)
    scale, _ = _reciprocal(np.minimum(lower, upper).astype(np.float32))
    # Unsigned codes and a range without positive values: every scale gives code 0, so take an ordinary one.
    scale = np.where((on.hi == 0) & (on.qmin >= 0), np.float32(1), scale)
    zero = np.zeros(on.lo.shape)
    return scale, zero, zero


def _tf_min_combined(on: RangeOnGrid) -> Solution:
    """Codes round((x - lo) * f) + qmin, f as for MIN_FIRST: the offset qmin - lo * f is no integer."""
    scale, factor = _reciprocal(((on.qmax - on.qmin) / _span(on)).astype(np.float32))
    offset = on.qmin - on.lo.astype(np.float64) * factor.astype(np.float64)
    zero = np.clip(round_half_even(offset), on.qmin, on.qmax)
    return scale, np.where(np.isnan(zero), on.qmin, zero), offset


_TENSORFLOW = "tensorflow/core/kernels/quantize_op.cc (QuantizeV2)"

FORMULAS: dict[str, Formula] = {
    "onnx": Formula(_onnx, "ONNX DynamicQuantizeLinear-11, any integer grid", False, True),
    "onnx-symmetric": Formula(_onnx_symmetric, "ONNX QuantizeLinear-21 with a fixed zero point", True, True),
    "onnx-power-of-two": Formula(
        _onnx_power_of_two,
        "Jain et al., Trained Quantization Thresholds, arXiv:1903.08066 (power-of-two scales)",
        True,
        True,
    ),
    "tf-min-first": Formula(_tf_min_first, f"{_TENSORFLOW}, mode MIN_FIRST", False, False),
    "tf-scaled": Formula(_tf_scaled, f"{_TENSORFLOW}, mode SCALED", True, True),
    "tf-min-combined": Formula(_tf_min_combined, f"{_TENSORFLOW}, mode MIN_COMBINED", False, False),
}
