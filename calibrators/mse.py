"""The range of least squared error, isolated outliers left out.

Shin, Hwang and Sung, Fixed-point performance analysis of recurrent neural networks, arXiv:1512.01322,
equation 2, states the objective; the search is exhaustive on a coarse grid of ranges, then local. It runs over many
tensors at once, and what it finds for one does not depend on the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.distribution import Distribution, distribution, without_isolated
from calibrators.histogram import Histogram
from calibrators.octaves import Octaves
from calibrators.squared_error import FastError, exact_error, realize
from calibrators.statistic import Statistic, histogram_of, range_between
from quantool.schema import Grid, Range

Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]
# (tensors, grid, which of them may have tails) -> float64[J, S, T]: ends of intervals of equal weight beyond the
# extremes, the first at the extremes.
TailEnds = Callable[[Octaves, Grid, Bool], Float64]

# Tensors that are searched at once: few enough that their sums stay in a processor's cache.
_TOGETHER = 128
# The least octaves below the extrema that the search goes, and the most that the wider end may go.
_LEAST_DEPTH, _MOST_REACH = 6, 16
# Half widths in octaves and points of the local searches: over every pair of ends, and then, codes near zero being
# exact, along one end at a time, the wider one first.
_PAIRS = ((0.5, 6), (0.15, 6))
_LINES = ((0.125, 13, True), (0.125, 9, False))
# Every pair once more; and the lines along the one end that there is.
_LAST = (0.006, 3)
_LINE = ((0.125, 33, True), (1 / 256, 5, True))
# Those of the exact ones, where values stand on a grid of their own, as pixels do, are few, or meet few levels.
_EXACT = ((0.0625, 5), (0.03125, 5))
_FEW_BUCKETS, _FEW_ELEMENTS, _FEW_LEVELS = 300, 8192, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """A tensor to search: where its range goes, its elements, and the weight of those left out."""

    index: int
    kept: Histogram
    isolated: float = 0.0


def estimate_mse_many(states: Sequence[Statistic], grid: Grid) -> list[Range]:
    """The range of each state that loses least: rounding inside plus clipping outside, squared and summed.

    An asymmetric range keeps an end at zero where the data have one sign. A symmetric one is (-c, c). Of the
    isolated outliers that were left out, a range says the number.

    Raises:
        QuantoolError: a statistic holds no histogram.
    """
    return least_errors(states, grid)


def no_tails(seen: Octaves, grid: Grid, allowed: Bool) -> Float64:
    """The tail ends where nothing is expected beyond the extremes."""
    del grid, allowed
    return seen.outermost.extreme[None]


def least_errors(states: Sequence[Statistic], grid: Grid, *, tail_ends: TailEnds = no_tails) -> list[Range]:
    """The range of each state that loses least, with what `tail_ends` expects beyond the extremes."""
    ranges: dict[int, Range] = {}
    tasks: list[_Task] = []
    for index, state in enumerate(states):
        extrema = state.extrema
        if extrema.count and (extrema.minimum < 0.0 or extrema.maximum > 0.0):
            tasks.append(_Task(index=index, kept=histogram_of(state)))
        else:
            ranges[index] = range_between(state, 0.0, 0.0)
    room = np.empty(0)
    while tasks:
        cut: list[_Task] = []
        for key, part in _parts(tasks, grid):
            octaves = key.reach + (grid.qmax - grid.qmin).bit_length() + 2
            size = 640 * key.sides * len(part) * (octaves + 2)
            room = room if room.size >= size else np.empty(size)
            seen = Octaves.of([task.kept for task in part], sides=key.sides, octaves=octaves, room=room)
            cut += _without_isolated(part, seen.may_be_isolated(), grid)
            for task, (lo, hi, clipped) in zip(part, _search(part, seen, grid, key, tail_ends), strict=True):
                ranges[task.index] = range_between(states[task.index], lo, hi, isolated=task.isolated, clipped=clipped)
        # Where outliers were left out, the range is searched anew.
        tasks = cut
    return [ranges[index] for index in range(len(states))]


class _Alike(NamedTuple):
    """What tensors that are searched at once have in common.

    Attributes:
        sides: 1 where all elements have one sign, else 2.
        reach: how many octaves below the extreme the wider end may be: where clipping costs what finer steps gain, it
            is at least the extreme over 1 + n / (3 levels^2).
    """

    sides: int
    reach: int

    @classmethod
    def of(cls, kept: Histogram, grid: Grid) -> _Alike:
        """Those of a tensor's elements."""
        seen = kept.extrema
        sides = 2 if grid.symmetric or seen.minimum < 0.0 < seen.maximum else 1
        clipped = 1.0 + seen.count / (3.0 * (grid.qmax - grid.qmin) ** 2)
        return cls(sides, min(math.ceil(math.log2(clipped)), _MOST_REACH))

    @property
    def depth(self) -> int:
        """How many octaves both ends are searched down: one much smaller than the other may go to half a step."""
        return max(self.reach, _LEAST_DEPTH)


