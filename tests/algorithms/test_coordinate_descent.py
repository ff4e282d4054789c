"""Coordinate descent against what it starts from, brute force, and its own laws."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators import Gram
from quantool import graph
from quantool.algorithms.coordinate_descent import best_scales, descend, rounded_well
from quantool.algorithms.gptq import output_noise
from quantool.algorithms.layer_input import layer_input
from quantool.graph.outputs import with_outputs
from quantool.runtime import Loadable, tap
from quantool.schema import Grid

SAMPLE_MODELS = Path(__file__).parents[2] / "sample_models"


def layer(seed, outputs=6, inputs=20, groups=1):
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((groups, inputs, inputs))
    x = rng.standard_normal((groups, 4 * inputs, inputs)) @ mixing
    return rng.standard_normal((groups * outputs, inputs)), x.transpose(0, 2, 1) @ x / (4 * inputs)


def nearest(weight, scale, grid):
    return np.clip(np.rint(weight / scale[:, None]), grid.qmin, grid.qmax)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), bits=st.sampled_from([2, 3, 4, 8]), groups=st.sampled_from([1, 3]))
def test_it_never_loses_and_stays_on_the_grid(seed, bits, groups):
    weight, gram = layer(seed, groups=groups)
    grid = Grid.of("int8", symmetric=True, bits=bits)
    scale = np.abs(weight).max(axis=1) / grid.qmax
    codes = nearest(weight, scale, grid)
    found = descend(weight, gram, scale, codes, grid=grid)
    noise = [output_noise(weight - c * scale[:, None], gram) for c in (codes, found)]
    assert noise[1] <= noise[0] * (1 + 1e-9)
    assert grid.qmin <= found.min() <= found.max() <= grid.qmax
    refitted = best_scales(weight, gram, scale, found)
    assert output_noise(weight - found * refitted[:, None], gram) <= noise[1] * (1 + 1e-9)


def test_no_single_code_can_be_changed_for_the_better():
    weight, gram = layer(1, outputs=2, inputs=6)
    grid = Grid.of("int8", symmetric=True, bits=3)
    scale = np.abs(weight).max(axis=1) / grid.qmax
    found = descend(weight, gram, scale, nearest(weight, scale, grid), grid=grid)
    least = output_noise(weight - found * scale[:, None], gram)
    for row, column in itertools.product(range(2), range(6)):
        for code in range(grid.qmin, grid.qmax + 1):
            other = found.copy()
            other[row, column] = code
            assert output_noise(weight - other * scale[:, None], gram) >= least * (1 - 1e-9)


def test_the_best_scale_is_where_the_error_is_least():
    weight, gram = layer(2, outputs=3)
    grid = Grid.of("int8", symmetric=True, bits=4)
    scale = np.abs(weight).max(axis=1) / grid.qmax
    codes = nearest(weight, scale, grid)
    best = best_scales(weight, gram, scale, codes)
    for factor in (0.99, 1.01):
        for row in range(3):
            moved = best.copy()
            moved[row] *= factor
            noise = [output_noise(weight - codes * s[:, None], gram) for s in (best, moved)]
            assert noise[0] < noise[1]


def test_silent_inputs_and_rows_of_zeros_change_nothing():
    weight, gram = layer(3, outputs=3, inputs=5)
    weight[1] = 0.0
    gram[:, 2, :] = gram[:, :, 2] = 0.0
    grid = Grid.of("int8", symmetric=True)
    scale = np.full(3, 0.02)
    codes = nearest(weight, scale, grid)
    found = descend(weight, gram, scale, codes, grid=grid)
    np.testing.assert_array_equal(found[:, 2], codes[:, 2])
    np.testing.assert_array_equal(found[1], 0)
    assert best_scales(weight, gram, scale, found)[1] == 0.02


@pytest.mark.parametrize(("name", "gain_db"), [("digits_cnn", 8.0), ("digits_depthwise", 5.5)])
def test_four_bits_a_channel_gain_decibels_on_trained_networks(name, gain_db):
    """Over all convolutions, on inputs that did not fit, against the nearest code.

    The depthwise network's inputs are nearly uncorrelated, so that there is less to gain.
    """
    constant, layers, (fitting, held_out) = trained(name)
    grid = Grid.of("int8", symmetric=True, bits=4)
    gains = []
    for node, rows in layers:
        weight = constant(node.inputs[1]).astype(np.float64).reshape(-1, rows.size)
        scale = np.abs(weight).max(axis=1) / grid.qmax
        codes, refitted = rounded_well(weight, fitting[rows.key].mean(), scale, grid=grid)
        errors = weight - nearest(weight, scale, grid) * scale[:, None], weight - codes * refitted[:, None]
        before, after = (output_noise(error, held_out[rows.key].mean()) for error in errors)
        gains.append(10 * np.log10(before / after))
    assert np.mean(gains) >= gain_db
    assert min(gains) > 2


def test_a_scale_keeps_above_its_bound():
    weight, gram = layer(5, outputs=4)
    grid = Grid.of("int8", symmetric=True, bits=4)
    scale = np.abs(weight).max(axis=1) / grid.qmax
    bound = np.array([0.0, 3.0, 0.0, 0.0]) * scale
    _, refitted = rounded_well(weight, gram, scale, grid=grid, least=bound)
    assert refitted[1] >= np.float32(bound[1]) * (1 - 1e-6)
    assert np.all(refitted[[0, 2, 3]] <= 1.5 * scale[[0, 2, 3]])


def test_a_matrix_that_says_nothing_gives_none():
    assert rounded_well(np.ones((2, 4)), np.zeros((4, 4)), np.ones(2), grid=Grid.of("int8", symmetric=True)) is None


def trained(name):
    """A sample model's constants, its convolutions, and their Gram matrices on two halves of the data."""
    path = SAMPLE_MODELS / f"{name}.onnx"
    model = graph.prepare(graph.read(path), opset=None)
    facts, data = graph.facts(model), graph.serialize(model)[0]
    found = [(node, layer_input(facts, node)) for node in facts.nodes if node.op_type == "Conv"]
    layers = [(node, rows) for node, rows in found if rows is not None]
    images = np.load(path.with_suffix(".calib.npz"))
    (key,) = [key for key in images.files if not key.startswith("label")]
    halves = []
    for part in (images[key][:64], images[key][64:128]):
        grams = {rows.key: Gram() for _, rows in layers}
        names = sorted({rows.tensor for _, rows in layers})
        feeds = [{key: image[None]} for image in part]
        for _, arrays in tap(Loadable(model=data), feeds, groups=[names], with_outputs=with_outputs):
            for _, rows in layers:
                grams[rows.key] = grams[rows.key].observe(rows.rows(arrays[rows.tensor], most=64))
        halves.append(grams)
    return graph.constant_loader(model), layers, halves
