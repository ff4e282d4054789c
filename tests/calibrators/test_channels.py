from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators import Channels
from calibrators.channels import ROWS
from calibrators.fixed_point import EXPONENT_STEP, grid_exponent, on_grid
from quantool.errors import QuantoolError

LAYOUTS = {"images": ((2, 5, 4, 3), 1), "tokens": ((2, 7, 5), -1), "rows": ((9, 5), 1), "row": ((5,), -1)}


def samples(shape: tuple[int, ...], count: int = 4) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(shape) * 5.0**i).astype(np.float32) for i in range(count)]


def channels_first(sample: np.ndarray, axis: int) -> np.ndarray:
    return np.moveaxis(sample, axis, 0).reshape(sample.shape[axis], -1).astype(np.float64)


def folded(arrays: list[np.ndarray], axis: int) -> Channels:
    state = Channels(axis=axis)
    for array in arrays:
        state = state.observe(array)
    return state


@pytest.mark.parametrize("layout", LAYOUTS)
def test_extrema_are_exact_and_means_as_float64_gives_them(layout):
    shape, axis = LAYOUTS[layout]
    arrays = samples(shape)
    table = np.concatenate([channels_first(a, axis) for a in arrays], axis=1)
    state = folded(arrays, axis)
    assert np.array_equal(state.lows, table.min(axis=1))
    assert np.array_equal(state.highs, table.max(axis=1))
    assert np.array_equal(state.peaks, np.abs(table).max(axis=1))
    assert state.rows == table.shape[1]
    assert np.abs(state.means - table.mean(axis=1)).max() < 2.0**-26 * np.abs(table).max()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_order_and_no_grouping_changes_a_bit(layout):
    shape, axis = LAYOUTS[layout]
    arrays = samples(shape)
    whole = folded(arrays, axis)
    assert all(folded(list(order), axis) == whole for order in permutations(arrays))
    assert folded(arrays[:1], axis).merge(folded(arrays[1:], axis)) == whole
    assert Channels(axis=axis).merge(whole) == whole.merge(Channels(axis=axis)) == whole


def test_a_large_sample_gives_some_rows_to_the_sums_and_all_to_the_extrema():
    sample = np.random.default_rng(1).standard_normal((1, 3, 60, 60)).astype(np.float32)
    sample[0, 1, 59, 59] = 100.0
    state = Channels(axis=1).observe(sample)
    assert ROWS // 2 < state.rows <= ROWS
    assert state.highs[1] == 100.0


def test_what_is_not_finite_counts_nowhere():
    sample = np.array([[1.0, np.nan], [3.0, 2.0], [np.inf, -4.0]], np.float32)
    state = Channels(axis=-1).observe(sample)
    assert (state.lows.tolist(), state.highs.tolist(), state.rows) == ([1.0, -4.0], [3.0, 2.0], 1)
    nothing = Channels(axis=-1).observe(np.full((2, 2), np.nan, np.float32))
    assert (nothing.peaks.tolist(), nothing.rows, nothing.means.tolist()) == ([0.0, 0.0], 0, [0.0, 0.0])


def test_an_empty_sample_changes_nothing_and_zeros_count_as_rows():
    state = Channels(axis=-1).observe(np.empty((0, 3), np.float32))
    assert state == Channels(axis=-1)
    assert Channels(axis=-1).observe(np.zeros((4, 3), np.float32)).rows == 4


def test_other_channels_are_not_merged():
    with pytest.raises(QuantoolError, match="3 channels on axis 1 do not go with 4 on 1"):
        folded([np.ones((2, 3), np.float32)], 1).merge(folded([np.ones((2, 4), np.float32)], 1))


@given(st.floats(2.0**-140, 2.0**127, width=32))
@settings(deadline=None)
def test_a_grid_holds_its_peak_and_wastes_less_than_its_step(peak):
    exponent = grid_exponent(peak)
    assert exponent % EXPONENT_STEP == 0
    assert 2.0 ** (exponent - EXPONENT_STEP) / 2 <= peak <= 2.0**exponent
    assert 2**20 >= abs(float(on_grid(np.float32(-peak), exponent, bits=20))) >= 2 ** (20 - EXPONENT_STEP) / 2
