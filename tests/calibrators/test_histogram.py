from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from calibrators import Extrema, Histogram


def test_counts_are_exact():
    x = np.array([[0.0, -0.0, 1.0], [-2.5, np.nan, np.inf]], np.float32)
    state = Histogram().observe(x)
    assert state.extrema == Extrema(count=4, nonfinite=2, minimum=-2.5, maximum=1.0)
    assert (state.counted, state.zeros) == (4, 2)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16, np.int8])
def test_other_types_are_counted_as_their_float32_values(dtype):
    x = np.array([1, 2, -3], dtype)
    assert Histogram().observe(x) == Histogram().observe(x.astype(np.float32))


def test_float64_beyond_float32_counts_as_infinite():
    assert Histogram().observe(np.array([1e300, 1.0])).extrema == Extrema(
        count=1, nonfinite=1, minimum=1.0, maximum=1.0
    )


def test_nothing_observed_is_defined():
    state = Histogram().observe(np.empty((0, 3), np.float32))
    assert state == Histogram()
    assert state.counted == 0
    assert (state.extrema.minimum, state.extrema.maximum) == (math.inf, -math.inf)


def test_only_nonfinite_elements_leave_no_extrema():
    state = Histogram().observe([np.nan, np.inf])
    assert state.extrema == Extrema(nonfinite=2)
    assert state.counted == 0


def test_negative_zero_alone_reads_as_zero():
    assert math.copysign(1.0, Extrema().observe(np.array(-0.0, np.float32)).minimum) == 1.0


def test_strided_and_scalar_arrays_are_read():
    x = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::3]
    assert Histogram().observe(x) == Histogram().observe(x.ravel().tolist())
    assert Histogram().observe(np.float32(3)).extrema.maximum == 3.0


def test_state_grows_with_the_value_range_not_with_the_elements():
    rng = np.random.default_rng(0)
    small = Histogram().observe(rng.standard_normal(10_000).astype(np.float32))
    large = Histogram().observe(rng.standard_normal(1_000_000).astype(np.float32))
    # 16 bits of value, sign included: a hundred times the elements reach 7 octaves nearer to zero.
    assert large.keys.size <= small.keys.size + 2 * 128 * math.ceil(math.log2(100) + 3)


def test_a_histogram_is_no_other_thing():
    assert Histogram() != Extrema()
