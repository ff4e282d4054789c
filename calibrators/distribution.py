"""A statistic as estimators read it: weights on intervals, zeros apart, and questions about its tails."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from calibrators.buckets import BUCKETS, NEGATIVE_ZERO, POSITIVE_ZERO, edges
from calibrators.histogram import Histogram
from quantool.schema import Grid

Float64 = npt.NDArray[np.float64]

# The ends of all buckets: bucket k lies between those of k and k + 1.
EDGES = edges(np.arange(BUCKETS + 1))
# Intervals at least this wide, against their position: a density stays finite, and integrals keep 30 bits.
LEAST_WIDTH = 2.0**-20
# (levels that the elements below an outlier would be left with at most, share of the elements) for which
# outliers count as isolated. The second row is for tensors that would round to nothing but zero.
_ISOLATED = ((16.0, 2e-5), (0.5, 1e-3))
MOST_ISOLATED = max(most for _, most in _ISOLATED)
LEAST_GAP = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The non-zero elements as weights spread evenly over disjoint intervals, in ascending order.

    Attributes:
        lower: float64[k], lower ends.
        upper: float64[k], upper ends.
        weight: float64[k], number of elements; below 1 for an extreme that sampling left out.
        zero_weight: number of zeros.
        minimum: exact smallest element.
        maximum: exact largest element.
    """

    lower: Float64
    upper: Float64
    weight: Float64
    zero_weight: float
    minimum: float
    maximum: float

    @property
    def total(self) -> float:
        """Number of elements, zeros included."""
        return float(self.weight.sum()) + self.zero_weight

    @property
    def magnitude_low(self) -> Float64:
        """float64[k], the end of each interval that is nearer to zero, as a distance."""
        return np.minimum(np.abs(self.lower), np.abs(self.upper))

    @property
    def magnitude_high(self) -> Float64:
        """float64[k], the end of each interval that is farther from zero, as a distance."""
        return np.maximum(np.abs(self.lower), np.abs(self.upper))

    def mirrored(self) -> Distribution:
        """The distribution of -x."""
        return Distribution(
            lower=-self.upper[::-1],
            upper=-self.lower[::-1],
            weight=self.weight[::-1],
            zero_weight=self.zero_weight,
            minimum=-self.maximum,
            maximum=-self.minimum,
        )

    def extended(self, below: Float64, above: Float64) -> Distribution:
        """The distribution with one more element beyond each extreme.

        float64[J] each: ascending distances from zero, the ends of intervals of equal weight; none where all are equal.
        """
        seen = self
        if below[-1] > below[0]:
            mirrored = seen.mirrored()._extended(below)
            seen = mirrored.mirrored()
        return seen._extended(above) if above[-1] > above[0] else seen

    def _extended(self, above: Float64) -> Distribution:
        pieces = above.size - 1
        return replace(
            self,
            lower=np.append(self.lower, above[:-1]),
            upper=np.append(self.upper, above[1:]),
            weight=np.append(self.weight, np.full(pieces, 1.0 / pieces)),
            maximum=float(above[-1]),
        )

    def piled(self) -> Distribution:
        """The distribution with what its neighbour's density does not suggest of an outermost bucket at the extreme."""
        return self._piled().mirrored()._piled().mirrored()

    def _piled(self) -> Distribution:
        if self.weight.size < 2 or self.upper[-1] <= 0.0:
            return self
        (before, low), (start, end) = self.lower[-2:], self.upper[-2:]
        cut = end * (1.0 - LEAST_WIDTH)
        density = self.weight[-2] / (start - before) if start == low else 0.0
        even = min(density * (end - low), max(self.weight[-1] - 1.0, 0.0))
        if low >= cut:
            return self
        return replace(
            self,
            lower=np.append(self.lower, cut),
            upper=np.append(self.upper[:-1], (cut, end)),
            weight=np.append(self.weight[:-1], (even, self.weight[-1] - even)),
        )

    def share_outside(self, lo: float, hi: float) -> float:
        """The fraction of the elements, zeros included, outside [lo, hi]; the range holds zero."""
        if self.total == 0.0 or (lo <= self.minimum and hi >= self.maximum):
            return 0.0
        width = self.upper - self.lower
        below = np.clip((lo - self.lower) / width, 0.0, 1.0)
        above = np.clip((self.upper - hi) / width, 0.0, 1.0)
        return float((self.weight * (below + above)).sum()) / self.total

    def quantile(self, fraction: float) -> float:
        """The element of rank fraction * (n - 1), zeros included, interpolated as np.quantile does."""
        lower, upper, weight = self.lower, self.upper, self.weight
        if self.zero_weight > 0.0:
            at = int(np.searchsorted(lower, 0.0))
            lower, upper = np.insert(lower, at, 0.0), np.insert(upper, at, 0.0)
            weight = np.insert(weight, at, self.zero_weight)
        ends = np.cumsum(weight)
        rank = fraction * (float(ends[-1]) - 1.0)
        below = math.floor(rank)
        values = []
        for whole in (float(below), float(below + 1)):
            index = min(int(np.searchsorted(ends, whole, side="right")), ends.size - 1)
            inside = (whole + 0.5 - (ends[index] - weight[index])) / weight[index]
            values.append(lower[index] + min(max(inside, 0.0), 1.0) * (upper[index] - lower[index]))
        return float(values[0] + (rank - below) * (values[1] - values[0]))


