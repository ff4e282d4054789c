"""Ranges from the statistic against brute force on all the data in float64."""

from __future__ import annotations

import dataclasses
import itertools
from functools import partial

import numpy as np
import pytest

from calibrators import CALIBRATORS, Extrema, Histogram, MovingAverage, estimate_expected_many, estimate_percentile
from calibrators.distribution import distribution
from calibrators.entropy import BINS, STEP, best_bin_count, divergence, linear_bins
from quantool.errors import QuantoolError
from quantool.schema import Grid, Range

SIZE = 60_000
UINT8, UINT4, UINT16 = Grid.of("uint8"), Grid.of("uint4"), Grid.of("uint16")
SYMMETRIC = Grid.of("int8", symmetric=True)


def draw(name: str) -> np.ndarray:
    rng = np.random.default_rng(sorted(SHAPES).index(name))
    return SHAPES[name](rng).astype(np.float32)


SHAPES = {
    "normal": lambda r: r.standard_normal(SIZE),
    "shifted": lambda r: r.standard_normal(SIZE) + 3,
    "relu": lambda r: np.maximum(r.standard_normal(SIZE), 0),
    "negative": lambda r: -np.abs(r.standard_normal(SIZE)),
    "laplace": lambda r: r.laplace(size=SIZE),
    "student": lambda r: r.standard_t(4, SIZE),
    "uniform": lambda r: r.uniform(-1, 2, SIZE),
    "silu": lambda r: (lambda x: x / (1 + np.exp(-x)))(2 * r.standard_normal(SIZE)),
    "sparse": lambda r: np.where(r.random(SIZE) < 0.9, 0, r.standard_normal(SIZE)),
    "grown": lambda r: np.append(r.standard_normal(SIZE), 1e4 * r.standard_normal(SIZE)),
    "small": lambda r: 1e-30 * r.standard_normal(SIZE),
    "large": lambda r: 1e35 * r.standard_normal(SIZE),
    "winsorized": lambda r: np.clip(r.standard_normal(SIZE), -1, 1),
}
every_shape = pytest.mark.parametrize("name", SHAPES)


def true_error(x: np.ndarray, lo: float, hi: float, grid: Grid) -> float:
    """The summed squared error of x on the grid, in float64, element by element."""
    if grid.symmetric:
        scale, zero = max(-lo, hi) / min(-grid.qmin, grid.qmax), 0
    else:
        scale = (hi - lo) / (grid.qmax - grid.qmin)
        zero = grid.qmin - np.rint(lo / scale)
    codes = np.clip(np.rint(x / scale) + zero, grid.qmin, grid.qmax)
    return float((((codes - zero) * scale - x) ** 2).sum())


def least_error(x: np.ndarray, grid: Grid) -> float:
    """The least error over a lattice of ranges, refined around the best."""
    lowest, highest = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    if grid.symmetric:
        highest = max(-lowest, highest)
        lowest = -highest
    best, lo, hi = true_error(x, lowest, highest, grid), lowest, highest
    for factors in (np.linspace(0.1, 1.0, 10), *(np.linspace(1 - w, 1 + w, 5) for w in (0.1, 0.05, 0.02))):
        base = (lo, hi)
        for a, b in itertools.product(factors, factors):
            if grid.symmetric and a != b:
                continue
            pair = max(base[0] * a, lowest), min(base[1] * b, highest)
            best, lo, hi = min((best, lo, hi), (true_error(x, *pair, grid), *pair))
    return best


def estimate(name: str, x: np.ndarray, grid: Grid) -> Range:
    return CALIBRATORS[name].estimate(Histogram().observe(x), grid)


@every_shape
def test_minmax_is_exact_with_zero_inside(name):
    x = draw(name)
    found = estimate("minmax", x, UINT8)
    low, high = float(x.min()), float(x.max())
    assert found == Range(lo=min(low, 0), hi=max(high, 0), observed_min=low, observed_max=high)


@every_shape
@pytest.mark.parametrize("percentile", [99.0, 99.9, 99.99])
def test_percentile_is_exact_within_one_bucket(name, percentile):
    x = draw(name)
    found = estimate_percentile(Histogram().observe(x), UINT8, percentile=percentile)
    tail = (100 - percentile) / 2
    low, high = np.percentile(x.astype(np.float64), [tail, 100 - tail])
    for bound, exact in ((found.lo, min(low, 0)), (found.hi, max(high, 0))):
        assert abs(bound - exact) <= abs(exact) / 128 + 2.0**-133


