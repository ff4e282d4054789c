"""The squared error of quantizing: fast over many ranges of many tensors, or exact over a few of one.

An element x inside the range becomes s * rint(x / s), one outside becomes the nearer end (zero is on the grid).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrators.distribution import Distribution
from calibrators.octaves import Octaves
from quantool.schema import Grid

Float64 = npt.NDArray[np.float64]

# Codes of each side around which the exact error is cheap.
_NEAR = 12
# Elements that pile up are so many times more than an even density lets expect by chance.
_CROWD = 3.0


@dataclass(frozen=True, slots=True)
class Steps:
    """Candidate ranges as the grid realizes them, float64[*S] each: scale, and the ends that codes reach."""

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

    Integrates (x - Q(x))^2 over each interval of even density. What every candidate rounds to zero costs its square
    always.
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
    inside = np.minimum(np.maximum(points, steps.lo[:, None]), steps.hi[:, None])
    areas = _antiderivative(inside, points - inside, steps.scale[:, None])
    result: Float64 = areas @ change
    return result


def _antiderivative(inside: Float64, beyond: Float64, scale: Float64) -> Float64:
    """Of (x - Q(x))^2 over x, where `inside` is the point of the range nearest to x and `beyond` the rest of x.

    It is s^3 (r / 12 + e^3 / 3) at x = s (r + e), r = rint(x / s), since a whole step contributes s^3 / 12, and a
    third of the distance's cube beyond an end. Overwrites `inside`.
    """
    inside /= scale
    whole = np.rint(inside)
    inside -= whole
    areas: Float64 = (whole / 12.0 + inside * inside * inside / 3.0) * (scale * scale * scale)
    areas += beyond * beyond * beyond / 3.0
    return areas


@dataclass(frozen=True, slots=True)
class FastError:
    """The squared error of T tensors in constant time a candidate: rounding loses s^2 / 12 where it does not give zero.

    What stands at the extremes, where data that were clipped pile up, is exact.

    Attributes:
        seen: the elements.
        tails: float64[J, S, T], ascending ends of intervals beyond the extremes, the first at the extreme, or J = 0.
        change: float64[J, S, T], the density below each less that above.
    """

    seen: Octaves
    tails: Float64
    change: Float64

    @classmethod
    def of(cls, seen: Octaves, tails: Float64) -> FastError:
        """Prepare a search: `tails` are the ends of intervals that hold one element together."""
        width = np.diff(tails, axis=0)
        share = 1.0 / max(width.shape[0], 1)
        density = np.where(width > 0.0, share / np.where(width > 0.0, width, 1.0), 0.0)
        none = np.zeros((1, *tails.shape[1:]))
        return cls(seen, tails, np.concatenate((none, density)) - np.concatenate((density, none)))

    def coarse(self, ends: Float64, scale: Float64, pairs: npt.NDArray[np.intp]) -> Float64:
        """The error, float64[T, C], for ends float64[S, T, N] that no integer zero point moves.

        pairs: intp[S, C], the ends of each candidate. scale: float64[T, C]. All is approximate here.
        """
        clipped = self._clipped(ends)
        clipped += self.tails_clipped(ends)
        clipped += self._outermost_clipped(ends)
        result = self._rounded(scale)
        for side, index in zip(clipped, pairs, strict=True):
            result += side[:, index]
        return result

    def of_steps(self, ends: Float64, scale: Float64) -> Float64:
        """The summed squared error for each candidate, float64[T, C], less a constant for each tensor.

        ends: float64[S, T, C], scale: float64[T, C]. Without the tails' share.
        """
        clipped = self._clipped(ends)
        clipped += self._outermost(ends, scale)
        result: Float64 = self._rounded(scale) + clipped.sum(axis=0)
        return result

    def of_codes(self, ends: Float64, scale: Float64) -> Float64:
        """As `of_steps`, but exact for the elements within 12 steps of zero, where their density varies most.

        By parts, their squared error is the sum of x^2 less 2 s times the summed distance of the elements beyond each
        of the borders s / 2, 3 s / 2, ... between codes.
        """
        codes = np.rint(ends / scale)
        # No element is beyond this, which stands for borders beyond a side's last code.
        nowhere = np.ldexp(self.seen.outermost.extreme.max(axis=0), 2)[:, None]
        result = np.zeros(ends.shape)
        for code in range(_NEAR):
            result += self._distance(np.where(codes > code, (code + 0.5) * scale, nowhere))
        result *= -2.0 * scale
        more = codes > _NEAR
        result += self._far(np.where(more, (_NEAR + 0.5) * scale, nowhere), scale)
        result += np.where(more, self._clipped(ends), 0.0)
        result += self._outermost(ends, scale)
        total: Float64 = result.sum(axis=0)
        return total

    def _distance(self, border: Float64) -> Float64:
        """The summed distance of the elements beyond a border, float64[S, T, C]."""
        table = self.seen.sides
        found = table.find(border)
        inside = border - table.floor(border)
        distance = table.read(found, 1)
        distance -= border * table.read(found, 0)
        inside *= inside
        inside *= table.read(found, 3)
        inside *= 1.5
        distance += inside
        return distance

    def _far(self, border: Float64, scale: Float64) -> Float64:
        """What is left for the elements beyond the last border, rounded or clipped: less their share so far."""
        table = self.seen.sides
        found, floor = table.find(border), table.floor(border)
        density = table.read(found, 3)
        weight = table.read(found, 0) - 3.0 * density * (border - floor)
        first = table.read(found, 1) - 1.5 * density * (border * border - floor * floor)
        square = table.read(found, 2) - density * (border**3 - floor**3)
        reach = _NEAR * scale
        return weight * (scale * scale / 12.0 - reach * reach) + 2.0 * reach * first - square

    def _rounded(self, scale: Float64) -> Float64:
        table = self.seen.both
        found = table.find(0.5 * scale)
        return table.read(found, 0) * (scale * scale / 12.0) - table.read(found, 1)

    def _clipped(self, ends: Float64) -> Float64:
        """Summed squared distance of the elements beyond ends float64[S, T, C]; a bucket holds its elements evenly."""
        table = self.seen.sides
        found = table.find(ends)
        result = table.read(found, 0) * ends
        result -= 2.0 * table.read(found, 1)
        result *= ends
        result += table.read(found, 2)
        inside = ends - table.floor(ends)
        result -= table.read(found, 3) * (inside * inside * inside)
        return result

    def whole(self, ends: Float64) -> Float64:
        """Ends float64[S, T, N], those moved to the extreme that are in an outermost bucket where elements pile up.

        Where in the bucket they stand is not known, so that an end inside would be a guess.
        """
        outer = self.seen.outermost
        piled = outer.piled > _CROWD * (1.0 + np.sqrt(outer.even))
        inside = (ends > np.where(piled, outer.inner, np.inf)[:, :, None]) & (ends < outer.extreme[:, :, None])
        return np.where(inside, outer.extreme[:, :, None], ends)

    def tails_clipped(self, ends: Float64) -> Float64:
        """What the expected elements beyond the extremes lose to clipping by ends float64[S, T, N]."""
        if self.tails.shape[0] == 1:
            return np.zeros(ends.shape)
        beyond = self.tails[:, :, :, None] - ends
        np.maximum(beyond, 0.0, out=beyond)
        cubes = beyond * beyond
        cubes *= beyond
        cubes *= (self.change / 3.0)[:, :, :, None]
        result: Float64 = cubes.sum(axis=0)
        return result

    def _outermost(self, ends: Float64, scale: Float64) -> Float64:
        """What the elements at the extremes lose, exactly."""
        outer = self.seen.outermost
        extreme, inner = outer.extreme[:, :, None], outer.inner[:, :, None]
        result = np.minimum(extreme, ends)
        result = extreme - np.rint(result / scale) * scale
        result *= result
        result *= outer.piled[:, :, None]
        areas = -_antiderivative(np.minimum(inner, ends), np.maximum(inner - ends, 0.0), scale)
        areas += _antiderivative(np.minimum(extreme, ends), np.maximum(extreme - ends, 0.0), scale)
        result += outer.density[:, :, None] * areas
        return result

    def _outermost_clipped(self, ends: Float64) -> Float64:
        """What they lose to clipping alone."""
        outer = self.seen.outermost
        beyond = np.maximum(outer.extreme[:, :, None] - ends, 0.0)
        inner = np.maximum(outer.inner[:, :, None] - ends, 0.0)
        result: Float64 = outer.piled[:, :, None] * (beyond * beyond)
        result += (outer.density / 3.0)[:, :, None] * (beyond * beyond * beyond - inner * inner * inner)
        return result