def _parts(tasks: Sequence[_Task], grid: Grid) -> Iterator[tuple[_Alike, Sequence[_Task]]]:
    """Tensors to search at once."""
    alike: dict[_Alike, list[_Task]] = {}
    for task in tasks:
        alike.setdefault(_Alike.of(task.kept, grid), []).append(task)
    for key, some in alike.items():
        for start in range(0, len(some), _TOGETHER):
            yield key, some[start : start + _TOGETHER]


def _without_isolated(tasks: Sequence[_Task], suspect: Bool, grid: Grid) -> list[_Task]:
    """The tasks whose isolated outliers are left out; the suspicion is cheap and errs on one side only."""
    cut = []
    for task in (tasks[i] for i in np.flatnonzero(suspect).tolist() if not tasks[i].isolated):
        kept, isolated = without_isolated(task.kept, grid)
        if isolated:
            cut.append(_Task(index=task.index, kept=kept, isolated=isolated))
    return cut


def _search(
    tasks: Sequence[_Task], seen: Octaves, grid: Grid, alike: _Alike, tail_ends: TailEnds
) -> Iterator[tuple[float, float, float]]:
    """Both ends of the range of least error of each tensor, and the share of its elements outside."""
    isolated = np.array([task.isolated for task in tasks])
    tails = tail_ends(seen, grid, isolated == 0.0)
    widest = np.broadcast_to(tails[-1].max(axis=0), tails[-1].shape) if grid.symmetric else tails[-1]
    ends = _fast(FastError.of(seen, tails), widest, grid, alike.depth)
    few = (seen.weight_beyond(np.zeros_like(ends)).sum(axis=0) < _FEW_ELEMENTS) | (grid.qmax - grid.qmin < _FEW_LEVELS)
    negative = np.array([task.kept.extrema.minimum < 0.0 for task in tasks])
    for i, task in enumerate(tasks):
        if few[i] or task.kept.keys.size <= _FEW_BUCKETS:
            ends[:, i] = _exact(distribution(task.kept).piled(), tails[:, :, i], ends[:, i], widest[:, i], grid)
    outside = (seen.weight_beyond(ends).sum(axis=0) + isolated) / (seen.total + isolated)
    low, high = ends if alike.sides == 2 else (ends[0] * negative, ends[0] * ~negative)
    return zip((0.0 - low).tolist(), high.tolist(), outside.tolist(), strict=True)


