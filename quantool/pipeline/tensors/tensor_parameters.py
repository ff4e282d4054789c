"""Scale and zero point of an array for `quantool tensor`: as given, or by a formula from a range."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes  # noqa: F401  # registers int4 and its kin as NumPy type names
import numpy as np

from quantool.elements import ELEMENTS, Element
from quantool.errors import OptionError
from quantool.formulas import FORMULAS, compute
from quantool.kernels.dtypes import Array
from quantool.schema import Grid

FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One array and what was asked; parameters from files are arrays already.

    bounds: lo and hi as given, None for the array's own (absent when codes go back without a range).
    """

    formula: str
    dtype: str
    bounds: tuple[Array, Array] | None
    scale: Array | None
    zero_point: Array | None
    axis: int | None
    block_size: int
    round_mode: str | None
    narrow_range: bool
    ensure_minimum_range: float
    feature_level: str | None
    opset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """Parameters: scale and zero point of shape [*S], the range used and the reach of the codes, all [*S] or ()."""

    scale: Array
    zero_point: Array
    used: tuple[Array, Array]
    reach: tuple[Array, Array]
    residual_shift: float = 0.0


def solve_parameters(values: Array | None, task: Task) -> Solved:
    """Scale and zero point as given, or by the formula from the range."""
    element = ELEMENTS[task.dtype]
    kind = FLOAT32 if values is None or values.dtype == np.int32 else values.dtype
    if task.scale is not None:
        return _given(task.scale, task, element, kind=kind)
    grid = Grid.of(task.dtype)
    lo, hi = _bounds(values, task)
    found = compute(
        "onnx-symmetric" if element.floating else task.formula if task.formula in FORMULAS else "onnx",
        lo,
        hi,
        qmin=grid.qmin,
        qmax=grid.qmax,
        narrow_range=task.narrow_range,
        ensure_minimum_range=task.ensure_minimum_range,
    )
    with np.errstate(over="ignore"):
        scale = found.scale.astype(kind)
    if not np.all(np.isfinite(scale) & (scale > 0)):
        raise OptionError(
            "scale-not-representable",
            f"the scale {float(found.scale.flat[0]):.6g} is no positive {kind} number",
            where="--range",
            fix="Give --scale, or a float32 array.",
        )
    used = np.minimum(lo, 0), np.maximum(hi, 0)
    return Solved(
        scale=scale,
        zero_point=found.zero_point.astype(np.dtype(task.dtype)),
        used=(used[0].astype(np.float64), np.maximum(used[1], used[0] + _least(lo, hi, task)).astype(np.float64)),
        reach=_reach(scale, found.zero_point, element, task.dtype),
        residual_shift=float(np.abs(found.residual_shift).max(initial=0.0)),
    )


def _least(lo: Array, hi: Array, task: Task) -> Array:
    """The least width of a range, as QuantizeV2 computes it."""
    return np.asarray(task.ensure_minimum_range * np.maximum(1.0, np.maximum(np.abs(lo), np.abs(hi))))


def _given(scale: Array, task: Task, element: Element, *, kind: np.dtype[np.generic]) -> Solved:
    """Given parameters: the scale in its own type, a number in the tensor's; a zero point of the scale's shape."""
    if scale.dtype == np.float64:
        scale = scale.astype(kind)
    zero = np.zeros(scale.shape) if task.zero_point is None else task.zero_point
    if zero.ndim == 0 and scale.ndim:
        zero = np.broadcast_to(zero, scale.shape)
    grid = Grid.of(task.dtype)
    wide = zero.astype(np.float64)
    lowest, highest = (0, 0) if element.floating else (grid.qmin, grid.qmax)
    if not np.all((wide >= lowest) & (wide <= highest) & (wide == np.rint(wide))):
        raise OptionError(
            "bad-zero-point",
            f"the zero point {wide.flat[0]:g} is no code of {task.dtype}"
            if wide.size == 1
            else f"a zero point is no code of {task.dtype}",
            where="--zero-point",
            fix=f"Give whole numbers from {lowest} to {highest}.",
        )
    reach = _reach(scale, wide, element, task.dtype)
    codes = wide.astype(np.int32).astype(np.dtype(task.dtype))
    return Solved(scale=scale, zero_point=codes, used=reach, reach=reach)


def _reach(scale: Array, zero: Array, element: Element, dtype: str) -> tuple[Array, Array]:
    """The real values of the smallest and the largest code; a negative scale turns them round."""
    wide, grid = scale.astype(np.float64), Grid.of(dtype)
    offset = np.zeros(()) if element.floating else zero.astype(np.float64)
    ends = (grid.qmin - offset) * wide, (grid.qmax - offset) * wide
    return np.minimum(*ends), np.maximum(*ends)


# --- ranges ---------------------------------------------------------------------------------------------


def _bounds(values: Array | None, task: Task) -> tuple[Array, Array]:
    """The range given, else the array's own, by axis and block: float32 of the scale's shape."""
    if task.bounds is not None:
        return task.bounds
    if values is None:
        raise OptionError(
            "missing-option",
            "codes do not tell what scale they have",
            where="--scale",
            fix="Give --scale (and --zero-point), or the --range that was used.",
        )
    return own_bounds(values, axis=task.axis, block_size=task.block_size)


def own_bounds(values: Array, *, axis: int | None, block_size: int) -> tuple[Array, Array]:
    """Smallest and largest value for each scale, zero counted in, so that empty slices have a range too.

    Raises OptionError where the array holds NaN or infinity: its range means nothing.
    """
    if block_size and axis is None:
        axis = 1
    if axis is None or values.ndim == 0:
        ends = [f(values, axis=None, initial=0) for f in (np.minimum.reduce, np.maximum.reduce)]
    elif block_size and values.shape[axis]:
        starts = np.arange(0, values.shape[axis], block_size)
        ends = [f(values, starts, axis=axis) for f in (np.minimum.reduceat, np.maximum.reduceat)]
    else:
        others = tuple(i for i in range(values.ndim) if i != axis % values.ndim)
        ends = [f(values, axis=others, initial=0) for f in (np.minimum.reduce, np.maximum.reduce)]
    lo, hi = (np.asarray(end).astype(FLOAT32) for end in ends)
    if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
        raise OptionError(
            "nonfinite-values",
            "the array holds NaN or infinity, so its own range means nothing",
            where="--range",
            fix="Give --range LO:HI or --scale.",
        )
    return np.minimum(lo, np.float32(0)), np.maximum(hi, np.float32(0))


def spread(values: Array, shape: tuple[int, ...], *, axis: int | None, block_size: int) -> Array:
    """Parameters in a form that broadcasts against a tensor of that shape.

    Raises ValueError where their shape does not fit.
    """
    if values.size == 1 and values.ndim <= 1:
        return values.reshape(())
    if values.shape == shape and not block_size and axis is None:
        return values
    axis = (1 if axis is None else axis) % max(len(shape), 1)
    if block_size:
        whole = np.repeat(values, block_size, axis)
        return whole[tuple(slice(extent) for extent in shape)]
    return values.reshape(-1, *(1,) * (len(shape) - 1 - axis))
