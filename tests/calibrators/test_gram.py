from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from calibrators import Gram
from calibrators.fixed_point import GridSums
from quantool.errors import QuantoolError


def samples(count: int = 4, groups: int = 2, size: int = 6) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((50, groups, size)) * 7.0**i).astype(np.float32) for i in range(count)]


def folded(arrays: list[np.ndarray]) -> Gram:
    state = Gram()
    for array in arrays:
        state = state.observe(array)
    return state


def test_it_is_the_mean_of_outer_products_to_the_precision_of_the_grid():
    arrays = samples()
    rows = np.concatenate(arrays).astype(np.float64)
    exact = np.einsum("ngi,ngj->gij", rows, rows) / len(rows)
    found = folded(arrays).mean()
    assert found.shape == (2, 6, 6)
    assert np.abs(found - exact).max() < 2.0**-13 * np.abs(rows).max() ** 2
    assert np.array_equal(found, found.transpose(0, 2, 1))


def test_no_order_and_no_grouping_changes_a_bit():
    arrays = samples()
    whole = folded(arrays)
    assert all(folded(list(order)) == whole for order in permutations(arrays))
    assert folded(arrays[2:]).merge(folded(arrays[:2])) == whole
    assert Gram().merge(whole) == whole.merge(Gram()) == whole


def test_rows_that_are_not_finite_do_not_count():
    rows = samples(1)[0].copy()
    rows[3, 1, 2] = np.nan
    rows[9, 0, 0] = np.inf
    assert folded([rows]) == folded([np.delete(rows, (3, 9), axis=0)])


def test_zeros_count_as_rows_and_nothing_as_none():
    assert folded([np.zeros((5, 1, 3), np.float32)]).rows == 5
    assert folded([np.empty((0, 1, 3), np.float32)]) == Gram()
    assert float(Gram().mean()) == 0.0


def test_sums_that_may_wrap_around_are_refused():
    half = GridSums({0: np.array([-(1 << 61)], np.int64)})
    assert half.merge(half).parts[0].tolist() == [-(1 << 62)]
    assert half.merge(GridSums({4: np.array([1], np.int64)})).parts.keys() == {0, 4}
    with pytest.raises(QuantoolError, match="no longer fits 64 bits"):
        half.merge(half).merge(half)
