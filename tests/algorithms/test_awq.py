"""AWQ's factors and clip search: never worse by the output error that they lower, better where channels are loud."""

from __future__ import annotations

import numpy as np
import pytest

from quantool.algorithms.awq import awq_factors, best_factors, clip_shares
from quantool.algorithms.blocks import spread
from quantool.algorithms.gptq import output_noise
from quantool.schema import Grid

GRID = Grid.of("int4", symmetric=True)
BLOCK = 32


def layer(seed=0, inputs=128, outputs=48):
    """A weight, and the Gram matrix of inputs of which a few channels are loud."""
    rng = np.random.default_rng(seed)
    loud = np.exp(rng.normal(0, 1.2, inputs))
    x = rng.standard_normal((1024, inputs)) * loud
    return rng.standard_normal((outputs, inputs)), x.T @ x / len(x)


def scales(matrix):
    blocks = matrix.reshape(len(matrix), -1, BLOCK)
    return np.maximum(np.abs(blocks).max(axis=2) / GRID.qmax, 1e-30)


def rounded(matrix, scale=None):
    step = spread(scales(matrix) if scale is None else scale, matrix.shape, axis=1, block_size=BLOCK)
    return np.clip(np.rint(matrix / step), GRID.qmin, GRID.qmax) * step


def test_factors_follow_loud_channels_and_leave_silent_ones_alone():
    magnitudes = np.array([0.0, 1.0, 4.0, 1e4])
    factors = awq_factors(magnitudes, alpha=0.5)
    assert factors[0] == 1
    assert factors[1] < factors[2] < factors[3]
    assert np.isfinite(factors).all()
    np.testing.assert_array_equal(awq_factors(magnitudes, alpha=0.0), np.ones(4))
    np.testing.assert_array_equal(awq_factors(np.zeros(3), alpha=0.5), np.ones(3))


def test_scaling_lowers_the_output_error_of_weights_that_share_their_input():
    (first, gram), (second, _) = layer(0), layer(1)
    weights = [first, second]
    factors, share = best_factors(weights, gram, np.sqrt(np.diagonal(gram)), rounded=lambda _, matrix: rounded(matrix))
    before = sum(output_noise(rounded(w) - w, gram) for w in weights)
    after = sum(output_noise(rounded(w * factors) / factors - w, gram) for w in weights)
    assert after / before == pytest.approx(share)
    assert 10 * np.log10(1 / share) > 1.0


def test_factors_that_gain_nothing_are_ones():
    weight, gram = layer()
    factors, share = best_factors([weight], gram, np.sqrt(np.diagonal(gram)), rounded=lambda _, matrix: matrix)
    np.testing.assert_array_equal(factors, np.ones(len(factors)))
    assert share == 1.0


def test_clipping_lowers_the_error_within_each_block():
    weight, gram = layer(2)
    scale = scales(weight)
    shares = clip_shares(weight, gram, scale, np.zeros_like(scale), codes=(GRID.qmin, GRID.qmax), block=BLOCK)
    inside = np.kron(np.eye(weight.shape[1] // BLOCK), np.ones((BLOCK, BLOCK))) * gram
    before, after = (output_noise(rounded(weight, s) - weight, inside) for s in (scale, scale * shares))
    assert 10 * np.log10(before / after) > 0.5


def test_a_block_shorter_than_the_others_is_clipped_too():
    weight, gram = layer(3, inputs=40)
    scale = np.stack([np.abs(weight[:, :32]).max(1), np.abs(weight[:, 32:]).max(1)], axis=1) / GRID.qmax
    shares = clip_shares(weight, gram, scale, np.zeros_like(scale), codes=(GRID.qmin, GRID.qmax), block=BLOCK)
    assert shares.shape == scale.shape
    assert (shares[:, 1] < 1).any()
