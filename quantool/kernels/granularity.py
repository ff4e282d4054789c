"""Which scale belongs to which element: per tensor, per axis and per block as one layout.

A tensor is seen as ``[outer, size, inner]`` around the quantized axis. Its parameters are seen as
``[outer or 1, blocks, inner or 1]``; element ``[o, d, i]`` takes parameter ``[o, d // block, i]``. Per
tensor is one block with one run of all elements, per axis is ``block == 1``: one layout covers the three.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from quantool.kernels.dtypes import Array

# Elements a slab holds. Their 768 KB of float32 scratch stay in a second-level cache of 2 MB beside the values that
# stream past, and the calls that a slab costs (2 to 5 us) weigh little. One scale, 512 MB, ns an element: 96 Ki 0.66,
# 128 Ki 0.63, 160 Ki 0.60, 192 Ki 0.59, 256 Ki 0.63, 320 Ki 0.65.
SLAB_ELEMENTS = 3 << 16

# Below this run length np.repeat costs less than a copy of (rows, 1) to (rows, run).
SHORT_RUN = 16


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor as ``[outer, size, inner]`` with one parameter for ``block`` entries of the middle axis.

    Attributes:
        outer: product of the sizes before the quantized axis.
        size: size of the quantized axis.
        inner: product of the sizes after it.
        block: entries of the axis that share a parameter; the last block may be partial.
        blocked: parameters differ along outer and inner too (per block), else only along the axis.
    """

    outer: int
    size: int
    inner: int
    block: int
    blocked: bool

    @property
    def parameter_shape(self) -> tuple[int, int, int]:
        """Shape in which a parameter array is seen: ``[outer or 1, blocks, inner or 1]``."""
        blocks = -(-self.size // self.block)
        return (self.outer, blocks, self.inner) if self.blocked else (1, blocks, 1)


class Slab(NamedTuple):
    """A contiguous piece of a tensor, ``start`` to ``stop`` flat, and the index ranges that it covers."""

    start: int
    stop: int
    outer: slice
    size: slice
    inner: slice


def per_tensor_layout(elements: int) -> Layout:
    """The layout of one parameter for all elements."""
    return Layout(1, 1, elements, 1, False)


def resolve_layout(
    shape: tuple[int, ...], scale_shape: tuple[int, ...], *, axis: int, block_size: int, lenient: bool = False
) -> Layout:
    """The layout that ONNX QuantizeLinear-21 gives to a scale of ``scale_shape``.

    Args:
        shape: shape of the tensor.
        scale_shape: shape of the scale, or of a zero point looked at on its own.
        axis: quantized axis, in [-rank, rank - 1]; unused where the scale is one element.
        block_size: entries of the axis that share a scale, 0 for none.
        lenient: accept what only the onnx reference evaluator accepts: a block_size that is too large, and a
            block_size beside a scalar scale.

    Raises:
        ValueError: axis, block_size or the scale's shape does not fit.
    """
    if block_size < 0:
        raise ValueError(f"block_size is {block_size}; it must be 0 (none) or positive.")
    if math.prod(scale_shape) == 1 and len(scale_shape) <= 1:
        if block_size and not lenient:
            raise ValueError(
                f"block_size is {block_size} beside a scalar scale; it must be 0, or the scale of the tensor's "
                f"rank {len(shape)}."
            )
        return per_tensor_layout(math.prod(shape))
    rank = len(shape)
    if not -rank <= axis < rank:
        raise ValueError(
            f"axis is {axis}; for a tensor of rank {rank} and a scale of shape {list(scale_shape)} it must "
            f"be in [{-rank}, {rank - 1}]."
        )
    axis %= rank
    if block_size:
        _check_block_shape(shape, scale_shape, axis=axis, block_size=block_size, lenient=lenient)
    elif scale_shape != (shape[axis],):
        raise ValueError(
            f"the scale has shape {list(scale_shape)}; for axis {axis} of a tensor of shape {list(shape)} "
            f"without block_size it must be [] or [{shape[axis]}]."
        )
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    return Layout(outer, shape[axis], inner, block_size or 1, bool(block_size))


def _check_block_shape(
    shape: tuple[int, ...], scale_shape: tuple[int, ...], *, axis: int, block_size: int, lenient: bool
) -> None:
    blocks = -(-shape[axis] // block_size)
    wanted = (*shape[:axis], blocks, *shape[axis + 1 :])
    # The reference repeats every scale block_size times and drops what is left over.
    surplus = lenient and len(scale_shape) == len(wanted) and scale_shape[axis] > blocks
    given = (*scale_shape[:axis], blocks, *scale_shape[axis + 1 :]) if surplus else scale_shape
    if given != wanted:
        raise ValueError(
            f"the scale has shape {list(scale_shape)}; for axis {axis} of a tensor of shape {list(shape)} in "
            f"blocks of {block_size} it must be {list(wanted)}."
        )


def view_parameters(values: Array, layout: Layout) -> Array:
    """A parameter array seen in the layout's parameter shape, surplus blocks of the lenient form cut off."""
    outer, blocks, inner = layout.parameter_shape
    if values.size == outer * blocks * inner:
        return values.reshape(outer, blocks, inner)
    return values.reshape(outer, -1, inner)[:, :blocks]


def slabs(layout: Layout, limit: int = SLAB_ELEMENTS) -> Iterator[Slab]:
    """Contiguous pieces of about ``limit`` elements that cover the tensor in order.

    A slab holds whole outer entries, or whole blocks of one outer entry, or a part of one block, so that
    the last, partial block never stands in front of another one unless the slab holds whole outer entries.
    """
    row = layout.size * layout.inner
    if row == 0 or layout.outer == 0:
        return
    everything = slice(0, layout.size), slice(0, layout.inner)
    if row <= limit:
        step = max(1, limit // row)
        for o in range(0, layout.outer, step):
            stop = min(o + step, layout.outer)
            yield Slab(o * row, stop * row, slice(o, stop), *everything)
        return
    for o in range(layout.outer):
        yield from _slabs_of_row(layout, limit, outer=o)


def _slabs_of_row(layout: Layout, limit: int, *, outer: int) -> Iterator[Slab]:
    base, inner, one = outer * layout.size * layout.inner, layout.inner, slice(outer, outer + 1)
    if inner > limit:
        for d in range(layout.size):
            start, entry = base + d * inner, slice(d, d + 1)
            for i in range(0, inner, limit):
                stop = min(i + limit, inner)
                yield Slab(start + i, start + stop, one, entry, slice(i, stop))
        return
    entries = limit // inner
    if entries >= layout.block:
        entries -= entries % layout.block
    for first in range(0, layout.size, layout.block if entries < layout.block else layout.size):
        end = min(first + layout.block, layout.size) if entries < layout.block else layout.size
        for d in range(first, end, entries):
            stop = min(d + entries, end)
            yield Slab(
                base + d * inner,
                base + stop * inner,
                one,
                slice(d, stop),
                slice(0, inner),
            )


def parameters_of(values: Array, layout: Layout, slab: Slab) -> Array:
    """The parameters of one slab, as ``[outer or 1, blocks, inner or 1]``."""
    blocks = slice(slab.size.start // layout.block, -(-slab.size.stop // layout.block))
    if layout.blocked:
        return values[slab.outer, blocks, slab.inner]
    return values[:, blocks]


def expand(values: Array, layout: Layout, slab: Slab, room: Array | None = None) -> Array:
    """The slab's parameters, one for each of its elements, flat; one element where all share it.

    ``room``, of as many elements and the values' type, may be used for the result.
    """
    part = parameters_of(values, layout, slab)
    if part.size == 1:
        return part.reshape(())
    outer = slab.outer.stop - slab.outer.start
    size = slab.size.stop - slab.size.start
    inner = slab.inner.stop - slab.inner.start
    if part.shape[2] == inner == 1 and layout.block == 1 and outer == 1:
        return part.reshape(-1)
    if part.shape[2] == 1 and size % layout.block == 0 and 1 < layout.block * inner < SHORT_RUN:
        rows = np.repeat(part.reshape(-1), layout.block * inner)
        return rows if part.shape[0] == outer else np.tile(rows, outer)
    flat = np.empty(outer * size * inner, part.dtype) if room is None else room
    result = flat.reshape(outer, size, inner)
    whole = size // layout.block
    if whole:
        blocked = result[:, : whole * layout.block].reshape(outer, whole, layout.block, inner)
        np.copyto(blocked, part[:, :whole, None])
    if whole < part.shape[1]:
        result[:, whole * layout.block :] = part[:, whole:]
    return flat
