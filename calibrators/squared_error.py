"""The squared error of quantizing a distribution: fast over many ranges, or exact over a few.

An element x inside the range becomes s * rint(x / s), one outside becomes the nearer end (zero is on the grid).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrators.distribution import Distribution
from quantool.schema import Grid

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Steps:
    """Candidate ranges as the grid realizes them, float64[C] each: scale, and the ends that codes reach."""

    scale: Float64
    lo: Float64
    hi: Float64


def realize(lo: Float64, hi: Float64, grid: Grid) -> Steps:
    """Spread each range lo <= 0 <= hi over a grid, the zero point an integer, as the ONNX formulas do."""
    if grid.symmetric:
        zero = 0 if grid.qmin < 0 else (grid.qmin + grid.qmax + 1) // 2
        scale = np.maximum(-lo, hi) / min(grid.qmax - zero, zero - grid.qmin)
        return Steps(scale, (grid.qmin - zero) * scale, (grid.qmax - zero) * scale)
    scale = (hi - lo) / (grid.qmax - grid.qmin)
    offset = np.rint(-lo / scale)
    return Steps(scale, -offset * scale, (grid.qmax - grid.qmin - offset) * scale)


def exact_error(seen: Distribution, steps: Steps) -> Float64:
    """The summed squared error for each candidate, float64[C], less a constant that all of them share.

    Integrates (x - Q(x))^2 over each interval of even density. Its antiderivative is
    s^3 (r / 12 + e^3 / 3) at x = s (r + e), r = rint(x / s), since a whole step contributes s^3 / 12, and a
    third of the distance's cube beyond an end. What every candidate rounds to zero costs its square always.
    """
    matters = seen.magnitude_high > 0.5 * float(steps.scale.min())
    lower, upper = seen.lower[matters], seen.upper[matters]
    density = seen.weight[matters] / (upper - lower)
    # Neighbours share an end, so that each point is evaluated once, for the change of density there.
    points = np.unique(np.concatenate((lower, upper)))
    change = np.zeros(points.size)
    # Added one by one: a sliver at an extreme may end where its neighbour does.
    np.add.at(change, np.searchsorted(points, upper), density)
    np.subtract.at(change, np.searchsorted(points, lower), density)
    scale = steps.scale[:, None]
    inside = np.minimum(np.maximum(points, steps.lo[:, None]), steps.hi[:, None])
    beyond = points - inside
    inside /= scale
    whole = np.rint(inside)
    inside -= whole
    areas = (whole / 12.0 + inside * inside * inside / 3.0) * (scale * scale * scale)
    areas += beyond * beyond * beyond / 3.0
    result: Float64 = areas @ change
    return result


@dataclass(frozen=True, slots=True)
class OneSide:
    """Moments of the positive elements, for what a positive end clips.

    Attributes:
        low: float64[k], ascending lower ends.
        high: float64[k], upper ends.
        weight: float64[k].
        moments: float64[3, k + 1], sums of 1, x and x^2 over the intervals from i on.
    """

    low: Float64
    high: Float64
    weight: Float64
    moments: Float64

    @classmethod
    def of(cls, seen: Distribution) -> OneSide:
        """The positive side of a distribution."""
        positive = seen.upper > 0.0
        low, high, weight = seen.lower[positive], seen.upper[positive], seen.weight[positive]
        first = 0.5 * weight * (low + high)
        moments = np.zeros((3, weight.size + 1))
        stacked = np.stack((weight, first, _squares(low, high, weight=weight)))
        moments[:, :-1] = np.cumsum(stacked[:, ::-1], axis=1)[:, ::-1]
        return cls(low, high, weight, moments)

    def clipping_error(self, ends: Float64) -> Float64:
        """Summed squared distance of the elements beyond each end, shape of ends >= 0."""
        if self.weight.size == 0:
            return np.zeros(ends.shape)
        first = np.searchsorted(self.low, ends, side="left")
        weights, sums, squares = self.moments[:, first]
        whole = np.maximum(squares - 2.0 * ends * sums + ends * ends * weights, 0.0)
        cut = np.maximum(first - 1, 0)
        length = np.where(first > 0, np.maximum(self.high[cut] - ends, 0.0), 0.0)
        result: Float64 = whole + length**3 / (3.0 * (self.high[cut] - self.low[cut])) * self.weight[cut]
        return result


@dataclass(frozen=True, slots=True)
class FastError:
    """The squared error in constant time a candidate: rounding loses s^2 / 12 where it does not give zero.

    Attributes:
        magnitude: float64[k], ascending farther ends of the intervals.
        weights: float64[k + 1], weight of the i nearest to zero.
        squares: float64[k + 1], their sum of squares.
        positive: what the upper end clips.
        negative: what the lower end clips, mirrored.
    """

    magnitude: Float64
    weights: Float64
    squares: Float64
    positive: OneSide
    negative: OneSide

    @classmethod
    def of(cls, seen: Distribution) -> FastError:
        """Cumulate a distribution once, for any number of candidates."""
        order = np.argsort(seen.magnitude_high, kind="stable")
        low, high, weight = seen.magnitude_low[order], seen.magnitude_high[order], seen.weight[order]
        start = np.zeros(1)
        return cls(
            magnitude=high,
            weights=np.concatenate((start, np.cumsum(weight))),
            squares=np.concatenate((start, np.cumsum(_squares(low, high, weight=weight)))),
            positive=OneSide.of(seen),
            negative=OneSide.of(seen.mirrored()),
        )

    def of_steps(self, steps: Steps) -> Float64:
        """The summed squared error for each candidate, float64[C]."""
        scale = steps.scale
        small = np.searchsorted(self.magnitude, 0.5 * scale, side="right")
        rounded = (self.weights[-1] - self.weights[small]) * scale * scale / 12.0 + self.squares[small]
        clipped = self.positive.clipping_error(steps.hi) + self.negative.clipping_error(-steps.lo)
        result: Float64 = rounded + clipped
        return result


def _squares(low: Float64, high: Float64, *, weight: Float64) -> Float64:
    """The sum of squares in each interval of even density."""
    return weight * (low * low + low * high + high * high) / 3.0
