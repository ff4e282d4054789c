"""Check the scale and zero point of one call against its tensor, and bring them into one layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantool.kernels.dtypes import Array
from quantool.kernels.granularity import Layout, resolve_layout, view_parameters


@dataclass(frozen=True, slots=True)
class Parameters:
    """A scale and a zero point, both seen in the layout's parameter shape; None for a zero point of zero."""

    layout: Layout
    scale: Array
    zero_point: Array | None


def resolve_parameters(
    shape: tuple[int, ...],
    scale: Array,
    zero_point: Array | None,
    *,
    axis: int,
    block_size: int,
    profile: str,
    zero_point_name: str,
) -> Parameters:
    """The parameters of a tensor of ``shape``, as QuantizeLinear-21 lays them out.

    ONNX Runtime wants scale and zero point of one shape; the reference broadcasts each on its own.

    Raises:
        ValueError: axis, block_size or a shape does not fit; ``zero_point_name`` is the argument named in the text.
    """
    lenient = profile == "ref"
    layout = resolve_layout(shape, scale.shape, axis=axis, block_size=block_size, lenient=lenient)
    if zero_point is None:
        return Parameters(layout, view_parameters(scale, layout), None)
    if not lenient:
        require_same_shape(zero_point, scale, argument=zero_point_name)
        return Parameters(layout, view_parameters(scale, layout), view_parameters(zero_point, layout))
    zero_layout = resolve_layout(shape, zero_point.shape, axis=axis, block_size=block_size, lenient=True)
    scales, zeros = view_parameters(scale, layout), view_parameters(zero_point, zero_layout)
    if scales.size == 1:
        return Parameters(zero_layout, np.broadcast_to(scales, zeros.shape), zeros)
    return Parameters(layout, scales, np.broadcast_to(zeros, scales.shape))


def require_same_shape(zero_point: Array, scale: Array, *, argument: str) -> None:
    """Raise ValueError unless the zero point has the scale's shape; [] and [1] count as equal."""
    scalars = zero_point.size == scale.size == 1 and max(zero_point.ndim, scale.ndim) <= 1
    if zero_point.shape != scale.shape and not scalars:
        raise ValueError(f"{argument} has shape {list(zero_point.shape)}; it must be the scale's, {list(scale.shape)}.")
