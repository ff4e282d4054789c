"""Smoothing factors: positive, balanced, and exactly the paper's where every channel is heard."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from quantool.algorithms.smoothing import LIMITS, smoothing_factors

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
