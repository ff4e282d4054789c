"""Metrics: their definitions, their symmetries, and every edge that could make a bad model read as a good one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantool.kernels import metrics

values = st.floats(-1024, 1024, width=32).map(lambda v: round(v, 3))
pairs = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=6).flatmap(
    lambda shape: st.tuples(*[hnp.arrays(np.float64, shape, elements=values)] * 2)
)


@given(pairs)
def test_figures_equal_their_definitions(pair: tuple[np.ndarray, np.ndarray]) -> None:
    r, t = pair
    noise, signal = np.sum((r - t) ** 2), np.sum(r**2)
    assert metrics.max_abs_error(r, t) == np.max(np.abs(r - t))
    if noise and signal:
        assert metrics.sqnr_db(r, t) == pytest.approx(10 * math.log10(signal / noise), rel=1e-12, abs=1e-12)
    if signal and np.sum(t**2):
        want = np.sum(r * t) / math.sqrt(signal * np.sum(t**2))
        assert metrics.cosine(r, t) == pytest.approx(want, rel=1e-12, abs=1e-12)


@given(pairs, st.integers(-20, 20))
def test_a_common_power_of_two_changes_no_ratio(pair: tuple[np.ndarray, np.ndarray], exponent: int) -> None:
    r, t = pair
    factor = 2.0**exponent
    assert metrics.sqnr_db(r * factor, t * factor) == pytest.approx(metrics.sqnr_db(r, t), rel=1e-12, abs=1e-9)
    assert metrics.max_abs_error(r * factor, t * factor) == metrics.max_abs_error(r, t) * factor


@given(pairs)
def test_channels_are_the_figures_of_the_slices(pair: tuple[np.ndarray, np.ndarray]) -> None:
    r, t = pair
    for axis in range(-r.ndim, r.ndim):
        got = metrics.channel_sqnr_db(r, t, axis=axis)
        slices = zip(np.moveaxis(r, axis, 0), np.moveaxis(t, axis, 0), strict=True)
        want = [metrics.sqnr_db(a, b) for a, b in slices]
        assert got.tolist() == pytest.approx(want, rel=1e-12, abs=1e-9)
        worst = metrics.worst_channel_sqnr_db(r, t, axis=axis)
        assert worst <= max(want) + 1e-9
        assert worst in got


def test_channels_are_the_same_where_the_tensor_spans_several_pieces() -> None:
    rng = np.random.default_rng(0)
    r = rng.standard_normal((7, 50_000)).astype(np.float32)
    t = r + rng.standard_normal(r.shape).astype(np.float32) * np.float32(0.01)
    want = [metrics.sqnr_db(a, b) for a, b in zip(r, t, strict=True)]
    assert metrics.channel_sqnr_db(r, t, axis=0).tolist() == pytest.approx(want, rel=1e-12)


INF, NAN = math.inf, math.nan
EDGES = {
    # reference, test, sqnr_db, cosine, max_abs_error
    "equal": ([1, 2], [1, 2], INF, 1.0, 0.0),
    "both zero": ([0, 0], [0, 0], INF, 1.0, 0.0),
    "zero reference": ([0, 0], [0, 1], -INF, 0.0, 1.0),
    "zero test": ([0, 2], [0, 0], 0.0, 0.0, 2.0),
    "empty": ([], [], INF, 1.0, 0.0),
    "one element": ([2], [1], 10 * math.log10(4), 1.0, 1.0),
    "the same infinity is left out": ([-INF, 1], [-INF, 1], INF, 1.0, 0.0),
    "an infinity in the test alone": ([1, 1], [INF, 1], -INF, NAN, INF),
    "an infinity in the reference alone": ([INF, 1], [1, 1], NAN, NAN, INF),
    "opposite infinities": ([INF, 1], [-INF, 1], NAN, NAN, INF),
    "NaN in the test": ([1, 1], [NAN, 1], NAN, NAN, NAN),
    "NaN in both": ([NAN, 1], [NAN, 1], NAN, NAN, NAN),
    "opposite sign": ([1, 2], [-1, -2], -10 * math.log10(4), -1.0, 4.0),
    "negative zero": ([0.0], [-0.0], INF, 1.0, 0.0),
}


@pytest.mark.parametrize(("reference", "test", "sqnr", "cosine", "error"), EDGES.values(), ids=EDGES)
def test_edge_rows(reference: list[float], test: list[float], sqnr: float, cosine: float, error: float) -> None:
    r, t = np.array(reference, np.float32), np.array(test, np.float32)
    assert metrics.sqnr_db(r, t) == pytest.approx(sqnr, nan_ok=True)
    assert metrics.cosine(r, t) == pytest.approx(cosine, nan_ok=True)
    assert metrics.max_abs_error(r, t) == pytest.approx(error, nan_ok=True)


def test_a_dead_channel_does_not_hide_the_worst_living_one() -> None:
    r = np.array([[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    t = np.array([[0.1, 0.0], [1.0, 0.9], [1.0, 1.0]])
    assert metrics.worst_channel_sqnr_db(r, t, axis=0) == metrics.sqnr_db(r[1], t[1])
    assert metrics.worst_channel_sqnr_db(r[:1], t[:1], axis=0) == -INF
    assert metrics.worst_channel_sqnr_db(r, r, axis=0) == INF
    assert metrics.worst_channel_sqnr_db(r[:0], t[:0], axis=0) == INF
    t[2, 0] = NAN
    assert math.isnan(metrics.worst_channel_sqnr_db(r, t, axis=0))


def test_top1_counts_rows_whose_largest_entry_stays() -> None:
    r = np.array([[1, 2, 3], [3, 2, 1], [1, 5, 5]])
    t = np.array([[1, 9, 3], [3, 2, 1], [0, 5, 5]])
    assert metrics.top1_agreement(r, t) == 2 / 3
    assert metrics.top1_agreement(r.T, t.T, axis=0) == 2 / 3
    assert metrics.top1_agreement(r[:0], t[:0]) == 1.0
    nan = np.array([[NAN, 1.0, 2.0]])
    assert metrics.top1_agreement(np.array([[0.0, 1.0, 2.0]]), nan) == 0.0


@pytest.mark.parametrize("figure", [metrics.sqnr_db, metrics.cosine, metrics.max_abs_error, metrics.top1_agreement])
def test_unequal_shapes_are_refused(figure: object) -> None:
    with pytest.raises(ValueError, match=r"test has shape \[3\]; it must be the reference's, \[2\]"):
        figure(np.zeros(2), np.zeros(3))  # type: ignore[operator]  # one of the functions above


def test_a_bad_axis_is_refused() -> None:
    x = np.zeros((2, 0))
    for figure in (metrics.channel_sqnr_db, metrics.worst_channel_sqnr_db, metrics.top1_agreement):
        with pytest.raises(ValueError, match=r"axis is 2; for rank 2 it must be in \[-2, 1\]"):
            figure(x, x, axis=2)
    with pytest.raises(ValueError, match=r"axis is 1, which has no entries in shape \[2, 0\]"):
        metrics.top1_agreement(x, x, axis=1)
