"""Searches for the scales of blocks: their own objectives, odd blocks, and every layout that a weight can have."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantool.algorithms.blocks import bounds, nearest_steps, over_blocks, spread
from quantool.algorithms.hqq import P, half_quadratic
from quantool.algorithms.k_quant import least_squares
from quantool.algorithms.mse_clip import QUICK, clipped
from quantool.schema import Grid

#: name -> (search, power of the error that it lowers)
SEARCHES = {
    "mse-clip": (clipped, 2.0),
    "quick mse-clip": (partial(clipped, ratios=QUICK), 2.0),
    "k-quant": (least_squares, 2.0),
    "thorough k-quant": (partial(least_squares, thorough=True), 2.0),
    "hqq": (half_quadratic, P),
}
GRIDS = {
    "int4": Grid.of("int4", symmetric=True),
    "uint4": Grid.of("uint4"),
    "middle of uint4": Grid.of("uint4", symmetric=True),
    "int2": Grid.of("int2", symmetric=True),
    "uint2": Grid.of("uint2"),
    "3 bits": Grid.of("int8", symmetric=True, bits=3),
    "int8": Grid.of("int8", symmetric=True),
}
BLOCKS = {
    "zero": np.zeros(32),
    "constant": np.full(32, 0.37),
    "negative constant": np.full(32, -2.5e-3),
    "positive": np.linspace(0.5, 1.5, 32),
    "negative": np.linspace(-3, -1, 32),
    "one spike": np.eye(32)[3] * -7,
    "huge": np.linspace(-1e37, 1e37, 32),
    "tiny": np.linspace(-1e-37, 1e-37, 32),
}


def decoded(values, scale, zero_point, grid):
    """What the codes of blocks stand for, float64[m, n, i]."""
    step, zero = scale[:, None].astype(np.float64), zero_point[:, None]
    return (np.clip(np.rint(values / step) + zero, grid.qmin, grid.qmax) - zero) * step


def errors(values, found, grid, power, importance=1.0):
    exact = values.astype(np.float64)
    return (importance * np.abs(exact - decoded(exact, *found, grid)) ** power).sum(axis=1)


def draw(seed, count=40, length=32):
    """Blocks of every kind: normal, heavy-tailed, of one sign, of very different sizes."""
    rng = np.random.default_rng(seed)
    kinds = [rng.standard_normal((length, count)), rng.standard_t(2, (length, count)), rng.random((length, count))]
    return np.float32(np.concatenate(kinds, axis=1) * 10.0 ** rng.integers(-4, 3, 3 * count))[None]


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), length=st.sampled_from([1, 2, 7, 16, 32, 128]))
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", SEARCHES)
def test_no_block_is_worse_than_rounded_to_nearest_by_the_searchs_own_measure(name, grid, seed, length):
    (search, power), levels = SEARCHES[name], GRIDS[grid]
    values = draw(seed, length=length)
    found, plain = search(values, levels), nearest_steps(*bounds(values), levels)
    after, before = errors(values, found, levels, power), errors(values, plain, levels, power)
    # float32 decides in the search
    slack = ((1e-6 * np.abs(values.astype(np.float64))) ** power).sum(axis=1)
    assert (after <= before * (1 + 1e-4) + slack).all()


@pytest.mark.parametrize("name", ["mse-clip", "k-quant"])
@pytest.mark.parametrize("grid", ["int4", "uint4"])
def test_importance_weighs_errors(name, grid):
    search, levels = SEARCHES[name][0], GRIDS[grid]
    values = draw(5)
    importance = np.float32(np.random.default_rng(6).lognormal(sigma=1.5, size=(1, 32, 1)))
    weighted, plain = search(values, levels, importance=importance), search(values, levels)
    scored = [errors(values, found, levels, 2.0, importance).sum() for found in (weighted, plain)]
    assert scored[0] < scored[1]


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", SEARCHES)
def test_odd_blocks_get_usable_scales_and_zero_stays_exact(name, grid, kind):
    levels, values = GRIDS[grid], np.float32(BLOCKS[kind])[None, :, None]
    scale, zero_point = SEARCHES[name][0](values, levels)
    assert scale.dtype == np.float32
    assert np.isfinite(scale).all()
    assert (scale > 0).all()
    assert levels.qmin <= zero_point.min() <= zero_point.max() <= levels.qmax
    if kind in ("zero", "constant"):
        assert decoded(values, scale, zero_point, levels) == pytest.approx(values, rel=0.13 if "2" in grid else 0.07)


@pytest.mark.parametrize("grid", ["int4", "uint4", "uint2"])
@pytest.mark.parametrize("name", SEARCHES)
def test_neither_the_order_of_blocks_nor_their_number_matters(name, grid):
    search, levels, values = SEARCHES[name][0], GRIDS[grid], draw(3)
    order = np.random.default_rng(1).permutation(values.shape[2])
    whole, turned = search(values, levels), search(np.ascontiguousarray(values[:, :, order]), levels)
    first = search(np.ascontiguousarray(values[:, :, :5]), levels)
    for one, other, part in zip(whole, turned, first, strict=True):
        np.testing.assert_array_equal(one[:, order], other)
        np.testing.assert_array_equal(one[:, :5], part)


@pytest.mark.parametrize(("grid", "least_db"), [("int4", (0.7, 0.9, 0.7)), ("uint4", (0.15, 0.25, 0.2))])
def test_gains_over_rounding_to_nearest_on_normal_weights(grid, least_db):
    values = np.float32(np.random.default_rng(0).standard_normal((1, 32, 4000)))
    levels = GRIDS[grid]
    plain = errors(values, nearest_steps(*bounds(values), levels), levels, 2.0).sum()
    for name, least in zip(("quick mse-clip", "k-quant", "hqq"), least_db, strict=True):
        found = errors(values, SEARCHES[name][0](values, levels), levels, 2.0).sum()
        assert 10 * np.log10(plain / found) >= least


# --- layouts --------------------------------------------------------------------------------------------

LAYOUTS = [
    ((64, 48), 0, 16), ((64, 48), 1, 16), ((70, 48), 0, 32), ((48, 70), 1, 32), ((3, 40, 6), 1, 16),
    ((3, 40, 6), -2, 64), ((5, 300), 1, 150), ((24, 7), 0, 0), ((7, 24), 1, 0), ((6, 3, 5, 5), 0, 0),
    ((4, 6, 3, 3), 1, 0), ((2, 9, 5), 2, 0), ((40, 40), None, 0), ((9,), 0, 4), ((0, 8), 1, 4), ((600, 70), 0, 0),
    ((2, 3, 64, 2), 2, 32),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axis", "block_size"), LAYOUTS)
def test_every_block_of_every_layout_is_searched_by_itself(shape, axis, block_size):
    rng = np.random.default_rng(2)
    weight = np.float32(rng.standard_normal(shape))
    importance = np.float32(rng.random(shape))
    grid = GRIDS["uint4"]
    search = partial(_weighted, grid=grid)
    scale, zero_point = over_blocks(weight, search, axis=axis, block_size=block_size, importance=importance)
    steps = spread(scale, shape, axis=axis, block_size=block_size)
    zeros = spread(zero_point, shape, axis=axis, block_size=block_size)
    labels = spread(np.arange(scale.size).reshape(scale.shape), shape, axis=axis, block_size=block_size)
    for block in range(scale.size):
        inside = labels == block
        alone = search(weight[inside][None, :, None], importance[inside][None, :, None])
        # sums in another order may tie candidates otherwise, never by more than a step of the ratios
        np.testing.assert_allclose(steps[inside][0], alone[0].item(), rtol=1e-6)
        assert zeros[inside][0] == alone[1].item()


def _weighted(values, importance, *, grid):
    return clipped(values, grid, importance=importance, ratios=QUICK)


def test_a_weight_in_half_precision_is_searched_as_its_float32_values():
    weight = np.random.default_rng(4).standard_normal((64, 32)).astype(np.float16)
    search = partial(_weighted, grid=GRIDS["int4"])
    half, single = (over_blocks(w, search, axis=0, block_size=32) for w in (weight, weight.astype(np.float32)))
    np.testing.assert_array_equal(half[0], single[0])
