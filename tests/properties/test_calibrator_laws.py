"""Every statistic is a commutative monoid; moving averages are ordered."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrators import CALIBRATORS, Extrema, Histogram, MovingAverage
from quantool.errors import QuantoolError
from quantool.schema import Grid

MERGEABLE = [Extrema, Histogram]
UNORDERED = ["mse", "minmax", "percentile", "entropy"]

any_float = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
arrays = hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5), elements=any_float)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=True)
finite_arrays = hnp.arrays(np.float32, st.integers(0, 40), elements=finite)
laws = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize("kind", MERGEABLE)
@given(a=arrays)
@laws
def test_the_empty_statistic_is_the_unit(kind, a):
    state = kind().observe(a)
    assert state.merge(kind()) == state
    assert kind().merge(state) == state


@pytest.mark.parametrize("kind", MERGEABLE)
@given(a=arrays, b=arrays, c=arrays)
@laws
def test_merging_is_associative_and_commutative(kind, a, b, c):
    x, y, z = (kind().observe(array) for array in (a, b, c))
    assert x.merge(y).merge(z) == x.merge(y.merge(z))
    assert x.merge(y) == y.merge(x)
    assert hash(x.merge(y)) == hash(y.merge(x))


@pytest.mark.parametrize("kind", MERGEABLE)
@given(a=arrays, b=arrays)
@laws
def test_observing_in_pieces_equals_observing_the_whole(kind, a, b):
    whole = kind().observe(np.concatenate((a.ravel(), b.ravel())))
    assert kind().observe(a).observe(b) == whole
    assert kind().observe(a).merge(kind().observe(b)) == whole


@pytest.mark.parametrize("name", UNORDERED)
@given(pieces=st.lists(finite_arrays, min_size=1, max_size=4), order=st.randoms(use_true_random=False))
@laws
def test_ranges_do_not_depend_on_order_or_grouping(name, pieces, order):
    calibrator, grid = CALIBRATORS[name], Grid.of("uint8")
    whole = calibrator.observe(calibrator.zero(), np.concatenate(pieces))
    order.shuffle(pieces)
    state = calibrator.zero()
    for piece in pieces:
        state = calibrator.merge(calibrator.observe(calibrator.zero(), piece), state)
    assert calibrator.estimate(state, grid) == calibrator.estimate(whole, grid)


@given(samples=st.lists(finite_arrays, max_size=5))
@laws
def test_moving_averages_follow_their_recurrence(samples):
    state = MovingAverage(decay=0.5)
    for sample in samples:
        state = state.observe(sample)
    kept = [sample for sample in samples if sample.size]
    weights = 0.5 ** np.arange(len(kept))[::-1]
    assert state.samples == len(kept)
    if kept:
        lows = np.array([float(sample.min()) for sample in kept])
        bound = 8 * np.finfo(np.float64).eps * np.abs(lows).max()
        assert abs(state.average_minimum - (weights * lows).sum() / weights.sum()) <= bound


@given(a=finite_arrays)
@laws
def test_the_empty_moving_average_is_the_unit(a):
    state = MovingAverage().observe(a)
    assert state.merge(MovingAverage()) == state
    assert MovingAverage().merge(state) == state


def test_moving_averages_depend_on_order():
    low, high = np.array([0.0, 1.0]), np.array([0.0, 2.0])
    forth = MovingAverage(decay=0.5).observe(low).observe(high)
    back = MovingAverage(decay=0.5).observe(high).observe(low)
    assert forth.average_maximum == pytest.approx(5 / 3)
    assert back.average_maximum == pytest.approx(4 / 3)


def test_merging_moving_averages_is_refused_as_usage():
    state = MovingAverage().observe([1.0])
    with pytest.raises(QuantoolError, match=r"averages of 1 and 1 samples cannot be merged.*statistics merge") as info:
        state.merge(state)
    assert (info.value.code, info.value.exit_code) == ("moving-average-merge", 2)


@pytest.mark.parametrize("name", CALIBRATORS)
@pytest.mark.parametrize(
    "grid",
    [
        Grid.of("uint8"),
        Grid.of("int8", symmetric=True),
        Grid.of("uint8", symmetric=True),
        Grid.of("uint4"),
        Grid.of("int2", symmetric=True),
        Grid.of("uint16"),
    ],
    ids=["uint8", "int8-symmetric", "uint8-symmetric", "uint4", "int2-symmetric", "uint16"],
)
@given(a=finite_arrays)
@settings(max_examples=25, deadline=None)
def test_every_estimate_is_a_finite_range_that_holds_zero(name, grid, a):
    calibrator = CALIBRATORS[name]
    found = calibrator.estimate(calibrator.observe(calibrator.zero(), a), grid)
    assert -np.inf < found.lo <= 0.0 <= found.hi < np.inf
    assert 0.0 <= found.clipped_share <= 1.0
    largest = max(np.abs(a).max(), 0) if a.size else 0.0
    assert max(-found.lo, found.hi) <= largest
    assert found.observed_min == (a.min() if a.size else 0)
    assert found.observed_max == (a.max() if a.size else 0)
    assert found.outliers == 0
