"""Ranges of forty distributions that come in batches, against all of the data, concatenated in float64.

Elements are many, since the least error of fewer depends on each of them: a step that moves by a thousandth moves every
rounding error, and their sum over n elements by about 0.9 / sqrt(n) of itself, which no histogram knows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from calibrators import CALIBRATORS, Histogram, estimate_percentile
from calibrators.distribution import distribution
from calibrators.entropy import BINS, STEP, linear_bins
from quantool.collect import CollectRequest, collect
from quantool.schema import Grid, Range

UINT8 = Grid.of("uint8")
BATCHES, SIZE = 8, 500_000
OUTLIER = 1e6
DEFAULT_SHARE = 13  # every family once


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + np.exp(-x))


def normal(r: np.random.Generator) -> np.ndarray:
    return r.standard_normal(SIZE, np.float32)


FAMILIES = {
    "normal": lambda r, p, batch: 10**p * normal(r),
    "shifted": lambda r, p, batch: normal(r) + np.float32(3 * p),
    "relu": lambda r, p, batch: np.maximum(normal(r) + np.float32(p), 0),
    "negative": lambda r, p, batch: -(10**p) * r.exponential(size=SIZE),
    "laplace": lambda r, p, batch: r.laplace(size=SIZE) + p,
    "student": lambda r, p, batch: r.standard_t(5 + 2 * p, SIZE),
    "uniform": lambda r, p, batch: r.uniform(-1 - p, 2 + p, SIZE),
    "silu": lambda r, p, batch: silu((3 + p) * normal(r)),
    "sparse": lambda r, p, batch: normal(r) * (r.random(SIZE, np.float32) < 0.6 + 0.2 * p),
    "grown": lambda r, p, batch: 1e4 ** (batch / (BATCHES - 1)) * normal(r),
    "outliers": lambda r, p, batch: np.append(normal(r), OUTLIER * np.sign(p) * (1 + r.random(batch % 2))),
    "constant": lambda r, p, batch: np.full(SIZE, 10 * p),
    "mixed shapes": lambda r, p, batch: normal(r).reshape(*(1, 4, 1000, 50)[: batch % 4], -1)[..., : SIZE // 10],
}
NUMBERS = range(40)
SHARE = [pytest.param(i, marks=() if i < DEFAULT_SHARE else pytest.mark.full) for i in NUMBERS]
named = pytest.mark.parametrize("number", SHARE, ids=lambda i: f"{i}-{list(FAMILIES)[i % len(FAMILIES)]}")


def batches(number: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(number)
    family = list(FAMILIES.values())[number % len(FAMILIES)]
    parameter = rng.uniform(-1, 1)
    for batch in range(BATCHES):
        drawn = family(rng, parameter, batch).astype(np.float32)
        yield drawn if drawn.ndim > 1 else drawn.reshape(1, -1)


def collected(number: int, *, full: bool) -> Histogram:
    request = CollectRequest(kinds={"x": "histogram"}, batched=frozenset({"x"}), full=full)
    found = collect(((i, {"x": batch}) for i, batch in enumerate(batches(number))), request).tensors["x"]
    assert isinstance(found, Histogram)
    return found


class Data:
    """All elements, sorted, and the error of any range for them."""

    def __init__(self, number: int) -> None:
        whole = np.sort(np.concatenate([batch.reshape(-1) for batch in batches(number)]))
        self.outliers = int((np.abs(whole) >= OUTLIER).sum())
        self.whole = whole
        self.values = whole[np.abs(whole) < OUTLIER].astype(np.float64)
        self._sums = np.append(0.0, np.cumsum(self.values))
        self._squares = np.append(0.0, np.cumsum(self.values * self.values))

    def error(self, lo: float, hi: float) -> float:
        """The summed squared error of uint8: of the elements between two borders, which become one code."""
        scale = (hi - lo) / 255
        codes = (np.arange(256) - np.rint(-lo / scale)) * scale
        borders = np.searchsorted(self.values, (codes[1:] + codes[:-1]) / 2)
        ends = np.concatenate(([0], borders, [self.values.size]))
        count, sums, squares = np.diff(ends), np.diff(self._sums[ends]), np.diff(self._squares[ends])
        return float((squares - 2 * codes * sums + codes * codes * count).sum())

    def least_error(self) -> float:
        """The least error of ranges down to 2^-8 of the extrema, then of steps of 9 % and 1.4 % around the best."""
        lowest, highest = min(self.values[0], 0.0), max(self.values[-1], 0.0)
        best = (self.error(lowest, highest), lowest, highest)
        for exponents in (-np.arange(17) / 2, np.linspace(-0.5, 0.5, 9), np.linspace(-0.1, 0.1, 11)):
            _, low, high = best
            lows = {max(low * 2**e, lowest) for e in exponents}
            highs = {min(high * 2**e, highest) for e in exponents}
            best = min(best, *((self.error(a, b), a, b) for a, b in itertools.product(lows, highs)))
        return best[0]


def excess(data: Data, found: Range, least: float) -> float:
    """How much more than the least error the range has; 0 for data on the codes, but for the rounding of float64."""
    error = data.error(found.lo, found.hi)
    rounding = 1e-12 * float((data.values**2).sum())
    return 0.0 if error <= rounding else error / least - 1


def unseen_tail(data: Data, state: Histogram, found: Range) -> float:
    """What sampling leaves open: where it saw m elements beyond an end, their squared distance errs by 1 / sqrt(m).

    So does the best end, around which the error is flat.
    """
    sides = (int((data.values < found.lo).sum()), int((data.values > found.hi).sum()))
    share = state.counted / data.whole.size
    return 2.0 / max(min((m for m in sides if m), default=1) * share, 1.0)


@named
def test_ranges_equal_those_of_all_data_concatenated(number):
    data, full, sampled = Data(number), collected(number, full=True), collected(number, full=False)
    low, high = float(data.whole[0]), float(data.whole[-1])
    least = data.least_error()
    for state in (full, sampled):
        assert CALIBRATORS["minmax"].estimate(state, UINT8) == Range(
            lo=min(low, 0.0), hi=max(high, 0.0), observed_min=low, observed_max=high
        )
        found = CALIBRATORS["mse"].estimate(state, UINT8)
        assert excess(data, found, least) <= (0.001 if state is full else 0.01 + unseen_tail(data, state, found))
        # Of what sampling passed over, the extremes alone are known.
        known = data.outliers if state is full else min(data.outliers, 1)
        assert found.outliers == known
    check_percentiles(data.whole.astype(np.float64), full, sampled)
    check_entropy(full)


def check_percentiles(data: np.ndarray, full: Histogram, sampled: Histogram) -> None:
    """Within one bin, a 128th of the value; of samples within two, where enough of them are beyond."""
    for state, percentile, bins in ((full, 99.99, 1), (full, 99.0, 1), (sampled, 99.0, 2)):
        found = estimate_percentile(state, UINT8, percentile=percentile)
        tail = (100 - percentile) / 200
        low, high = np.quantile(data, (tail, 1 - tail))
        for bound, exact in ((found.lo, min(low, 0.0)), (found.hi, max(high, 0.0))):
            assert abs(bound - exact) <= bins * abs(exact) / 128


def check_entropy(state: Histogram) -> None:
    """The least divergence of the definition, over the candidates that keep enough."""
    seen = distribution(state)
    bins, tail, reach = linear_bins(seen)
    levels = 256 if seen.minimum >= 0 or seen.maximum <= 0 else 128
    kept = np.arange(levels, BINS + 1, STEP)
    kept = kept[np.cumsum(bins)[kept - 1] >= 0.95 * (bins.sum() + tail)]
    costs = {int(k): divergence(bins, tail, int(k), levels) for k in kept}
    found = CALIBRATORS["entropy"].estimate(state, UINT8)
    chosen = round(max(-found.lo, found.hi) * BINS / reach)
    least = min(costs, key=lambda k: (costs[k], -k))
    if max(-found.lo, found.hi) < max(-seen.minimum, seen.maximum):
        assert costs[chosen] <= costs[least] + 1e-11
    else:
        assert reach * least / BINS >= max(-seen.minimum, seen.maximum) * (1 - STEP / BINS)


def divergence(bins: np.ndarray, tail: float, kept: int, levels: int) -> float:
    """KL(P || Q) by its definition: P with what is clipped in its last bin, Q even over each level's occupied bins."""
    p = bins[:kept].copy()
    p[-1] += bins[kept:].sum() + tail
    level = np.searchsorted(np.arange(1, levels + 1) * kept // levels, np.arange(kept), side="right")
    occupied = bins[:kept] > 0
    sums, counts = np.bincount(level, bins[:kept], levels), np.bincount(level, occupied, levels)
    q = np.where(occupied, (sums / np.maximum(counts, 1))[level], 0.0)
    p, q = p / p.sum(), q / q.sum()
    if np.any((p > 0) & (q == 0)):
        return float("inf")
    return float((p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum())
