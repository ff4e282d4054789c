"""Equalizing factors: positive, the paper's between plain layers, and blind to how channels were scaled before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from quantool.algorithms.equalization import (
    HEADROOM,
    MOST_GROWTH,
    Activation,
    Float64,
    Weight,
    clip_limits,
    equalizing_factors,
    imbalance,
    sizes_of,
    unseen_growth,
)

CHANNELS = 8
#: the iteration stops where no logarithm moves by 1e-3, which takes the rest of the way in steps of at most a half
CLOSE = 5e-3

magnitudes = arrays(np.float64, (CHANNELS,), elements=st.one_of(st.just(0.0), st.floats(1e-20, 1e20)))


def dense(seed: int, shape: tuple[int, int, int] = (1, CHANNELS, CHANNELS)) -> Float64:
    return np.random.default_rng(seed).uniform(0.5, 2.0, shape)


def rescaled(size: int, *, seed: int = 5) -> Float64:
    return np.exp(np.random.default_rng(seed).normal(0, np.log(24), size))


def triple(scales: Sequence[Float64], *, per_tensor: bool) -> tuple[list[Activation], list[Weight]]:
    """A layer, a depthwise one and a last one, whose channels between were multiplied by two lots of scales."""
    first, last = scales
    activations = [
        Activation(sizes=np.linspace(1, 2, CHANNELS) * first, grows=0),
        Activation(sizes=np.linspace(3, 1, CHANNELS) * last, grows=1),
    ]
    layers = [
        (dense(1) * first.reshape(1, -1, 1), 0, None),
        (dense(2, (CHANNELS, 1, 1)) * (last / first).reshape(-1, 1, 1), 1, 0),
        (dense(3) / last.reshape(1, 1, -1), None, 1),
    ]
    weights = [Weight(magnitudes=m, grows=g, shrinks=s, per_tensor=per_tensor) for m, g, s in layers]
    return activations, weights


def test_a_row_and_a_column_give_equation_11() -> None:
    first, second = np.array([100.0, 1.0, 0.5]), np.array([0.1, 2.0, 1.0])
    weights = [
        Weight(magnitudes=first.reshape(1, 3, 1), grows=0, shrinks=None, per_tensor=True),
        Weight(magnitudes=second.reshape(1, 1, 3), grows=None, shrinks=0, per_tensor=True),
    ]
    (factors,) = equalizing_factors([3], [], weights)
    expected = np.sqrt(second / first)
    np.testing.assert_allclose(factors / factors[1], expected / expected[1], rtol=CLOSE)


def test_a_depthwise_triple_gives_each_channel_one_range_in_all_three_layers() -> None:
    """As the appendix has it, up to one number for each layer, which its scale takes up."""
    rows, depthwise, columns = (np.array(values) for values in ([9.0, 1.0, 2.0], [1.0, 50.0, 3.0], [5.0, 1.0, 0.01]))
    weights = [
        Weight(magnitudes=rows.reshape(1, 3, 1), grows=0, shrinks=None, per_tensor=True),
        Weight(magnitudes=depthwise.reshape(3, 1, 1), grows=1, shrinks=0, per_tensor=True),
        Weight(magnitudes=columns.reshape(1, 1, 3), grows=None, shrinks=1, per_tensor=True),
    ]
    before, after = equalizing_factors([3, 3], [], weights)
    expected = np.cbrt(rows * depthwise * columns)
    for ranges in (rows * before, depthwise * after / before, columns / after):
        np.testing.assert_allclose(ranges / ranges[0], expected / expected[0], rtol=CLOSE)


@pytest.mark.parametrize("per_tensor", [False, True], ids=["channel", "tensor"])
def test_balanced_layers_stay_as_they_are(per_tensor: bool) -> None:
    ones = np.ones((1, CHANNELS, CHANNELS))
    weights = [
        Weight(magnitudes=ones, grows=0, shrinks=None, per_tensor=per_tensor),
        Weight(magnitudes=ones, grows=None, shrinks=0, per_tensor=per_tensor),
    ]
    activations = [Activation(sizes=np.full(CHANNELS, 3.0), grows=0)]
    np.testing.assert_array_equal(equalizing_factors([CHANNELS], activations, weights)[0], 1.0)
    assert imbalance([CHANNELS], activations, weights) == (0.0,)


@pytest.mark.parametrize("per_tensor", [False, True], ids=["channel", "tensor"])
def test_how_channels_were_scaled_before_does_not_matter(per_tensor: bool) -> None:
    scales = [rescaled(CHANNELS), rescaled(CHANNELS, seed=6)]
    ones = [np.ones(CHANNELS)] * 2
    plain = equalizing_factors([CHANNELS] * 2, *triple(ones, per_tensor=per_tensor))
    found = equalizing_factors([CHANNELS] * 2, *triple(scales, per_tensor=per_tensor))
    for expected, factors, scale in zip(plain, found, scales, strict=True):
        ratio = factors * scale / expected
        np.testing.assert_allclose(ratio, ratio[0], rtol=4 * CLOSE)
    assert min(imbalance([CHANNELS] * 2, *triple(scales, per_tensor=per_tensor))) > 1
    assert max(imbalance([CHANNELS] * 2, *triple(ones, per_tensor=False))) < 0.5


@given(sizes=magnitudes, rows=magnitudes, columns=magnitudes, per_tensor=st.booleans(), bound=st.floats(1e-3, 1e3))
def test_factors_are_positive_and_finite_whatever_is_silent(
    sizes: Float64, rows: Float64, columns: Float64, per_tensor: bool, bound: float
) -> None:
    weights = [
        Weight(magnitudes=rows.reshape(1, -1, 1), grows=0, shrinks=None, per_tensor=per_tensor),
        Weight(magnitudes=columns.reshape(2, 1, -1), grows=None, shrinks=0, per_tensor=per_tensor),
    ]
    for limits in (None, clip_limits([sizes], bound)):
        activation = Activation(sizes=sizes, grows=0, limits=limits)
        (factors,) = equalizing_factors([CHANNELS], [activation], weights)
        assert np.isfinite(factors).all()
        assert (factors > 0).all()
        assert np.isfinite(imbalance([CHANNELS], [activation], weights)).all()


def test_a_channel_that_is_silent_everywhere_keeps_its_scale() -> None:
    sizes = np.array([0.0, 1.0, 100.0])
    weights = [Weight(magnitudes=np.array([[[0.0], [1.0], [5.0]]]), grows=0, shrinks=None, per_tensor=True)]
    (factors,) = equalizing_factors([3], [Activation(sizes=sizes, grows=0)], weights)
    assert factors[0] == 1.0
    assert factors[1] > 1.0 > factors[2]


def test_what_a_clip_cuts_off_keeps_its_scale_and_the_rest_stays_below_the_bound() -> None:
    peaks = np.array([6.0, 5.9, 0.1, 1e-4, 0.0])
    limits = clip_limits([peaks, peaks / 2], 6.0)
    (factors,) = equalizing_factors([5], [Activation(sizes=peaks, grows=0, limits=limits)], [])
    np.testing.assert_allclose(factors, [1.0, 1.0, 48.0, 48000.0, 1.0], rtol=CLOSE)
    assert (factors * peaks)[2:].max() <= 6.0 / HEADROOM * (1 + 1e-12)


@given(arrays(np.float64, (5, 3), elements=st.floats(0, 1e30)))
def test_the_size_of_a_channel_lies_between_its_mean_and_its_largest_peak(peaks: Float64) -> None:
    sizes = sizes_of(list(peaks))
    largest = peaks.max(axis=0)
    assert (sizes <= largest * (1 + 1e-12)).all()
    assert (sizes >= peaks.mean(axis=0) * (1 - 1e-12)).all()


def test_what_one_sample_alone_stirs_grows_without_it() -> None:
    steady, once, silent = [1.0, 1.0, 1.0], [0.0, 5.0, 0.0], [0.0, 0.0, 0.0]
    grown = np.array(unseen_growth(list(np.array([steady, once, silent]).T)))
    np.testing.assert_allclose(grown[:, 0], 1.0)
    np.testing.assert_allclose(grown[:, 1], [1.0, MOST_GROWTH, 1.0])
    assert np.isfinite(grown).all()
    np.testing.assert_array_equal(unseen_growth([np.array([3.0, 0.0])]), [[1.0, 1.0]])
