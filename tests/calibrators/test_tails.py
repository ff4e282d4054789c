"""Ranges from few elements against data that nobody has seen."""

from __future__ import annotations

import numpy as np
import pytest

from calibrators import CALIBRATORS, Histogram
from calibrators.distribution import distribution
from calibrators.octaves import Octaves
from calibrators.tails import estimate_expected, tail_ends
from quantool.schema import Grid, Range

UINT8, SYMMETRIC = Grid.of("uint8"), Grid.of("int8", symmetric=True)
GRIDS = pytest.mark.parametrize("grid", [UINT8, SYMMETRIC, Grid.of("uint4"), Grid.of("uint16")], ids=str)

OPEN = {
    "normal": lambda r, n: r.standard_normal(n),
    "shifted": lambda r, n: r.standard_normal(n) + 3,
    "relu": lambda r, n: np.maximum(r.standard_normal(n), 0),
    "negative": lambda r, n: -r.exponential(size=n),
    "laplace": lambda r, n: r.laplace(size=n),
    "student": lambda r, n: r.standard_t(4, n),
}
ENDED = {
    "uniform": lambda r, n: r.uniform(-1, 1, n),
    "tanh": lambda r, n: np.tanh(3 * r.standard_normal(n)),
    "sigmoid": lambda r, n: 1 / (1 + np.exp(-3 * r.standard_normal(n))),
    "clipped": lambda r, n: np.clip(r.standard_normal(n), -1, 1),
    "pixels": lambda r, n: r.integers(0, 256, n) / 255.0,
    "constant": lambda r, n: np.full(n, -2.5),
    "zero": lambda r, n: np.zeros(n),
}


def sqnr_db(x: np.ndarray, found: Range, grid: Grid) -> float:
    if grid.symmetric:
        scale, zero = max(-found.lo, found.hi) / grid.qmax, 0
    else:
        scale = (found.hi - found.lo) / (grid.qmax - grid.qmin)
        zero = grid.qmin - np.rint(found.lo / scale)
    codes = np.clip(np.rint(x / scale) + zero, grid.qmin, grid.qmax)
    return float(10 * np.log10(np.square(x).sum() / np.square((codes - zero) * scale - x).sum()))


def gains(draw, size: int, grid: Grid) -> np.ndarray:
    """What the tails gain over the range of least error on the data, in dB on unseen data, for 20 seeds."""
    found = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        state, unseen = Histogram().observe(draw(rng, size).astype(np.float32)), draw(rng, 20_000)
        mse, expected = CALIBRATORS["mse"].estimate(state, grid), estimate_expected(state, grid)
        found.append(sqnr_db(unseen, expected, grid) - sqnr_db(unseen, mse, grid))
    return np.array(found)


@pytest.mark.parametrize("size", [60, 200, 1000])
@pytest.mark.parametrize("name", OPEN)
def test_a_few_elements_of_an_open_distribution_gain_decibels(name, size):
    assert gains(OPEN[name], size, UINT8).mean() >= 1


@pytest.mark.parametrize("size", [1000, 20_000])
@pytest.mark.parametrize("name", [name for name in ENDED if name not in ("constant", "zero")])
def test_a_distribution_with_ends_loses_nothing(name, size):
    assert gains(ENDED[name], size, UINT8).min() >= -0.7


@GRIDS
@pytest.mark.parametrize("name", [*OPEN, *ENDED])
def test_ranges_are_finite_hold_zero_and_keep_the_sign(name, grid):
    x = {**OPEN, **ENDED}[name](np.random.default_rng(5), 300).astype(np.float32)
    found = estimate_expected(Histogram().observe(x), grid)
    assert -100 < found.lo <= 0 <= found.hi < 100
    if not grid.symmetric:
        assert x.min() < 0 or found.lo == 0
        assert x.max() > 0 or found.hi == 0


@pytest.mark.parametrize("name", OPEN)
def test_covering_clips_nothing(name):
    x = OPEN[name](np.random.default_rng(5), 100_000).astype(np.float32)
    found = estimate_expected(Histogram().observe(x), UINT8, covering=True)
    assert found.lo <= x.min() < x.max() <= found.hi
    assert (found.clipped_share, found.outliers) == (0, 0)


def test_many_elements_need_no_tails():
    x = np.random.default_rng(0).standard_normal(500_000).astype(np.float32)
    state = Histogram().observe(x)
    expected, mse = estimate_expected(state, UINT8), CALIBRATORS["mse"].estimate(state, UINT8)
    assert abs(expected.hi - mse.hi) <= 0.05 * mse.hi
    assert abs(expected.lo - mse.lo) <= -0.05 * mse.lo


def test_an_isolated_outlier_is_left_out_and_has_no_tail():
    x = np.append(np.random.default_rng(5).standard_normal(500_000), 1e6).astype(np.float32)
    found = estimate_expected(Histogram().observe(x), UINT8)
    assert found == CALIBRATORS["mse"].estimate(Histogram().observe(x), UINT8)
    assert found.outliers == 1


def test_a_tail_weighs_as_much_as_one_element():
    state = Histogram().observe(np.random.default_rng(0).standard_normal(100).astype(np.float32))
    seen, room = distribution(state), np.empty(640 * 2 * 22)
    octaves = Octaves.of([state], sides=2, octaves=20, room=room)
    longer = seen.extended(*tail_ends(octaves, UINT8, np.array([True]))[:, :, 0].T)
    assert longer.total == pytest.approx(seen.total + 2)
    assert longer.minimum < seen.minimum < seen.maximum < longer.maximum
    assert np.all(longer.lower[1:] >= longer.upper[:-1])


def test_the_order_of_the_data_does_not_count():
    x = np.random.default_rng(0).laplace(size=500).astype(np.float32)
    whole = estimate_expected(Histogram().observe(x), UINT8)
    assert whole == estimate_expected(Histogram().observe(x[300:]).merge(Histogram().observe(x[:300])), UINT8)


def test_nothing_gives_an_empty_range():
    assert estimate_expected(Histogram(), UINT8) == Range(lo=0.0, hi=0.0, observed_min=0.0, observed_max=0.0)
