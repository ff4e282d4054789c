"""TensorFlow QuantizeAndDequantizeV2, V3 and V4 as their CPU kernels compute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantool.kernels.dtypes import FLOAT32, Array, require_dtype
from quantool.kernels.rounding import round_half_even, round_half_up
from quantool.kernels.tensorflow_types import along_axis, require_choice

ROUND_MODES = ("HALF_TO_EVEN", "HALF_UP")
VERSIONS = (2, 3, 4)
FLOAT64 = np.dtype(np.float64)
# Measured limits of the kernels: one bit more and their int64 arithmetic overflows.
LARGEST_BITS_SIGNED, LARGEST_BITS_UNSIGNED = 61, 62


@dataclass(frozen=True, slots=True)
class FakeGrid:
    """The codes that values are rounded to: ``lowest`` to ``highest``."""

    lowest: int
    highest: int


def tf_quantize_and_dequantize(
    input: Array,  # TensorFlow calls it so, and the contract follows TensorFlow
    input_min: Array,
    input_max: Array,
    *,
    version: int,
    signed_input: bool = True,
    num_bits: int = 8,
    range_given: bool = False,
    round_mode: str = "HALF_TO_EVEN",
    narrow_range: bool = False,
    axis: int = -1,
) -> Array:
    """Round values to a symmetric grid and give them back as reals: round(clamp(x) * f) * step.

    input: float32 or float64 [*S]. input_min, input_max: [], or for version 3 with axis [S[axis]]; used if
    ``range_given``, else the range is the data's own. f = min(qmin / lo, qmax / hi) over the bounds of
    equal sign. Values are clamped only to a given range; NaN and the sign of zero survive. Computed in the
    input's type, which is returned. Source: tensorflow/core/kernels/quantize_and_dequantize_op.h.

    Args:
        input: the values.
        input_min: lower bound of the range.
        input_max: upper bound of the range.
        version: 2, 3 or 4.
        signed_input: codes may be negative.
        num_bits: width of the codes, 1 to 61 (signed) or 62.
        range_given: use input_min and input_max.
        round_mode: HALF_TO_EVEN, or for versions 2 and 4 also HALF_UP.
        narrow_range: leave the smallest signed code out.
        axis: axis of a range for each slice, -1 for none.

    Raises:
        TypeError: a type is not one of those allowed.
        ValueError: an option, the range or a shape does not fit.
    """
    values = np.asarray(input)
    require_dtype(values, (FLOAT32, FLOAT64), argument="input")
    _check_options(version, round_mode, num_bits, signed_input, rank=values.ndim, axis=axis)
    low, high = np.asarray(input_min), np.asarray(input_max)
    for name, bound in (("input_min", low), ("input_max", high)):
        require_dtype(bound, (values.dtype,), argument=name)
    if range_given:
        _check_given_range(low, high, values, version=version, axis=axis)
    else:
        low, high = _data_range(values, axis)
    grid = _grid(signed_input, num_bits, narrow_range)
    with np.errstate(all="ignore"):
        low, high = (along_axis(v, rank=values.ndim, axis=axis) for v in (low, high))
        factor, step, low, high = _nudged(low, high, grid)
        if range_given:
            values = np.where(values < low, low, np.where(values > high, high, values))
        steps = np.asarray(values * factor)
        rounded = round_half_up(steps) if round_mode == "HALF_UP" else round_half_even(steps)
        return np.asarray(rounded * step)


def _check_options(version: int, round_mode: str, num_bits: int, signed_input: bool, *, rank: int, axis: int) -> None:
    if version not in VERSIONS:
        raise ValueError(f"version is {version}; allowed: {', '.join(map(str, VERSIONS))}.")
    require_choice(round_mode, ROUND_MODES if version != 3 else ROUND_MODES[:1], argument="round_mode")
    largest = LARGEST_BITS_SIGNED if signed_input else LARGEST_BITS_UNSIGNED
    if not 1 <= num_bits <= largest:
        raise ValueError(f"num_bits is {num_bits}; it must be 1 to {largest}.")
    if not -1 <= axis < rank:
        raise ValueError(f"axis is {axis}; for rank {rank} it must be in [-1, {rank - 1}].")


def _check_given_range(low: Array, high: Array, values: Array, *, version: int, axis: int) -> None:
    wanted = (values.shape[axis],) if version == 3 and axis != -1 else ()
    for name, bound in (("input_min", low), ("input_max", high)):
        if bound.shape != wanted:
            raise ValueError(
                f"{name} has shape {list(bound.shape)}; version {version} with axis {axis} needs {list(wanted)}."
            )
    if not np.all(low <= high):
        raise ValueError(f"input_min is {low.tolist()} and input_max {high.tolist()}; min must not exceed max.")


def _data_range(values: Array, axis: int) -> tuple[Array, Array]:
    if values.size == 0:
        nothing = np.zeros((), values.dtype)
        return nothing, nothing
    others = None if axis == -1 else tuple(i for i in range(values.ndim) if i != axis)
    return np.asarray(np.min(values, axis=others)), np.asarray(np.max(values, axis=others))


def _grid(signed: bool, bits: int, narrow_range: bool) -> FakeGrid:
    if signed:
        return FakeGrid(-(1 << (bits - 1)) + narrow_range, (1 << (bits - 1)) - 1)
    return FakeGrid(0, (1 << bits) - 1)


def _nudged(low: Array, high: Array, grid: FakeGrid) -> tuple[Array, Array, Array, Array]:
    """The factor, the step, the range: the bound that limits the factor stays, the other moves."""
    kind = low.dtype.type
    lowest, highest, unlimited = kind(grid.lowest), kind(grid.highest), np.finfo(low.dtype).max
    by_low = np.where(lowest * low > 0, lowest / low, unlimited)
    by_high = np.where(highest * high > 0, highest / high, unlimited)
    step = np.where(by_low < by_high, low / lowest, high / highest)
    factor = np.minimum(by_low, by_high)
    new_low = np.where(by_low < by_high, low, lowest * step)
    new_high = np.where(by_low < by_high, highest * step, high)
    return factor, step, new_low, new_high
