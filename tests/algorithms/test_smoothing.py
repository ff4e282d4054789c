"""Smoothing factors: positive, balanced, and exactly the paper's where every channel is heard."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from quantool.algorithms.smoothing import (
    LIMITS,
    SmoothedInput,
    SmoothedLayer,
    best_factors,
    expected_error,
    smoothing_factors,
)
from quantool.schema import AnyArray

peaks = arrays(np.float64, st.integers(1, 20).map(lambda n: (n,)), elements=st.floats(0, 1e6))


def test_half_strength_makes_both_sides_alike():
    inputs, weights = np.array([100.0, 1.0, 4.0]), np.array([1.0, 1.0, 0.25])
    factors = smoothing_factors(inputs, weights, alpha=0.5)
    ratio = (inputs / factors) / (weights * factors)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12)


@given(inputs=peaks, alpha=st.floats(0, 1))
def test_factors_are_positive_and_bounded(inputs, alpha):
    factors = smoothing_factors(inputs, inputs[::-1].copy(), alpha=alpha)
    assert factors.shape == inputs.shape
    assert np.all((factors >= LIMITS[0]) & (factors <= LIMITS[1]))


@pytest.mark.parametrize("side", ["inputs", "weights"])
def test_a_silent_channel_keeps_its_scale(side):
    sides = {"inputs": np.array([3.0, 2.0]), "weights": np.array([1.0, 5.0])}
    sides[side] = np.array([0.0, 2.0])
    assert smoothing_factors(sides["inputs"], sides["weights"], alpha=0.5)[0] == 1.0


def layer(weight: AnyArray) -> SmoothedLayer:
    """A matrix product with weight [O, C], in 8 bits a row."""
    return SmoothedLayer(
        magnitudes=np.abs(weight)[None], energies=np.square(weight).sum(axis=0), taps=1, levels=127, per_tensor=False
    )


def quantized_error(x: AnyArray, weight: AnyArray, factors: AnyArray) -> float:
    """The mean squared error of Q(x / s) Q(W s), both to nearest, beside the power of x W."""
    easier, harder = x / factors, weight * factors
    step = (max(easier.max(), 0) - min(easier.min(), 0)) / 255
    steps = np.abs(harder).max(axis=1, keepdims=True) / 127
    found = (np.rint(easier / step) * step) @ (np.rint(harder / steps) * steps).T
    return float(np.square(found - x @ weight.T).sum() / (np.square(x).sum(axis=0) @ np.square(weight).sum(axis=0)))


@given(seed=st.integers(0, 10_000), spread=st.floats(0, 3))
@settings(max_examples=40)
def test_the_expected_error_is_the_measured_one_and_the_best_strength_lowers_it(seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.normal(0, spread, 48))
    x = np.clip(rng.standard_normal((1500, 48)), -3, 3) * sizes
    weight = rng.standard_normal((32, 48)) / sizes**0.5
    inputs = [SmoothedInput(lows=x.min(axis=0), highs=x.max(axis=0), levels=255)]
    squares = np.square(x).mean(axis=0)
    found = best_factors(inputs, [layer(weight)], squares)
    for factors in (np.ones(48), *(() if found is None else (found[0],))):
        expected = expected_error(factors, inputs, [layer(weight)], squares)
        assert quantized_error(x, weight, factors) == pytest.approx(expected, rel=0.35)
    assert spread < 2 or found is not None
    if found is not None:
        assert quantized_error(x, weight, found[0]) < quantized_error(x, weight, np.ones(48))


def test_channels_of_one_size_are_left_alone_and_a_bound_holds() -> None:
    rng = np.random.default_rng(0)
    even = [SmoothedInput(lows=-np.ones(16), highs=np.ones(16), levels=255)]
    weight = rng.uniform(-1, 1, (64, 16))
    assert best_factors(even, [layer(weight)], np.full(16, 0.3)) is None
    sizes = np.geomspace(0.01, 10, 16)
    uneven = [SmoothedInput(lows=-sizes, highs=sizes, levels=255)]
    most = np.where(np.arange(16) < 4, 2.0, 0.5)
    found = best_factors(uneven, [layer(weight / sizes)], np.square(sizes) / 3, most=most)
    assert found is not None
    grown = 1.0 / found[0]
    assert np.all(grown[:4] <= 2.0 + 1e-12)
    np.testing.assert_array_equal(grown[4:], 1.0)
