"""The range of least squared error, isolated outliers left out.

Shin, Hwang and Sung, Fixed-point performance analysis of recurrent neural networks, arXiv:1512.01322,
equation 2, states the objective; the search is exhaustive on a coarse grid of ranges, then local.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from calibrators.distribution import Distribution, without_isolated
from calibrators.squared_error import FastError, exact_error, realize
from calibrators.statistic import Statistic, range_between, spread_of
from quantool.schema import Grid, Range

Float64 = npt.NDArray[np.float64]

# The first search covers ranges down to 2^-16 of the extrema.
_OCTAVES = 16.0
# Half widths of the local searches in octaves, and whether they use the exact error.
_LOCAL = ((0.5, False), (0.125, False), (0.0625, True), (0.03125, True))
_FAST_POINTS, _EXACT_POINTS = 9, 5


def estimate_mse(state: Statistic, grid: Grid) -> Range:
    """The range that loses least: rounding inside plus clipping outside, squared and summed.

    An asymmetric range keeps an end at zero where the data have one sign. A symmetric one is (-c, c). Of the
    isolated outliers that were left out, the range says the number.

    Raises:
        QuantoolError: the statistic holds no histogram.
    """
    whole = spread_of(state)
    if whole.weight.size == 0:
        return range_between(state, 0.0, 0.0)
    seen, isolated = without_isolated(whole, grid)
    lo, hi = search(seen, grid)
    return range_between(state, lo, hi, isolated=isolated)


def search(seen: Distribution, grid: Grid) -> tuple[float, float]:
    """The ends of the range of least squared error, within the extrema."""
    lowest, highest = min(seen.minimum, 0.0), max(seen.maximum, 0.0)
    if grid.symmetric:
        highest = max(-lowest, highest)
        lowest = -highest
    one_dimensional = grid.symmetric or lowest == 0.0 or highest == 0.0
    fast = FastError.of(seen)
    # Widest first: of equal errors the first wins.
    factors = np.exp2(-np.linspace(0.0, _OCTAVES, 129 if one_dimensional else 33))
    lows, highs = _pairs(lowest * factors, highest * factors, grid=grid)
    lo, hi = _least(fast.of_steps(realize(lows, highs, grid)), lows, highs)
    for width, exact in _LOCAL:
        around = np.exp2(np.linspace(width, -width, _EXACT_POINTS if exact else _FAST_POINTS))
        lows, highs = _pairs(np.maximum(lo * around, lowest), np.minimum(hi * around, highest), grid=grid)
        if exact:
            # The whole range beats its neighbours where values stand on a grid of their own, as pixels do.
            lows, highs = np.append(lowest, lows), np.append(highest, highs)
        steps = realize(lows, highs, grid)
        lo, hi = _least(exact_error(seen, steps) if exact else fast.of_steps(steps), lows, highs)
    return lo, hi


def _pairs(lows: Float64, highs: Float64, *, grid: Grid) -> tuple[Float64, Float64]:
    """Every low end with every high end, or the two of one index where the grid is symmetric."""
    if grid.symmetric:
        return lows, highs
    # An end at zero, or several cut at the extreme, need one candidate.
    lows, highs = _distinct(lows), _distinct(highs)
    return np.repeat(lows, highs.size), np.tile(highs, lows.size)


def _distinct(ends: Float64) -> Float64:
    """Equal neighbours once, the order kept."""
    kept: Float64 = ends[np.append(True, ends[1:] != ends[:-1])]
    return kept


def _least(errors: Float64, lows: Float64, highs: Float64) -> tuple[float, float]:
    best = int(np.argmin(errors))
    return float(lows[best]), float(highs[best])
