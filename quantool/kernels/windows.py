"""Where the windows of convolutions and pools lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantool.kernels.dtypes import Array


@dataclass(frozen=True, slots=True)
class Windows:
    """The geometry of a sliding window over the spatial axes, one entry an axis.

    Attributes:
        kernel: window size in elements.
        strides: step between windows.
        dilations: distance between the elements of a window.
        pads_begin: padding in front.
        pads_end: padding behind.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]

    def extent(self, axis: int) -> int:
        """Elements that a window spans along a spatial axis, gaps included."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1


def per_axis(values: Sequence[int] | None, rank: int, *, argument: str, default: int) -> tuple[int, ...]:
    """One positive integer for each spatial axis, or ValueError."""
    found = (default,) * rank if values is None else tuple(int(v) for v in values)
    if len(found) != rank or min(found, default=1) < 1:
        raise ValueError(f"{argument} is {list(found)}; it must hold {rank} positive integers.")
    return found


def resolve_windows(
    sizes: tuple[int, ...],
    kernel: tuple[int, ...],
    *,
    strides: Sequence[int] | None,
    pads: Sequence[int] | None,
    dilations: Sequence[int] | None,
    auto_pad: str = "NOTSET",
) -> Windows:
    """The windows that ONNX Conv lays over spatial axes of these sizes.

    Raises:
        ValueError: a list has the wrong length or sign, auto_pad is unknown, or a window does not fit.
    """
    rank = len(sizes)
    steps = per_axis(strides, rank, argument="strides", default=1)
    gaps = per_axis(dilations, rank, argument="dilations", default=1)
    extents = tuple((k - 1) * d + 1 for k, d in zip(kernel, gaps, strict=True))
    match auto_pad:
        case "NOTSET":
            both = (0,) * (2 * rank) if pads is None else tuple(int(p) for p in pads)
            if len(both) != 2 * rank or min(both, default=0) < 0:
                raise ValueError(f"pads is {list(both)}; it must hold {2 * rank} integers from 0 on.")
            begin, end = both[:rank], both[rank:]
        case "VALID":
            begin = end = (0,) * rank
        case "SAME_UPPER" | "SAME_LOWER":
            total = [max((-(-n // s) - 1) * s + e - n, 0) for n, s, e in zip(sizes, steps, extents, strict=True)]
            small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
            begin, end = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
        case _:
            raise ValueError(f"auto_pad is {auto_pad!r}; allowed: 'NOTSET', 'VALID', 'SAME_UPPER', 'SAME_LOWER'.")
    for size, extent, first, last in zip(sizes, extents, begin, end, strict=True):
        if size + first + last < extent:
            raise ValueError(f"kernel_shape spans {extent} elements, but only {size + first + last} are there.")
    return Windows(kernel, steps, gaps, begin, end)


def window_view(padded: Array, windows: Windows) -> Array:
    """All windows of a padded tensor [N, C, *spatial], as a view [N, C, *out, *kernel]."""
    rank = len(windows.kernel)
    extents = tuple(windows.extent(i) for i in range(rank))
    view = np.lib.stride_tricks.sliding_window_view(padded, extents, axis=tuple(range(2, 2 + rank)))
    steps = [slice(None, None, s) for s in windows.strides]
    gaps = [slice(None, None, d) for d in windows.dilations]
    result: Array = view[(slice(None), slice(None), *steps, *gaps)]
    return result
