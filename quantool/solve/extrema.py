"""The smallest and largest values of a weight for each of its scales, read once and without a copy of it."""

from __future__ import annotations

import numpy as np

from quantool.schema import AnyArray, FloatArray

#: NumPy reduces rows shorter than this one element at a time: they are turned into columns, this many elements at once
_SHORT, _TURNED = 256, 1 << 16


def extrema(weight: AnyArray, *, axis: int | None, block_size: int) -> tuple[FloatArray, FloatArray]:
    """Minimum and maximum, float32: [] without an axis, [W[axis]] along it, or W with W[axis] / block_size, rounded up.

    weight: float[*W] with elements. A NaN makes both NaN.
    """
    if axis is None:
        return np.asarray(weight.min(), np.float32), np.asarray(weight.max(), np.float32)
    axis %= weight.ndim
    if not block_size:
        others = tuple(i for i in range(weight.ndim) if i != axis)
        return weight.min(axis=others).astype(np.float32), weight.max(axis=others).astype(np.float32)
    whole = weight.shape[axis] // block_size * block_size
    head, tail = np.split(weight, [whole], axis=axis)
    sizes = (block_size, weight.shape[axis] - whole)
    parts = [_of_blocks(part, axis, size) for part, size in zip((head, tail), sizes, strict=True) if part.size]
    lo, hi = zip(*parts, strict=True)
    return np.concatenate(lo, axis=axis), np.concatenate(hi, axis=axis)


def _of_blocks(weight: AnyArray, axis: int, size: int) -> tuple[FloatArray, FloatArray]:
    """Both for whole blocks of ``size`` entries along an axis; numpy reduces fast where further axes follow."""
    blocks = (*weight.shape[:axis], weight.shape[axis] // size)
    if axis < weight.ndim - 1:
        seen = weight.reshape(*blocks, size, *weight.shape[axis + 1 :])
        return seen.min(axis=axis + 1).astype(np.float32), seen.max(axis=axis + 1).astype(np.float32)
    rows = weight.reshape(-1, size)
    if size >= _SHORT:
        return (
            rows.min(axis=1).astype(np.float32).reshape(blocks),
            rows.max(axis=1).astype(np.float32).reshape(blocks),
        )
    lo, hi = np.empty(len(rows), np.float32), np.empty(len(rows), np.float32)
    step = _TURNED // size
    for start in range(0, len(rows), step):
        columns = np.ascontiguousarray(rows[start : start + step].T)
        part = slice(start, start + columns.shape[1])
        lo[part], hi[part] = columns.min(axis=0), columns.max(axis=0)
    return lo.reshape(blocks), hi.reshape(blocks)
