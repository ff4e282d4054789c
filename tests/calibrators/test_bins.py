"""Histograms of few bins, and rounding errors read off a statistic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrators import Histogram
from calibrators.bins import BINS, binned, rounding_sqnr_db
from calibrators.distribution import distribution

VALUES = hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(-1e6, 1e6, width=32))


@given(VALUES, st.none() | st.tuples(st.floats(-100, -0.5), st.floats(0.5, 100)))
def test_bins_hold_every_element_up_to_rounding(values, bounds):
    found = binned(distribution(Histogram().observe(values)), bounds)
    # Each of the bins and both ends is rounded to whole elements.
    assert abs(int(found.counts.sum()) + found.below + found.above - values.size) <= (BINS + 2) / 2
    assert found.counts.size == BINS
    assert (found.counts >= 0).all()
    assert found.low < found.high
    assert found.low <= 0 <= found.high


@given(VALUES)
def test_bins_reach_the_extremes_where_no_range_was_chosen(values):
    found = binned(distribution(Histogram().observe(values)), None)
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    assert (found.below, found.above) == (0, 0)
    if low < high:
        assert (found.low, found.high) == (low, high)


def test_an_outlier_stands_beyond_the_bins_and_costs_them_no_resolution():
    values = np.append(np.random.default_rng(0).normal(size=10_000), 1e6).astype(np.float32)
    found = binned(distribution(Histogram().observe(values)), (-4.0, 4.0))
    assert found.high == 4.0 + 0.25 * 8.0
    assert found.above == 1
    assert np.count_nonzero(found.counts) > BINS / 3


def test_zeros_stand_in_the_bin_of_zero():
    values = np.array([0.0] * 50 + [-1.0, 1.0], np.float32)
    found = binned(distribution(Histogram().observe(values)), None)
    ends = np.linspace(found.low, found.high, BINS + 1)
    at = int(np.argmax(found.counts))
    assert found.counts[at] >= 50
    assert ends[at] <= 0.0 <= ends[at + 1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("hi", [1.5, 4.0, 40.0])
def test_rounding_errors_are_those_of_the_values(seed, hi):
    """Buckets are a 128th of their value wide, so that steps as wide are seen as they are within 0.2 dB."""
    values = np.random.default_rng(seed).normal(size=50_000).astype(np.float32)
    scale = 2 * hi / 255
    exact = values.astype(np.float64)
    rounded = np.clip(np.rint(exact / scale), -127, 128) * scale
    expected = 10 * math.log10(np.sum(exact**2) / np.sum((exact - rounded) ** 2))
    seen = distribution(Histogram().observe(values))
    assert rounding_sqnr_db(seen, scale=scale, lo=-127 * scale, hi=128 * scale) == pytest.approx(expected, abs=0.2)


def test_values_that_all_become_zero_leave_no_signal_and_all_zeros_no_error():
    small = distribution(Histogram().observe(np.full(9, 0.25, np.float32)))
    assert rounding_sqnr_db(small, scale=1.0, lo=-127.0, hi=128.0) == pytest.approx(0.0, abs=1e-9)
    zeros = distribution(Histogram().observe(np.zeros(9, np.float32)))
    assert rounding_sqnr_db(zeros, scale=1.0, lo=-127.0, hi=128.0) == math.inf
