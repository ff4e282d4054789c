"""The range that keeps the most information: least Kullback-Leibler divergence of the quantized histogram.

Migacz, 8-bit Inference with TensorRT, GTC 2017 (S7310), slides "Entropy Calibration - pseudocode": the bins
beyond a threshold are added to the last bin of P; Q spreads each level's sum evenly over its occupied bins.
Zeros are left out: a grid holds zero exactly, whatever its range.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from calibrators.distribution import Distribution
from calibrators.statistic import Statistic, range_between, spread_of
from quantool.schema import Grid, Range

Float64 = npt.NDArray[np.float64]

BINS = 2048
STEP = 16
# Linear bins reach to this multiple of the magnitude that one element in 1,000 exceeds. What lies beyond takes
# part only as mass beyond the threshold, so that an outlier costs the bins no resolution.
_REACH = 3.0
_REACH_TAIL = 1e-3
# A threshold inside the lowest occupied bins leaves one value that stands for everything, which reads as no loss.
_LEAST_KEPT = 0.95


def estimate_entropy(state: Statistic, grid: Grid) -> Range:
    """The threshold on magnitudes with the least divergence, kept within the observed extrema.

    Raises:
        QuantoolError: the statistic holds no histogram.
    """
    seen = spread_of(state)
    if seen.weight.size == 0:
        return range_between(state, 0.0, 0.0)
    bins, tail, reach = linear_bins(seen)
    threshold = reach * best_bin_count(bins, tail, levels=_levels_a_side(seen, grid)) / BINS
    if grid.symmetric:
        return range_between(state, -threshold, threshold)
    return range_between(state, max(seen.minimum, -threshold), min(seen.maximum, threshold))


def linear_bins(seen: Distribution) -> tuple[Float64, float, float]:
    """The magnitudes of the non-zero elements in 2048 equal bins from 0: (bins, mass beyond, upper end)."""
    order = np.argsort(seen.magnitude_high, kind="stable")
    high = seen.magnitude_high[order]
    beyond = np.cumsum(seen.weight[order][::-1])[::-1]
    common = float(high[np.flatnonzero(beyond > _REACH_TAIL * beyond[0])[-1]])
    reach = min(_REACH * common, float(high[-1]))
    ends = reach * (np.arange(BINS + 1) / BINS)
    below = _weight_below(ends, seen) + _weight_below(ends, seen.mirrored())
    return np.diff(below), float(beyond[0] - below[-1]), reach


def _weight_below(at: Float64, seen: Distribution) -> Float64:
    """The weight of the positive elements below each point."""
    positive = seen.lower >= 0.0
    if not positive.any():
        return np.zeros(at.size)
    lower, upper, weight = seen.lower[positive], seen.upper[positive], seen.weight[positive]
    ends = np.cumsum(weight)
    points = np.stack((lower, upper), axis=1).reshape(-1)
    return np.interp(at, points, np.stack((ends - weight, ends), axis=1).reshape(-1))


def best_bin_count(bins: Float64, tail: float, *, levels: int) -> int:
    """How many bins to keep: the multiple of 16 of least divergence; of equal ones the largest.

    bins: float64[2048], counts. tail: the count beyond them. With more levels than bins nothing is lost, and
    all are kept. At most a twentieth of the elements is clipped where the bins hold the rest.
    """
    best, least = BINS, np.inf
    enough = int(np.searchsorted(np.cumsum(bins), _LEAST_KEPT * (bins.sum() + tail))) + 1
    for kept in range(-(-min(max(levels, enough), BINS) // STEP) * STEP, BINS + 1, STEP):
        found = divergence(bins[:kept], float(bins[kept:].sum()) + tail, levels=min(levels, kept))
        if found <= least:
            best, least = kept, found
    return best


def divergence(kept: Float64, clipped: float, *, levels: int) -> float:
    """KL(P || Q) in nats: P is `kept` with the clipped count in its last bin, Q its quantized form.

    Infinite where the last bin is empty and something was clipped into it, since Q has nothing there.
    """
    inside = float(kept.sum())
    if inside == 0.0 or (clipped > 0.0 and kept[-1] == 0.0):
        return float(np.inf)
    starts = np.arange(levels) * kept.size // levels
    merged = np.add.reduceat(kept, starts)
    occupied = np.add.reduceat((kept > 0.0).astype(np.int64), starts)
    used = merged > 0.0
    q = np.where(used, merged / np.maximum(occupied, 1), 1.0) / inside
    whole = inside + clipped
    p = kept / whole
    p[-1] += clipped / whole
    in_level = merged / whole
    in_level[-1] += clipped / whole
    present = p[p > 0.0]
    return float((present * np.log(present)).sum() - (in_level[used] * np.log(q[used])).sum())


def _levels_a_side(seen: Distribution, grid: Grid) -> int:
    """Levels that one sign gets: all of an asymmetric grid where the data have one sign, else half."""
    levels = grid.qmax - grid.qmin + 1
    one_sided = seen.minimum >= 0.0 or seen.maximum <= 0.0
    return levels if one_sided and not grid.symmetric else max(levels // 2, 1)
