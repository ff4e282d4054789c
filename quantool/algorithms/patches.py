"""The rows that a layer multiplies: inputs of a matrix product, patches of a convolution (im2col)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quantool.schema import AnyArray

Float32 = NDArray[np.float32]


def product_rows(x: AnyArray, *, most: int) -> Float32:
    """Rows of the last axis, at even distances. x: float[*S, d]. Returns float32[n, d], n <= most."""
    rows = x.reshape(-1, x.shape[-1])
    return _some(rows, most).astype(np.float32)


def convolution_rows(
    x: AnyArray,
    kernel: Sequence[int],
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    most: int,
) -> Float32:
    """Patches that a convolution multiplies, at even distances of its output positions.

    x: float[N, C, *S]; pads as ONNX Conv-11: begins, then ends. Returns float32[n, C * prod(kernel)] in the order of
    the weight's axes, n <= most; n is 0 where the kernel fits nowhere.
    """
    rank = len(kernel)
    widths = [(0, 0), (0, 0), *((pads[i], pads[i + rank]) for i in range(rank))]
    padded = np.pad(x.astype(np.float32), widths)
    spans = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    if any(size < span for size, span in zip(padded.shape[2:], spans, strict=True)):
        return np.empty((0, x.shape[1] * int(np.prod(kernel))), np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=tuple(range(2, 2 + rank)))
    steps = (
        slice(None),
        slice(None),
        *(slice(None, None, s) for s in strides),
        *(slice(None, None, d) for d in dilations),
    )
    windows = windows[steps]
    positions = (windows.shape[0], *windows.shape[2 : 2 + rank])
    total = int(np.prod(positions))
    chosen = np.unravel_index(np.arange(0, total, max(1, -(-total // most))), positions)
    patches = np.moveaxis(windows, 1, 1 + rank)[chosen]
    return np.ascontiguousarray(patches).reshape(len(chosen[0]), -1)


def patch_means(
    x: AnyArray, kernel: Sequence[int], *, strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> NDArray[np.float64]:
    """The mean of all patches that a convolution multiplies, without laying them out.

    Arguments as :func:`convolution_rows`'s. Returns float64[C * prod(kernel)]; zeros where the kernel fits nowhere.
    """
    rank = len(kernel)
    padded = np.pad(x.astype(np.float32), [(0, 0), (0, 0), *((pads[i], pads[i + rank]) for i in range(rank))])
    found = np.zeros((x.shape[1], *kernel))
    for tap in np.ndindex(*kernel):
        steps = [slice(None), slice(None)]
        for axis, offset in enumerate(tap):
            size = padded.shape[2 + axis]
            span = (kernel[axis] - 1) * dilations[axis] + 1
            if size < span:
                return np.zeros(found.size)
            start = offset * dilations[axis]
            steps.append(slice(start, start + size - span + 1, strides[axis]))
        seen = padded[tuple(steps)]
        found[(slice(None), *tap)] = seen.mean(axis=(0, *range(2, 2 + rank)), dtype=np.float64)
    return found.reshape(-1)


def _some(rows: AnyArray, most: int) -> AnyArray:
    return rows[:: max(1, -(-len(rows) // most))]