def _fast(error: FastError, widest: Float64, grid: Grid, depth: int) -> Float64:
    """The ends, float64[S, T], of the ranges of least error within widest, float64[S, T]."""
    apart = widest.shape[0] == 2 and not grid.symmetric
    # Widest first: of equal errors the first wins.
    factors = np.exp2(-np.linspace(0.0, depth, (2 if apart else 8) * depth + 1))
    pairs = _pairs(factors.size, sides=widest.shape[0], lattice=apart)
    ends = widest[:, :, None] * factors
    candidates = _of_pairs(ends, pairs)
    best = _pick(error.coarse(ends, _realized(candidates, grid)[1], pairs), candidates)
    for width, points in _PAIRS if apart else ():
        best = _best_pair(error, best, widest, grid, width, points, codes=False)
    for width, points, wider in _LINES if apart else _LINE:
        moved = ((best == best.max(axis=0)) == wider) | (not apart)
        around = np.where(moved[:, :, None], _around(width, points), np.append(np.inf, np.ones(points)))
        ends = np.minimum(error.whole(best[:, :, None] * around), widest[:, :, None])
        candidates = np.broadcast_to(ends.max(axis=0), ends.shape) if grid.symmetric else ends
        errors = error.of_codes(*_realized(candidates, grid)) + error.tails_clipped(candidates).sum(axis=0)
        best = _pick(errors, candidates)
    return _best_pair(error, best, widest, grid, *_LAST, codes=True) if apart else best


def _best_pair(
    error: FastError, best: Float64, widest: Float64, grid: Grid, width: float, points: int, *, codes: bool
) -> Float64:
    """The best of every pair of ends around the best so far, float64[2, T]."""
    pairs = _pairs(points + 1, sides=2, lattice=True)
    ends = np.minimum(error.whole(best[:, :, None] * _around(width, points)), widest[:, :, None])
    candidates = _of_pairs(ends, pairs)
    errors = (error.of_codes if codes else error.of_steps)(*_realized(candidates, grid))
    low, high = error.tails_clipped(ends)
    return _pick(errors + low[:, pairs[0]] + high[:, pairs[1]], candidates)


def _around(width: float, points: int) -> Float64:
    """Factors on an end: a beyond-all one, as the whole range beats its neighbours where many elements stand there."""
    return np.append(np.inf, np.exp2(np.linspace(width, -width, points)))


def _pairs(points: int, *, sides: int, lattice: bool) -> npt.NDArray[np.intp]:
    """intp[S, C], which end of each side: every one with every other, or those of one index."""
    index = np.arange(points)
    return np.stack((np.repeat(index, points), np.tile(index, points))) if lattice else np.stack((index,) * sides)


def _of_pairs(ends: Float64, pairs: npt.NDArray[np.intp]) -> Float64:
    """The ends of each candidate, float64[S, T, C]."""
    return np.stack([side[:, index] for side, index in zip(ends, pairs, strict=True)])


def _realized(candidates: Float64, grid: Grid) -> tuple[Float64, Float64]:
    """The ends that codes reach, float64[S, T, C], and the scale, float64[T, C]."""
    if candidates.shape[0] == 1:
        # A negative range mirrors the positive one.
        scale = candidates[0] / (grid.qmax - grid.qmin)
        return candidates, scale
    steps = realize(-candidates[0], candidates[1], grid)
    return np.stack((-steps.lo, steps.hi)), steps.scale


def _pick(errors: Float64, candidates: Float64) -> Float64:
    """The candidate of least error of each tensor, float64[S, T]."""
    best = errors.argmin(axis=1)
    return candidates[:, np.arange(best.size), best]


def _exact(whole: Distribution, tails: Float64, ends: Float64, widest: Float64, grid: Grid) -> Float64:
    """The local search around one tensor's ends, float64[S], by the exact error.

    whole: mirrored where it has but negative elements. tails: float64[J, S].
    """
    seen = whole.mirrored() if ends.size == 1 and whole.minimum < 0.0 else whole
    seen = seen.extended(*(tails.T if ends.size == 2 else (tails[:1, 0], tails[:, 0])))
    for width, points in _EXACT:
        around = _around(width, points)
        pairs = _pairs(points + 1, sides=ends.size, lattice=ends.size == 2 and not grid.symmetric)
        candidates = _of_pairs(np.minimum(ends[:, None] * around, widest[:, None])[:, None], pairs)[:, 0]
        low, high = candidates if ends.size == 2 else (np.zeros(candidates.shape[1]), candidates[0])
        ends = candidates[:, int(np.argmin(exact_error(seen, realize(-low, high, grid))))]
    return ends
