"""Hand each slab its scale or zero point in the form that costs least."""

from __future__ import annotations

from quantool.kernels.dtypes import Array
from quantool.kernels.granularity import Layout, Slab, expand, parameters_of

# From this run length on, a (rows, 1) operand costs less than one expanded to every element.
BROADCAST_RUN = 1024


class ParameterSource:
    """The parameters of a tensor, slab by slab; ``values`` has the layout's parameter shape.

    Per-axis parameters repeat for every outer entry: they are expanded once, for the first and largest
    slab, and the same vector serves the others. One source serves one thread.
    """

    __slots__ = ("_layout", "_repeats", "_rows", "_scalar", "_tile", "_values")

    def __init__(self, values: Array, layout: Layout) -> None:
        self._values = values
        self._layout = layout
        self._scalar = values.reshape(()) if values.size == 1 else None
        self._repeats = layout.outer > 1 and not layout.blocked
        self._rows = self._scalar is None and not layout.blocked and layout.inner >= BROADCAST_RUN
        self._tile: Array | None = None

    def flat(self, slab: Slab) -> Array:
        """One parameter for each element of the slab, or one 0-d array for all of them."""
        if self._scalar is not None:
            return self._scalar
        whole = slab.size.stop - slab.size.start == self._layout.size
        if not (self._repeats and whole):
            return expand(self._values, self._layout, slab)
        if self._tile is None or self._tile.size < slab.stop - slab.start:
            self._tile = expand(self._values, self._layout, slab)
        return self._tile if self._tile.ndim == 0 else self._tile[: slab.stop - slab.start]

    def rows(self, slab: Slab) -> Array | None:
        """The parameters as ``[rows, 1]`` where the slab consists of long runs of one parameter each."""
        if not self._rows or slab.outer.stop - slab.outer.start != 1:
            return None
        part = parameters_of(self._values, self._layout, slab)
        return part.reshape(-1, 1) if part.size > 1 else None
