"""The blocks of a weight, each with a scale and a zero point of its own, laid out so that NumPy searches many at once.

A search sees float32[m, n, i]: m * i blocks of n weights that lie along the middle axis. Slabs of them stay in cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from quantool.schema import AnyArray, Grid

Float32: TypeAlias = NDArray[np.float32]
Int32: TypeAlias = NDArray[np.int32]
#: (weights float32[m, n, i], importance of each or None) -> scale float32[m, i], zero point int32[m, i]
Search: TypeAlias = Callable[[Float32, Float32 | None], tuple[Float32, Int32]]

#: elements that are searched at a time: a few arrays of them fit a second-level cache
SLAB = 1 << 16
#: blocks along the last axis are transposed up to this length, because NumPy reduces short rows slowly
SHORT = 128
#: scales below this are raised, so that the product of two stays a normal float32
SMALLEST_SCALE = 2.0**-100


def over_blocks(
    weight: AnyArray, search: Search, *, axis: int | None, block_size: int = 0, importance: AnyArray | None = None
) -> tuple[Float32, Int32]:
    """Scale and zero point of every block, as QuantParams holds them.

    weight: float[*W]; axis None: one block, block_size 0: one for each entry of the axis, else blocks along it, the
    last one maybe shorter. importance: float, broadcast to W, how much an error counts. Memory: one slab beside the
    result. The scale of a block with NaN or infinity is not finite. Returns float32[*S] and int32[*S].
    """
    weights = None if importance is None else np.broadcast_to(importance, weight.shape)
    shape: tuple[int, ...] = (1, 1)
    final: tuple[int, ...] = ()
    if axis is None:
        pieces = _rows(weight.reshape(1, 1, -1), weights)
    elif block_size:
        pieces, shape, final = _along(weight, weights, axis % weight.ndim, block_size)
    else:
        pieces, shape, final = _channels(weight, weights, axis % weight.ndim)
    scale, zero_point = np.empty(shape, np.float32), np.empty(shape, np.int32)
    # What is not finite gets a scale that is not, which the caller refuses.
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for place, values, counts in pieces:
            found = search(values, counts)
            target = scale[place].shape
            scale[place], zero_point[place] = (part.reshape(target) for part in found)
    if not zero_point.any():
        # Zeros of a large weight need no memory.
        zero_point = np.broadcast_to(np.zeros((), np.int32), zero_point.shape)
    return scale.reshape(final), zero_point.reshape(final)


Piece: TypeAlias = tuple[tuple[slice | int, ...], Float32, Float32 | None]


def _along(
    weight: AnyArray, weights: AnyArray | None, axis: int, block_size: int
) -> tuple[Iterator[Piece], tuple[int, ...], tuple[int, ...]]:
    before, size, after = math.prod(weight.shape[:axis]), weight.shape[axis], math.prod(weight.shape[axis + 1 :])
    flat = (before, size, after)
    whole, count = size // block_size, -(-size // block_size)
    final = (*weight.shape[:axis], count, *weight.shape[axis + 1 :])
    values, counts = weight.reshape(flat), None if weights is None else weights.reshape(flat)

    def pieces() -> Iterator[Piece]:
        for first, last, length in ((0, whole, block_size), (whole, count, size - whole * block_size)):
            if last == first:
                continue
            cut = slice(first * block_size, first * block_size + (last - first) * length)
            form = (before, last - first, length, after)
            part = values[:, cut].reshape(form)
            share = None if counts is None else counts[:, cut].reshape(form)
            yield from _short_rows(part, share, first) if after == 1 else _columns(part, share, first)

    return pieces(), (before, count, after), final


def _short_rows(values: AnyArray, counts: AnyArray | None, first: int) -> Iterator[Piece]:
    """Blocks along the last axis. values: float[rows, blocks, n, 1]."""
    rows, blocks, length, _ = values.shape
    step = max(1, SLAB // (blocks * length))
    for start in range(0, rows, step):
        chosen = slice(start, min(start + step, rows))
        yield (
            (chosen, slice(first, first + blocks)),
            _laid(values[chosen], length),
            None if counts is None else _laid(counts[chosen], length),
        )


def _columns(values: AnyArray, counts: AnyArray | None, first: int) -> Iterator[Piece]:
    """Blocks along an axis before others, as they lie. values: float[p, blocks, n, columns]."""
    outer, blocks, length, columns = values.shape
    wide = min(columns, max(1, SLAB // length))
    step = max(1, SLAB // (length * wide))
    for index in range(outer):
        for start in range(0, blocks, step):
            chosen = slice(start, min(start + step, blocks))
            for column in range(0, columns, wide):
                across = slice(column, column + wide)
                yield (
                    (index, slice(first + chosen.start, first + chosen.stop), across),
                    np.ascontiguousarray(values[index, chosen, :, across], np.float32),
                    None if counts is None else np.ascontiguousarray(counts[index, chosen, :, across], np.float32),
                )


def _channels(
    weight: AnyArray, weights: AnyArray | None, axis: int
) -> tuple[Iterator[Piece], tuple[int, ...], tuple[int, ...]]:
    before, count, after = math.prod(weight.shape[:axis]), weight.shape[axis], math.prod(weight.shape[axis + 1 :])
    flat = (before, count, after)
    values, shares = weight.reshape(flat), None if weights is None else weights.reshape(flat)
    final = (count,)
    if after == 1 and before > 1:
        # [inputs, channels]: one row of blocks as they lie
        form = (1, 1, before, count)
        return _columns(values.reshape(form), None if shares is None else shares.reshape(form), 0), (1, 1, count), final
    return _rows(values, shares), (count, 1), final


def _rows(values: AnyArray, counts: AnyArray | None) -> Iterator[Piece]:
    """One block a channel. values: float[before, channels, after]."""
    before, channels, after = values.shape
    if counts is not None:
        counts = counts.reshape(values.shape)
    length = before * after
    step = max(1, SLAB // max(length, 1))
    for start in range(0, channels, step):
        chosen = slice(start, min(start + step, channels))
        yield (
            (chosen,),
            _laid(values[:, chosen].swapaxes(0, 1), length),
            None if counts is None else _laid(counts[:, chosen].swapaxes(0, 1), length),
        )


def _laid(values: AnyArray, length: int) -> Float32:
    """Rows of blocks as a search takes them, the order of blocks kept. In C order, which sums depend on."""
    rows = values.reshape(-1, length)
    if length > SHORT:
        return np.ascontiguousarray(rows, np.float32)[:, :, None]
    return np.ascontiguousarray(rows.T, np.float32)[None]


def spread(parameter: AnyArray, shape: tuple[int, ...], *, axis: int | None, block_size: int = 0) -> AnyArray:
    """A parameter of each block at each of its weights. parameter: [*S]; returns [*shape], a view where it can be."""
    if axis is None or parameter.ndim == 0:
        return np.broadcast_to(parameter.reshape(()), shape)
    axis %= len(shape)
    if block_size:
        return np.repeat(parameter, block_size, axis=axis)[(slice(None),) * axis + (slice(shape[axis]),)]
    return np.broadcast_to(parameter.reshape((-1,) + (1,) * (len(shape) - axis - 1)), shape)


def bounds(values: Float32) -> tuple[Float32, Float32]:
    """The smallest and the largest of each block and zero, float32[m, i]. values: float32[m, n, i]."""
    nothing = np.float32(0)
    return (
        np.minimum(np.minimum.reduce(values, axis=1), nothing),
        np.maximum(np.maximum.reduce(values, axis=1), nothing),
    )


def nearest_steps(low: Float32, high: Float32, grid: Grid) -> tuple[Float32, Int32]:
    """What rounding to nearest takes: float32[m, i] and int32[m, i], the formulas "onnx" and "onnx-symmetric".

    They are written out for speed: what `formulas.compute` checks beside, bounds() guarantees.
    """
    if not grid.symmetric:
        scale = _positive((high - low) / np.float32(grid.qmax - grid.qmin))
        exact = np.clip(np.float32(grid.qmin) - low / scale, np.float32(grid.qmin), np.float32(grid.qmax))
        return scale, np.rint(exact).astype(np.int32)
    middle = middle_of(grid)
    largest = np.maximum(-low, high)
    steps = np.float32(min(grid.qmax - middle, middle - grid.qmin))
    return _positive((largest / steps).astype(np.float32)), np.full(low.shape, middle, np.int32)


def widest_steps(low: Float32, high: Float32, grid: Grid) -> Float32:
    """The least scale of a symmetric grid at which nothing is clipped, float32[m, i]: both of its ends count.

    An int4 grid reaches from -8 to 7, so that a block whose largest weight is negative takes 7/8 of the usual scale.
    """
    middle = middle_of(grid)
    return _positive(
        np.maximum(low * np.float32(1 / (grid.qmin - middle)), high * np.float32(1 / (grid.qmax - middle)))
    )


def summed(a: Float32, b: Float32) -> Float32:
    """The sum of products in each block, float32[m, i]: the same whatever blocks stand beside. a, b: [m, n, i]."""
    found: Float32 = np.add.reduce(np.multiply(a, b), axis=1)
    return found


def middle_of(grid: Grid) -> int:
    """The zero point of a symmetric grid: 0, or the middle of an unsigned one."""
    return 0 if grid.qmin < 0 else (grid.qmin + grid.qmax + 1) // 2


def _positive(scale: Float32) -> Float32:
    """Scales that can be divided by: 1 where a block is all zero."""
    scale = np.where(scale == 0, np.float32(1), scale)
    return np.maximum(scale, np.float32(SMALLEST_SCALE), out=scale)
