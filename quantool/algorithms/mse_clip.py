"""Clip the range of each block where that lowers its squared error: no data, or a weight for each error.

min over r of sum_j h_j (w_j - s (q_j - z))^2 with s = r s_max: the search of Choukroun, Kravchik, Yang, Kisilev,
"Low-bit Quantization of Neural Networks for Efficient Inference", arXiv:1902.06822, equation 1, on a grid of ratios for
each block. s_max uses both ends of the grid; rounding to nearest, which may use one only, is always a candidate.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from quantool.algorithms.blocks import SMALLEST_SCALE, Float32, Int32, bounds, middle_of, nearest_steps, widest_steps
from quantool.schema import Grid

#: one ratio beside rounding to nearest has most of the gain: 0.8 of 1.0 dB for 4 bits and blocks of 32 normal weights
QUICK, QUICK_OF_FEW_LEVELS = (0.94,), (0.75, 0.55)
#: grids with fewer codes than this clip more
FEW_LEVELS = 8
RATIOS = (1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.79, 0.75, 0.7, 0.65, 0.6, 0.5)


def clipped(
    values: Float32, grid: Grid, *, importance: Float32 | None = None, ratios: Iterable[float] = RATIOS
) -> tuple[Float32, Int32]:
    """Scale and zero point of each block, never of larger error than those of rounding to nearest.

    values: float32[m, n, i], blocks along the middle axis; importance: like it, or None. Returns float32[m, i] and
    int32[m, i].
    """
    low, high = bounds(values)
    best, zero_point = nearest_steps(low, high, grid)
    widest = widest_steps(low, high, grid) if grid.symmetric else best
    least = squared_error(values, best, zero_point, grid, importance)
    for ratio in ratios:
        scale = np.maximum(widest * np.float32(ratio), np.float32(SMALLEST_SCALE))
        error = squared_error(values, scale, zero_point, grid, importance)
        better = error < least
        best, least = np.where(better, scale, best), np.where(better, error, least)
    return best, zero_point


def squared_error(
    values: Float32, scale: Float32, zero_point: Int32, grid: Grid, importance: Float32 | None = None
) -> Float32:
    """sum_j h_j (w_j - s (q_j - z))^2 of each block with its weights rounded to nearest, float32[m, i].

    values, importance: float32[m, n, i]; scale: float32[m, i]; zero_point: int32[m, i].
    """
    quotient = np.multiply(values, (np.float32(1) / scale)[:, None])
    rounded = np.rint(quotient)
    _clip(rounded, zero_point, grid)
    np.subtract(quotient, rounded, out=quotient)
    np.multiply(quotient, quotient, out=quotient)
    if importance is not None:
        quotient *= importance
    steps = np.add.reduce(quotient, axis=1)
    with np.errstate(over="ignore"):
        error: Float32 = steps * np.square(scale)
    return error


def _clip(codes: Float32, zero_point: Int32, grid: Grid) -> None:
    """Keep codes, counted from their zero points, on the grid, in place."""
    if grid.symmetric:
        middle = middle_of(grid)
        np.clip(codes, np.float32(grid.qmin - middle), np.float32(grid.qmax - middle), out=codes)
    else:
        low, high = ((edge - zero_point)[:, None].astype(np.float32) for edge in (grid.qmin, grid.qmax))
        np.maximum(codes, low, out=codes)
        np.minimum(codes, high, out=codes)
