"""Combine each slab with its scale or zero point in the form that costs least."""

from __future__ import annotations

import numpy as np

from quantool.kernels.dtypes import Array
from quantool.kernels.granularity import Layout, Slab, expand, parameters_of

# From this run length on, a broadcast operand costs less than one expanded to every element.
BROADCAST_RUN = 1024

# Elements of a pattern that repeats along a slab: 64 KB of float32, which the nearest caches keep.
TILE_ELEMENTS = 1 << 14


class ParameterSource:
    """The parameters of a tensor, slab by slab; ``values`` has the layout's parameter shape.

    Long runs of one axis are broadcast. Per-axis parameters repeat for every outer entry: a few entries are expanded
    once, and the slabs are seen as rows of that length. All others are expanded slab by slab. One source serves one
    thread.
    """

    __slots__ = ("_layout", "_repeats", "_room", "_scalar", "_tile", "_values", "dtype")

    def __init__(self, values: Array, layout: Layout) -> None:
        self.dtype = values.dtype
        self._values = values
        self._layout = layout
        self._scalar = values.reshape(()) if values.size == 1 else None
        self._repeats = layout.outer > 1 and not layout.blocked
        self._tile: Array | None = None
        self._room: Array | None = None

    def flat(self, slab: Slab) -> Array:
        """One parameter for each element of the slab, or one 0-d array for all of them."""
        return expand(self._values, self._layout, slab) if self._scalar is None else self._scalar

    def apply(self, operation: np.ufunc, values: Array, slab: Slab, out: Array) -> None:
        """Write ``operation(values, parameters)`` into ``out``, both flat; they may be the same array."""
        if self._scalar is not None:
            operation(values, self._scalar, out)
        elif self._layout.inner >= BROADCAST_RUN and self._whole_blocks(slab):
            self._apply_runs(operation, values, slab, out)
        elif self._repeats and slab.size.stop - slab.size.start == self._layout.size:
            self._apply_tile(operation, values, slab, out)
        else:
            room = self._room_for(out) if values is out else out
            operation(values, expand(self._values, self._layout, slab, room), out)

    def _whole_blocks(self, slab: Slab) -> bool:
        size = slab.size.stop - slab.size.start
        return bool(size <= self._layout.block or size % self._layout.block == 0)

    def _apply_runs(self, operation: np.ufunc, values: Array, slab: Slab, out: Array) -> None:
        part = parameters_of(self._values, self._layout, slab)
        outer, inner = slab.outer.stop - slab.outer.start, slab.inner.stop - slab.inner.start
        shape = (outer, part.shape[1], -1, inner)
        operation(values.reshape(shape), part[:, :, None], out.reshape(shape))

    def _apply_tile(self, operation: np.ufunc, values: Array, slab: Slab, out: Array) -> None:
        if self._tile is None:
            row = self._layout.size * self._layout.inner
            rows = min(max(1, TILE_ELEMENTS // row), slab.outer.stop - slab.outer.start)
            few = slab._replace(start=0, stop=rows * row, outer=slice(0, rows))
            self._tile = expand(self._values, self._layout, few)
        tile = self._tile
        rest = values.size % tile.size
        body, shape = values.size - rest, (-1, tile.size)
        if body:
            operation(values[:body].reshape(shape), tile, out[:body].reshape(shape))
        if rest:
            operation(values[body:], tile[:rest], out[body:])

    def _room_for(self, out: Array) -> Array:
        if self._room is None or self._room.size < out.size:
            self._room = np.empty(out.size, self._values.dtype)
        return self._room[: out.size]