def distribution(statistic: Histogram) -> Distribution:
    """Read a histogram; an extreme that sampling left out is added with its expected weight."""
    low, high = statistic.extrema.minimum, statistic.extrema.maximum
    kept = (statistic.keys != NEGATIVE_ZERO) & (statistic.keys != POSITIVE_ZERO)
    keys = statistic.keys[kept].astype(np.int64)
    lower, upper = EDGES[keys], EDGES[keys + 1]
    weight = statistic.counts[kept].astype(np.float64)
    share = statistic.counted / max(statistic.extrema.count, 1)
    if low < 0.0 and not (lower.size and lower[0] <= low):
        lower, upper, weight = np.append(low, lower), np.append(low, upper), np.append(share, weight)
    if high > 0.0 and not (upper.size and upper[-1] >= high):
        lower, upper, weight = np.append(lower, high), np.append(upper, high), np.append(weight, share)
    if weight.size:
        _trim(lower, upper, low=low, high=high)
    return Distribution(
        lower=lower, upper=upper, weight=weight, zero_weight=float(statistic.zeros), minimum=low, maximum=high
    )


def _trim(lower: Float64, upper: Float64, *, low: float, high: float) -> None:
    """Keep the outermost intervals within the extrema; a sliver grows towards zero, so that none leaves them."""
    lower[0], upper[-1] = max(lower[0], low), min(upper[-1], high)
    for at in (0, -1):
        if lower[at] > 0.0:
            lower[at] = min(lower[at], upper[at] * (1.0 - LEAST_WIDTH))
        elif upper[at] < 0.0:
            upper[at] = max(upper[at], lower[at] * (1.0 - LEAST_WIDTH))


def without_isolated(whole: Histogram, grid: Grid) -> tuple[Histogram, float]:
    """Leave out elements so few and so far from the rest that they are errors rather than information.

    The squared error of one 1e6 among half a million normal values is least at a range of 6e5, which rounds
    every other element to zero. Elements are left out where the next smaller magnitude would keep only a
    few of the grid's levels, and where their share is tiny. Returns the rest, and the weight left out.
    """
    seen = distribution(whole)
    order = np.argsort(seen.magnitude_high, kind="stable")
    low, high = seen.magnitude_low[order], seen.magnitude_high[order]
    beyond = np.cumsum(seen.weight[order][::-1])[::-1]
    if order.size < 2:
        return whole, 0.0
    gap, share = low[1:] / high[:-1], beyond[1:] / beyond[0]
    levels = grid.qmax - grid.qmin
    isolated = np.zeros(gap.size, bool)
    for left, most in _ISOLATED:
        isolated |= (gap >= max(LEAST_GAP, levels / left)) & (share <= most)
    if not isolated.any():
        return whole, 0.0
    first = int(np.argmax(isolated))
    return _within(whole, float(high[first])), float(beyond[first + 1])


def _within(whole: Histogram, bound: float) -> Histogram:
    """The elements of magnitudes up to a bound that no bucket holds inside."""
    near = np.minimum(np.abs(EDGES[whole.keys]), np.abs(EDGES[whole.keys.astype(np.int64) + 1]))
    kept = near < bound
    keys = whole.keys[kept]
    lowest, highest = EDGES[int(keys[0])], EDGES[int(keys[-1]) + 1]
    low, high = whole.extrema.minimum, whole.extrema.maximum
    extrema = replace(
        whole.extrema,
        minimum=low if low >= -bound else min(float(lowest), 0.0),
        maximum=high if high <= bound else max(float(highest), 0.0),
    )
    return replace(whole, extrema=extrema, keys=keys, counts=whole.counts[kept])
