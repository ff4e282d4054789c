"""Scale and zero point of each block by weighted least squares, the "k-quants" of llama.cpp.

min over s, m of sum_j h_j (w_j - s q_j - m)^2: for given codes the two normal equations, for given s and m the nearest
codes, in turns from several starts (ggml-quants.c of github.com/ggml-org/llama.cpp, make_qkx2_quants and
make_qx_quants). Zero points are integers here, m = -s z, so that z is rounded and s solved once more.
"""

from __future__ import annotations

import numpy as np

from quantool.algorithms.blocks import SMALLEST_SCALE, Float32, Int32, bounds, nearest_steps, summed, widest_steps
from quantool.algorithms.mse_clip import FEW_LEVELS, squared_error
from quantool.schema import Grid

#: where the search starts, as shares of the scale that clips nothing; and how often codes and scales take turns then
STARTS, STARTS_OF_FEW_LEVELS = (1.0, 0.9), (0.8, 0.55)
MORE_STARTS = (1.0, 0.95, 0.9, 0.84, 0.78, 0.7, 0.6, 0.5)
ROUNDS, MORE_ROUNDS = 1, 3


def least_squares(
    values: Float32, grid: Grid, *, importance: Float32 | None = None, thorough: bool = False
) -> tuple[Float32, Int32]:
    """Scale and zero point of each block, never of larger error than those of rounding to nearest.

    values: float32[m, n, i], blocks along the middle axis; importance: like it, or None; thorough: from more starts,
    which takes five times as long for a tenth of a decibel. Returns float32[m, i] and int32[m, i].
    """
    low, high = bounds(values)
    nearest, zero_point = nearest_steps(low, high, grid)
    widest = widest_steps(low, high, grid) if grid.symmetric else nearest
    best, zeros = nearest, zero_point
    least = squared_error(values, best, zeros, grid, importance)
    few = STARTS_OF_FEW_LEVELS if grid.qmax - grid.qmin < FEW_LEVELS else STARTS
    for start in (None, *MORE_STARTS) if thorough else few:
        scale, zero = nearest if start is None else widest * np.float32(start), zero_point
        for _ in range(MORE_ROUNDS if thorough else ROUNDS):
            scale, zero = _solved(values, scale, zero, grid, importance)
        error = squared_error(values, scale, zero, grid, importance)
        better = error < least
        best, zeros = np.where(better, scale, best), np.where(better, zero, zeros)
        least = np.where(better, error, least)
    return best, zeros


def _solved(
    values: Float32, scale: Float32, zero_point: Int32, grid: Grid, importance: Float32 | None
) -> tuple[Float32, Int32]:
    """The scale and zero point of least error for the codes that the given ones round to.

    Everything is counted in steps of the given scale, so that no weight is too large or too small for its square.
    """
    quotient = values * (np.float32(1) / scale)[:, None]
    codes = np.rint(quotient) + zero_point[:, None].astype(np.float32)
    np.clip(codes, np.float32(grid.qmin), np.float32(grid.qmax), out=codes)
    if not grid.symmetric:
        zero_point = _zero_point(quotient, codes, zero_point, grid, importance)
    codes -= zero_point[:, None].astype(np.float32)
    weighted = codes if importance is None else codes * importance
    product, energy = summed(weighted, quotient), summed(weighted, codes)
    factor = np.divide(product, energy, out=np.ones_like(scale), where=(energy > 0) & (product > 0))
    return np.maximum(scale * factor, np.float32(SMALLEST_SCALE)), zero_point


def _zero_point(quotient: Float32, codes: Float32, zero_point: Int32, grid: Grid, importance: Float32 | None) -> Int32:
    """-m / s of the normal equations, rounded onto the grid; the old one where codes are all alike."""
    counts = np.ones((1, 1, 1), np.float32) if importance is None else importance
    weighted = codes * counts
    total = np.add.reduce(np.broadcast_to(counts, codes.shape), axis=1, dtype=np.float64)
    sums, squares = (part.astype(np.float64) for part in (np.add.reduce(weighted, axis=1), summed(weighted, codes)))
    plain, mixed = (part.astype(np.float64) for part in (summed(quotient, counts), summed(weighted, quotient)))
    slope = total * mixed - sums * plain
    offset = squares * plain - sums * mixed
    # s = slope / d and m = offset / d with one determinant d > 0, so that -m / s needs none.
    exact = np.divide(-offset, slope, out=zero_point.astype(np.float64), where=slope > 0)
    found: Int32 = np.clip(np.rint(exact), grid.qmin, grid.qmax).astype(np.int32)
    return found
