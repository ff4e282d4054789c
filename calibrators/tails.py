"""What more data would show beyond the extrema of a few elements.

The excesses over a high threshold follow a generalized Pareto distribution (Pickands, Statistical inference using
extreme order statistics, Annals of Statistics 3(1), 1975, theorem 7); its shape and scale come from their mean and
variance (Hosking and Wallis, Parameter and quantile estimation for the generalized Pareto distribution,
Technometrics 29(3), 1987, section 2): shape = (1 - mean^2 / variance) / 2, scale = mean (1 - shape).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from calibrators.distribution import Distribution, without_isolated
from calibrators.mse import search
from calibrators.statistic import Statistic, range_between, spread_of
from quantool.schema import Grid, Range

Float64 = npt.NDArray[np.float64]

# Intervals that a tail is spread over, and the share of it that they reach to.
_PIECES = 8
_REACH = _PIECES / (_PIECES + 0.5)
# The fewest elements whose excesses say something, and the largest share of all elements that they may be.
_LEAST, _MOST_SHARE = 10.0, 0.25
# As many elements within a step of the maximum stand at an end of the data, such as white pixels.
_CROWD = 3.0
# Heavier tails have no variance that a few elements could tell.
_HEAVIEST = 0.25


def estimate_expected(state: Statistic, grid: Grid, *, covering: bool = False) -> Range:
    """The range that loses least on data that nobody has seen: as `mse`, with what is likely beyond the extrema.

    covering: keep all that was observed inside. Raises QuantoolError where the statistic holds no histogram.
    """
    whole = spread_of(state)
    if whole.weight.size == 0:
        return range_between(state, 0.0, 0.0)
    seen, isolated = without_isolated(whole, grid)
    lo, hi = search(seen if isolated else with_tails(seen, grid), grid)
    if covering:
        lo, hi, isolated = min(lo, whole.minimum), max(hi, whole.maximum), 0.0
    return range_between(state, lo, hi, isolated=isolated)


def with_tails(seen: Distribution, grid: Grid) -> Distribution:
    """Add one element beyond each extreme, where as many elements again would have one on average.

    It is spread over the tail that the largest elements suggest. An end stays where the data end for a reason:
    at zero, at a value that many have (a Clip, a saturated Tanh), or within a step of the grid.
    """
    step = (max(seen.maximum, 0.0) - min(seen.minimum, 0.0)) / (grid.qmax - grid.qmin)
    above, below = _beyond(seen, step), _beyond(seen.mirrored(), step)
    pieces = np.full(_PIECES, 1.0 / _PIECES)
    if above.size:
        seen = replace(
            seen,
            lower=np.append(seen.lower, above[:-1]),
            upper=np.append(seen.upper, above[1:]),
            weight=np.append(seen.weight, pieces),
            maximum=float(above[-1]),
        )
    if below.size:
        ends = -below[::-1]
        seen = replace(
            seen,
            lower=np.append(ends[:-1], seen.lower),
            upper=np.append(ends[1:], seen.upper),
            weight=np.append(pieces, seen.weight),
            minimum=float(ends[0]),
        )
    return seen


def _beyond(seen: Distribution, step: float) -> Float64:
    """float64[pieces + 1], ends of intervals of equal weight beyond the maximum; empty where it is an end."""
    fitted = _excesses(seen)
    if fitted is None:
        return np.empty(0)
    threshold, mean, variance = fitted
    if not (mean > 0.0 and variance > 0.0):
        return np.empty(0)
    shape = min((1.0 - mean * mean / variance) / 2.0, _HEAVIEST)
    # The excesses over a higher threshold, here the maximum, have the same shape and this scale.
    scale = mean * (1.0 - shape) + shape * (seen.maximum - threshold)
    if scale / (1.0 - shape) <= step or _within(seen, step) >= _CROWD:
        return np.empty(0)
    left = 1.0 - np.linspace(0.0, _REACH, _PIECES + 1)
    beyond: Float64 = seen.maximum + scale * (-np.log(left) if shape == 0.0 else (left**-shape - 1.0) / shape)
    return beyond


def _within(seen: Distribution, step: float) -> float:
    """The weight of the elements less than a step below the maximum."""
    share = np.clip((seen.upper - (seen.maximum - step)) / (seen.upper - seen.lower), 0.0, 1.0)
    return float((seen.weight * share).sum())


def _excesses(seen: Distribution) -> tuple[float, float, float] | None:
    """A threshold that few positive elements exceed, and the mean and variance of their excesses."""
    top = min(max(_LEAST, seen.total**0.5), seen.total * _MOST_SHARE)
    above = np.cumsum(seen.weight[::-1])[::-1]
    if not (above.size and above[0] >= top > 0.0):
        return None
    first = int(np.flatnonzero(above >= top)[-1])
    weight, lower, upper = seen.weight[first:].copy(), seen.lower[first:].copy(), seen.upper[first:]
    weight[0] -= above[first] - top
    lower[0] = upper[0] - (upper[0] - lower[0]) * weight[0] / seen.weight[first]
    threshold = float(lower[0])
    if threshold < 0.0:
        return None
    low, high = lower - threshold, upper - threshold
    mean = float((weight * (low + high)).sum()) / (2.0 * top)
    square = float((weight * (low * low + low * high + high * high)).sum()) / (3.0 * top)
    return threshold, mean, square - mean * mean
