"""GPTQ against rounding to nearest, and against its own definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantool.algorithms.gptq import gptq, output_noise
from quantool.schema import Grid


def layer(seed, inputs=48, outputs=16, rank=None):
    """A weight, and the Gram matrix of strongly correlated inputs."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((rank or inputs, inputs))
    x = rng.standard_normal((4 * inputs, rank or inputs)) @ mixing
    return rng.standard_normal((outputs, inputs)), x.T @ x / len(x)


def nearest(weight, scale, grid):
    return np.clip(np.rint(weight / scale[:, None]), grid.qmin, grid.qmax)


@pytest.mark.parametrize(("bits", "gain_db"), [(8, 3.0), (4, 3.0)])
def test_output_noise_falls_on_correlated_inputs(bits, gain_db):
    weight, gram = layer(0, rank=12)
    grid = Grid.of("int8", symmetric=True, bits=bits)
    scale = np.abs(weight).max(axis=1) / grid.qmax
    codes = gptq(weight, gram, scale, grid=grid)
    before = output_noise(weight - nearest(weight, scale, grid) * scale[:, None], gram)
    after = output_noise(weight - codes * scale[:, None], gram)
    assert 10 * np.log10(before / after) >= gain_db


def test_uncorrelated_inputs_are_rounded_to_nearest():
    weight, _ = layer(1)
    grid = Grid.of("int8", symmetric=True)
    scale = np.abs(weight).max(axis=1) / grid.qmax
    codes = gptq(weight, np.eye(weight.shape[1]), scale, grid=grid)
    np.testing.assert_array_equal(codes, nearest(weight, scale, grid))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), bits=st.sampled_from([2, 3, 4, 8]), inputs=st.integers(1, 150))
def test_codes_stay_on_the_grid_whatever_the_layer(seed, bits, inputs):
    weight, gram = layer(seed, inputs=inputs, outputs=3)
    grid = Grid.of("int8", symmetric=True, bits=bits)
    codes = gptq(weight, gram, np.abs(weight).max(axis=1) / grid.qmax, grid=grid)
    assert codes.dtype == np.int32
    assert codes.shape == weight.shape
    assert codes.min() >= grid.qmin
    assert codes.max() <= grid.qmax


def test_the_order_of_the_inputs_does_not_matter():
    weight, gram = layer(2)
    grid = Grid.of("int8", symmetric=True, bits=4)
    scale = np.abs(weight).max(axis=1) / grid.qmax
    order = np.random.default_rng(0).permutation(weight.shape[1])
    codes = gptq(weight, gram, scale, grid=grid)
    shuffled = gptq(weight[:, order], gram[np.ix_(order, order)], scale, grid=grid)
    assert np.mean(shuffled == codes[:, order]) > 0.99  # roundings of the factorization may move a tie


@pytest.mark.parametrize("gram", [np.zeros((4, 4)), np.full((4, 4), np.nan)], ids=["silent", "nan"])
def test_a_matrix_that_says_nothing_gives_none(gram):
    assert gptq(np.ones((2, 4)), gram, np.ones(2), grid=Grid.of("int8", symmetric=True)) is None


def test_output_noise_is_the_mean_square_of_the_output_error():
    rng = np.random.default_rng(3)
    x, error = rng.standard_normal((500, 7)), rng.standard_normal((3, 7))
    gram = x.T @ x / len(x)
    assert output_noise(error, gram) == pytest.approx(np.square(x @ error.T).sum() / len(x), rel=1e-12)


def test_groups_are_rounded_each_by_its_own_matrix():
    layers = [layer(seed, inputs=9, outputs=4, rank=3) for seed in range(3)]
    grid = Grid.of("int8", symmetric=True, bits=4)
    weights, grams = np.concatenate([w for w, _ in layers]), np.stack([g for _, g in layers])
    scale = np.abs(weights).max(axis=1) / grid.qmax
    codes = gptq(weights, grams, scale, grid=grid)
    for i, (weight, gram) in enumerate(layers):
        rows = slice(4 * i, 4 * i + 4)
        np.testing.assert_array_equal(codes[rows], gptq(weight, gram, scale[rows], grid=grid))
    error = weights - codes * scale[:, None]
    parts = [output_noise(error[4 * i : 4 * i + 4], gram) for i, gram in enumerate(grams)]
    assert output_noise(error, grams) == pytest.approx(sum(parts), rel=1e-12)


def test_a_silent_group_is_rounded_to_nearest_beside_others():
    weight, gram = layer(4, inputs=9, outputs=2, rank=3)
    grid = Grid.of("int8", symmetric=True, bits=4)
    weights, grams = np.concatenate([weight, weight]), np.stack([gram, np.zeros_like(gram)])
    scale = np.abs(weights).max(axis=1) / grid.qmax
    codes = gptq(weights, grams, scale, grid=grid)
    np.testing.assert_array_equal(codes[2:], nearest(weight, scale[2:], grid))
    assert not np.array_equal(codes[:2], codes[2:])


# --- blocks and zero points -----------------------------------------------------------------------------


def in_blocks(weight, grid, block):
    """Scale and zero point of each weight, float[O, d], for blocks along the rows."""
    cut = weight.reshape(len(weight), -1, block)
    low, high = np.minimum(cut.min(2), 0), np.maximum(cut.max(2), 0)
    scale = (high - low) / (grid.qmax - grid.qmin)
    zero = np.clip(np.rint(grid.qmin - low / scale), grid.qmin, grid.qmax)
    return np.repeat(scale, block, axis=1), np.repeat(zero, block, axis=1)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from(["uint2", "uint4", "uint8", "int4"]),
    inputs=st.sampled_from([16, 64, 160]),
)
def test_blocks_with_zero_points_stay_on_the_grid_and_gain_on_correlated_inputs(seed, dtype, inputs):
    weight, gram = layer(seed, inputs=inputs, outputs=8, rank=max(inputs // 4, 1))
    grid = Grid.of(dtype)
    scale, zero = in_blocks(weight, grid, 16)
    codes = gptq(weight, gram, scale, grid=grid, zero_point=zero)
    assert grid.qmin <= codes.min() <= codes.max() <= grid.qmax
    plain = np.clip(np.rint(weight / scale) + zero, grid.qmin, grid.qmax)
    noise = [output_noise(weight - (q - zero) * scale, gram) for q in (codes, plain)]
    assert noise[0] < noise[1]


def test_scales_of_rows_may_be_given_for_each_weight():
    weight, gram = layer(4)
    grid = Grid.of("int4", symmetric=True)
    scale = np.abs(weight).max(axis=1) / grid.qmax
    spread = np.broadcast_to(scale[:, None], weight.shape)
    np.testing.assert_array_equal(
        gptq(weight, gram, scale, grid=grid), gptq(weight, gram, spread, grid=grid, zero_point=np.zeros(weight.shape))
    )
