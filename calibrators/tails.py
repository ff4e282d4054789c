"""What more data would show beyond the extrema of a few elements.

The excesses over a high threshold follow a generalized Pareto distribution (Pickands, Statistical inference using
extreme order statistics, Annals of Statistics 3(1), 1975, theorem 7); its shape and scale come from their mean and
variance (Hosking and Wallis, Parameter and quantile estimation for the generalized Pareto distribution,
Technometrics 29(3), 1987, section 2): shape = (1 - mean^2 / variance) / 2, scale = mean (1 - shape).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from calibrators.mse import least_errors
from calibrators.octaves import Octaves
from calibrators.statistic import Statistic
from quantool.schema import Grid, Range

Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

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
    """The range of one state, as :func:`estimate_expected_many` gives it."""
    return estimate_expected_many([state], grid, covering=[covering])[0]


def estimate_expected_many(states: Sequence[Statistic], grid: Grid, *, covering: Sequence[bool]) -> list[Range]:
    """The range of each state that loses least on data that nobody has seen.

    As `mse` has it, with what is likely beyond the extrema. A covering range keeps all inside that was observed.

    Raises:
        QuantoolError: a statistic holds no histogram.
    """
    found = least_errors(states, grid, tail_ends=tail_ends)
    return [_covering(one) if covers else one for one, covers in zip(found, covering, strict=True)]


def _covering(found: Range) -> Range:
    """The range widened to all that was observed."""
    return replace(
        found,
        lo=min(found.lo, found.observed_min),
        hi=max(found.hi, found.observed_max),
        clipped_share=0.0,
        outliers=0,
    )


def tail_ends(seen: Octaves, grid: Grid, allowed: Bool) -> Float64:
    """Spread one element beyond each extreme, where as many elements again would have one on average.

    float64[9, 2, T]: ascending ends of 8 intervals of equal weight, the first at the extreme, that follow the
    tail that the largest elements suggest. All are the extreme where the data end for a reason: at zero, at a value
    that many have (a Clip, a saturated Tanh), or within a step of the grid; and where a tensor is not allowed tails.
    """
    extreme = seen.outermost.extreme
    step = extreme.sum(axis=0) / (grid.qmax - grid.qmin)
    threshold, mean, variance = _excesses(seen)
    open_ended = allowed & (mean > 0.0) & (variance > 0.0)
    shape = np.minimum((1.0 - mean * mean / np.where(open_ended, variance, 1.0)) / 2.0, _HEAVIEST)
    # The excesses over a higher threshold, here the extreme, have the same shape and this scale.
    scale = mean * (1.0 - shape) + shape * (extreme - threshold)
    # Each side's elements less than a step below its extreme.
    crowd = seen.weight_beyond(np.maximum(extreme - step, 0.0))
    open_ended &= (scale > step * (1.0 - shape)) & (crowd < _CROWD)
    shape, scale = np.where(open_ended, shape, 1.0), np.where(open_ended, scale, 0.0)
    left = np.log1p(-np.linspace(0.0, _REACH, _PIECES + 1))[:, None, None]
    # (left^-shape - 1) / shape, or -log(left) in the limit.
    level = np.where(shape == 0.0, 1.0, shape)
    beyond: Float64 = extreme + scale * np.where(shape == 0.0, -left, np.expm1(-level * left) / level)
    return beyond


def _excesses(seen: Octaves) -> tuple[Float64, Float64, Float64]:
    """A threshold that few elements of each side exceed, and the mean and variance of their excesses.

    float64[2, T] each; the mean is 0 where a side has too few elements.
    """
    outer = seen.outermost
    top = np.minimum(np.maximum(_LEAST, np.sqrt(seen.total)), seen.total * _MOST_SHARE)
    at_extreme = outer.even + outer.piled
    found, following = seen.buckets_of_weight(top - at_extreme)
    weight, first, square = (seen.sides.read(following, which) for which in range(3))
    # The bucket that crosses the threshold, as an interval of its own weight, mean and variance.
    own, own_first, own_square = (seen.sides.read(found, which) - s for which, s in enumerate((weight, first, square)))
    enough = (own > 0.0) & (at_extreme < top)
    own = np.where(enough, own, 1.0)
    middle = own_first / own
    half = np.sqrt(np.maximum(3.0 * (own_square / own - middle * middle), 0.0))
    part = np.clip((top - at_extreme - weight) / own, 0.0, 1.0)
    upper = middle + half
    threshold = upper - 2.0 * half * part
    near, far, last = outer.inner - threshold, outer.extreme - threshold, upper - threshold
    excess = first - threshold * weight + part * own * last / 2.0
    excess += outer.even * (near + far) / 2.0 + outer.piled * far
    squares = square - threshold * (2.0 * first - threshold * weight) + part * own * last * last / 3.0
    squares += outer.even * (near * near + near * far + far * far) / 3.0 + outer.piled * far * far
    mean = np.where(enough, excess / top, 0.0)
    return threshold, mean, squares / top - mean * mean