@every_shape
@pytest.mark.parametrize("grid", [UINT8, SYMMETRIC, UINT4], ids=["uint8", "int8-symmetric", "uint4"])
def test_mse_is_nearly_the_best_range_for_the_data(name, grid):
    x = draw(name).astype(np.float64)
    found = estimate("mse", x, grid)
    # Elements move by at most half a bucket of the histogram, so that their own ripple remains: a few of
    # them carry most of the error where 90 % are zero.
    assert true_error(x, found.lo, found.hi, grid) <= 1.02 * least_error(x, grid)


@every_shape
def test_entropy_is_its_definition_on_the_same_bins(name):
    seen = distribution(Histogram().observe(draw(name)))
    bins, tail, reach = linear_bins(seen)
    levels = 128
    whole = bins.sum() + tail
    candidates = [kept for kept in range(levels, BINS + 1, STEP) if bins[:kept].sum() >= 0.95 * whole]
    costs = {kept: brute_divergence(bins, tail, kept, levels) for kept in candidates}
    least = min(costs.values())
    kept = best_bin_count(bins, tail, levels=levels)
    # Both sum 2048 logarithms, in other orders.
    assert costs[kept] <= least + 2048 * np.finfo(np.float64).eps * 10
    assert estimate("entropy", draw(name), SYMMETRIC).hi == reach * kept / BINS


@pytest.mark.parametrize("low", [0.5, 3.0, 100.0])
def test_entropy_of_data_far_from_zero_clips_a_twentieth_at_most(low):
    x = low + np.exp(np.random.default_rng(3).standard_normal(4000).clip(-2.5, 2.5)).astype(np.float32)
    assert estimate("entropy", x, UINT8).clipped_share <= 0.05 + 1 / 64
    assert estimate("entropy", -x, SYMMETRIC).clipped_share <= 0.05 + 1 / 64


