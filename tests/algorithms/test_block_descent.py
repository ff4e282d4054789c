"""Coordinate descent in blocks: no larger error on the matrix that it looks at, and a gain behind GPTQ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantool.algorithms.block_descent import descended
from quantool.algorithms.gptq import DAMPING, gptq, output_noise
from quantool.schema import Grid


def layer(seed, *, inputs=96, outputs=24, block=32, dtype="int4"):
    """A weight, the Gram matrix of correlated inputs, and the scales and zero points of its blocks."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4 * inputs, inputs)) @ (rng.standard_normal((inputs, inputs)) / np.arange(1, inputs + 1))
    weight = rng.standard_normal((outputs, inputs))
    grid = Grid.of(dtype, symmetric=not dtype.startswith("u"))
    cuts = range(0, inputs, block)
    low, high = (np.stack([edge(weight[:, i : i + block], axis=1) for i in cuts], axis=1) for edge in (np.min, np.max))
    if grid.symmetric:
        scale, zero = np.maximum(-low, high) / grid.qmax, np.zeros_like(low)
    else:
        scale = (high - low) / grid.qmax
        zero = np.rint(-low / scale)
    return weight, x.T @ x / len(x), scale, np.repeat(zero, block, axis=1)[:, :inputs], grid


def values(codes, scale, zero, block):
    return (codes - zero) * np.repeat(scale, block, axis=1)[:, : codes.shape[1]]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from(["int4", "uint4", "uint2", "int8"]),
    inputs=st.sampled_from([20, 64, 100, 160]),
)
def test_the_error_never_grows_and_codes_stay_on_the_grid(seed, dtype, inputs):
    weight, gram, scale, zero, grid = layer(seed, inputs=inputs, outputs=6, dtype=dtype)
    codes = np.clip(np.rint(weight / np.repeat(scale, 32, axis=1)[:, :inputs]) + zero, grid.qmin, grid.qmax)
    found, fitted = descended(weight, gram, scale, zero, codes, grid=grid, block=32)
    damped = gram + DAMPING * np.mean(np.diagonal(gram)) * np.eye(inputs)
    before = output_noise(weight - values(codes, scale, zero, 32), damped)
    assert output_noise(weight - values(found, fitted, zero, 32), damped) <= before * (1 + 1e-9)
    assert grid.qmin <= found.min() <= found.max() <= grid.qmax
    assert (fitted > 0).all()


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_it_gains_behind_gptq(dtype):
    weight, gram, scale, zero, grid = layer(1, dtype=dtype)
    codes = gptq(weight, gram, np.repeat(scale, 32, axis=1), grid=grid, zero_point=zero)
    found, fitted = descended(weight, gram, scale, zero, codes, grid=grid, block=32)
    noise = [output_noise(weight - values(q, s, zero, 32), gram) for q, s in ((codes, scale), (found, fitted))]
    assert 10 * np.log10(noise[0] / noise[1]) > 0.3


def test_silent_inputs_and_codes_at_their_best_stay():
    weight, _, scale, zero, grid = layer(2)
    codes = np.clip(np.rint(weight / np.repeat(scale, 32, axis=1)), grid.qmin, grid.qmax)
    found, fitted = descended(weight, np.zeros((96, 96)), scale, zero, codes, grid=grid, block=32)
    np.testing.assert_array_equal(found, codes)
    np.testing.assert_array_equal(fitted, scale)