def brute_divergence(bins: np.ndarray, tail: float, kept: int, levels: int) -> float:
    p = bins[:kept].copy()
    p[-1] += bins[kept:].sum() + tail
    q = np.zeros(kept)
    for level in range(levels):
        part = slice(level * kept // levels, (level + 1) * kept // levels)
        occupied = bins[:kept][part] > 0
        if occupied.any():
            q[part] = np.where(occupied, bins[:kept][part].sum() / occupied.sum(), 0)
    p, q = p / p.sum(), q / q.sum()
    if np.any((p > 0) & (q == 0)):
        return float("inf")
    return float(sum(a * np.log(a / b) for a, b in zip(p, q, strict=True) if a > 0))


def test_divergence_is_infinite_where_q_has_nothing():
    assert divergence(np.array([1.0, 0.0]), 1.0, levels=2) == np.inf
    assert divergence(np.zeros(2), 1.0, levels=2) == np.inf


@every_shape
@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_clipped_share_is_counted_within_one_bucket(name, calibrator):
    x = draw(name).astype(np.float64)
    kind = CALIBRATORS[calibrator]
    found = kind.estimate(kind.observe(MovingAverage(), x), UINT4)

    def outside(widen: float) -> float:
        return float(np.mean((x < found.lo * widen) | (x > found.hi * widen)))

    assert outside(1 + 1 / 64) <= found.clipped_share <= outside(1 - 1 / 64)


OUTLIER = np.append(np.random.default_rng(5).standard_normal(500_000), 1e6).astype(np.float32)


@pytest.mark.parametrize("calibrator", ["percentile", "entropy", "mse"])
@pytest.mark.parametrize("grid", [UINT8, SYMMETRIC], ids=["uint8", "int8-symmetric"])
def test_one_outlier_of_a_million_leaves_the_range_near_the_bulk(calibrator, grid):
    found = estimate(calibrator, OUTLIER, grid)
    assert 2.5 <= found.hi <= 12
    assert found.observed_max == 1e6
    clean = OUTLIER[:-1].astype(np.float64)
    assert 10 * np.log10((clean**2).sum() / true_error(clean, found.lo, found.hi, grid)) >= 26


def test_isolated_outliers_are_counted():
    assert estimate("mse", OUTLIER, UINT8).outliers == 1
    assert estimate("mse", np.append(OUTLIER, [-1e6, 1e4]), UINT8).outliers == 3
    assert estimate("mse", OUTLIER[:-1], UINT8).outliers == 0


def test_a_row_of_large_values_counts_as_isolated_where_nothing_else_would_remain():
    row = np.full(64, 1e6, np.float32)
    found = estimate("mse", np.append(OUTLIER[:-1], row), UINT8)
    assert (found.outliers, found.hi < 12) == (64, True)


def test_rare_but_moderate_values_are_kept_in_reach():
    # A hundred times the rest, as massive activations are: frequent enough to be information.
    x = np.append(OUTLIER[:-1], np.full(64, 300, np.float32))
    assert estimate("mse", x, UINT8).outliers == 0


def test_a_fine_grid_needs_no_cut():
    x = np.append(OUTLIER[:-1], np.float32(1000))
    assert estimate("mse", x, UINT8).outliers == 1
    assert estimate("mse", x, UINT16).outliers == 0


def test_few_elements_above_zeros_are_no_outliers():
    x = np.zeros(1_000_000, np.float32)
    x[:3] = 5
    found = estimate("mse", x, UINT8)
    assert (found.lo, found.hi, found.outliers) == (0, 5, 0)


def test_a_batch_ten_thousand_times_larger_gives_what_both_together_give():
    first = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    second = first * np.float32(1e4)
    for name in ("mse", "minmax", "percentile", "entropy"):
        together = estimate(name, np.append(first, second), UINT8)
        states = [Histogram().observe(first).observe(second), Histogram().observe(second).observe(first)]
        assert [CALIBRATORS[name].estimate(s, UINT8) for s in states] == [together, together]


DEGENERATE = {
    "empty": ([], 0, 0),
    "zeros": ([0.0, -0.0], 0, 0),
    "one": ([3.0], 0, 3),
    "negative one": ([-3.0], -3, 0),
    "constant": ([0.7] * 9, 0, 0.7),
    "subnormal": ([1e-39] * 9, 0, 1e-39),
    "least": ([1e-45], 0, 1e-45),
    "largest": ([3.4028235e38, -3.4028235e38], -3.4028235e38, 3.4028235e38),
    "only nan": ([np.nan], 0, 0),
}


@pytest.mark.parametrize("calibrator", CALIBRATORS)
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_data_has_a_defined_range(calibrator, case):
    values, lo, hi = DEGENERATE[case]
    kind = CALIBRATORS[calibrator]
    found = kind.estimate(kind.observe(kind.zero(), values), UINT8)
    lo, hi = float(np.float32(lo)), float(np.float32(hi))
    if case == "largest" and calibrator in ("mse", "percentile"):
        # Within a bucket, as 99.99 % of two elements interpolates; within a step of the 255.
        assert (found.lo, found.hi) == (pytest.approx(lo, rel=1 / 128), pytest.approx(hi, rel=1 / 128))
    elif calibrator == "percentile":
        assert (found.lo, found.hi) == (pytest.approx(lo, rel=1e-4), pytest.approx(hi, rel=1e-4))
    else:
        assert (found.lo, found.hi, found.clipped_share) == (lo, hi, 0.0)
    assert found.outliers == 0


@pytest.mark.parametrize("grid", [UINT8, SYMMETRIC, UINT4], ids=["uint8", "int8-symmetric", "uint4"])
@pytest.mark.parametrize("name", [*CALIBRATORS, "expected"])
@pytest.mark.parametrize(("sign", "covering"), [(1, False), (-1, True)])
def test_ranges_near_the_largest_float32_stay_within_it(name, grid, sign, covering):
    values = np.random.default_rng(2).standard_normal(500)
    values *= sign * 3.4e38 / np.abs(values).max()
    kind = CALIBRATORS.get(name)
    state = (kind.zero() if kind else Histogram()).observe(np.float32(values))
    found = kind.estimate(state, grid) if kind else estimate_expected_many([state], grid, covering=[covering])[0]
    assert found.lo <= 0 <= found.hi
    assert np.isfinite(np.float32([found.lo, found.hi])).all()


def test_values_on_their_own_grid_keep_the_whole_range():
    pixels = np.random.default_rng(0).integers(0, 256, 50_000) / 255
    assert estimate("mse", pixels, UINT8).hi == 1.0


@pytest.mark.parametrize("calibrator", ["mse", "percentile", "entropy"])
def test_extrema_alone_are_refused_by_what_reads_a_histogram(calibrator):
    with pytest.raises(QuantoolError, match=r"reads a histogram, and only 'extrema' was collected.*minmax"):
        CALIBRATORS[calibrator].estimate(Extrema().observe([1.0]), UINT8)


def test_a_histogram_is_refused_by_moving_average():
    with pytest.raises(QuantoolError, match="reads moving averages, and only 'histogram' was collected"):
        CALIBRATORS["moving-average"].estimate(Histogram().observe([1.0]), UINT8)


def test_moving_average_clips_a_sample_unlike_the_others():
    state = MovingAverage()
    for high in [1.0] * 50 + [10.0]:
        state = state.observe(np.linspace(0, high, 100))
    found = CALIBRATORS["moving-average"].estimate(state, UINT8)
    assert 1.0 < found.hi < 1.5
    assert found.observed_max == 10.0
    assert 0 < found.clipped_share < 0.02


@pytest.mark.parametrize("percentile", [0.0, -1.0, 100.5, np.nan])
def test_an_impossible_percentile_is_refused(percentile):
    with pytest.raises(ValueError, match="must be above 0 and at most 100"):
        estimate_percentile(Histogram(), UINT8, percentile=percentile)


def test_percentile_100_is_minmax():
    state = Histogram().observe(draw("student"))
    full = partial(estimate_percentile, percentile=100.0)
    assert full(state, UINT8) == CALIBRATORS["minmax"].estimate(state, UINT8)


def test_an_extreme_that_sampling_left_out_still_counts():
    bulk = Histogram().observe(OUTLIER[:-1:8])
    state = dataclasses.replace(bulk, extrema=Extrema().observe(OUTLIER))
    found = CALIBRATORS["mse"].estimate(state, UINT8)
    assert (found.hi < 12, found.outliers, found.observed_max) == (True, 1, 1e6)
    negative = dataclasses.replace(bulk, extrema=Extrema().observe(-OUTLIER))
    assert CALIBRATORS["minmax"].estimate(negative, UINT8).lo == -1e6
    assert CALIBRATORS["mse"].estimate(negative, UINT8).outliers == 1


def test_two_tensors_of_one_scale_have_the_wider_averages():
    a, b = (MovingAverage().observe(x).observe(2 * x) for x in (np.array([-1.0, 2.0]), np.array([-3.0, 1.0])))
    both = a.beside(b)
    assert both == dataclasses.replace(b.beside(a), histogram=both.histogram)
    assert both.average_minimum == pytest.approx(min(a.average_minimum, b.average_minimum))
    assert both.average_maximum == pytest.approx(max(a.average_maximum, b.average_maximum))
    assert both.extrema == a.extrema.merge(b.extrema)
    assert a.beside(MovingAverage()) == MovingAverage().beside(a) == a


MIXTURE = [
    *(Histogram().observe(draw(name)[:20_000]) for name in SHAPES),
    *(Histogram().observe(draw(name)[:500]) for name in SHAPES),
    Histogram().observe(np.append(draw("normal"), 1e6)),
    Histogram(),
    Histogram().observe(np.zeros(5)),
    Histogram().observe([1e-45]),
]


def expected_many(states: list[Histogram], grid: Grid) -> list[Range]:
    return estimate_expected_many(states, grid, covering=[False] * len(states))


@pytest.mark.parametrize("estimate_many", [CALIBRATORS["mse"].estimate_many, expected_many], ids=["mse", "expected"])
@pytest.mark.parametrize("grid", [UINT8, SYMMETRIC, UINT4, UINT16], ids=["uint8", "int8-symmetric", "uint4", "uint16"])
def test_a_range_does_not_depend_on_the_tensors_estimated_with_it(estimate_many, grid):
    together = estimate_many(MIXTURE, grid)
    assert together == [estimate_many([state], grid)[0] for state in MIXTURE]
    assert together[::-1] == estimate_many(MIXTURE[::-1], grid)
    assert estimate_many(MIXTURE * 6, grid) == together * 6
