"""Bias correction against the mean error of the layer itself."""

from __future__ import annotations

import numpy as np
import pytest

from quantool.algorithms.bias_correction import channel_means, mean_error, row_mean_error
from quantool.schema import AnyArray, QuantParams


def params(scale, zero_point):
    return QuantParams(dtype="uint8", scale=np.float32(scale), zero_point=np.int32(zero_point))


def quantized(x, p):
    codes = np.clip(np.rint(x / p.scale) + p.zero_point, 0, 255)
    return (codes - p.zero_point) * p.scale


def test_the_mean_error_of_a_matrix_product_is_exact():
    rng = np.random.default_rng(0)
    x = rng.gamma(2.0, 1.0, (512, 20)).astype(np.float32)
    p = params(0.03, 3)  # clips at 7.56
    weight = rng.standard_normal((5, 20)).astype(np.float32)
    coarse = np.rint(weight * 20).astype(np.float32) / 20
    mean, mean_quantized = channel_means(x, p, axis=-1)
    expected = (quantized(x, p) @ coarse.T - x @ weight.T).mean(axis=0)
    # Both means are sums of 512 float32 products.
    np.testing.assert_allclose(mean_error(weight, coarse, mean, mean_quantized, outputs=5), expected, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 4], ids=["full", "grouped", "depthwise"])
def test_groups_of_a_convolution_see_their_own_inputs(groups):
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((8, 4 // groups, 3, 3)).astype(np.float32)
    coarse = np.rint(weight * 8).astype(np.float32) / 8
    means = np.array([1.0, -2.0, 0.5, 3.0])
    found = mean_error(weight, coarse, means, means, outputs=8)
    for output in range(8):
        inputs = means.reshape(groups, -1)[output // (8 // groups)]
        expected = ((coarse - weight)[output].sum(axis=(1, 2)).astype(np.float64) * inputs).sum()
        assert found[output] == pytest.approx(expected, abs=1e-5)


def test_channels_are_found_on_any_axis():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    mean, _ = channel_means(x, params(0.25, 0), axis=1)
    np.testing.assert_allclose(mean, x.mean(axis=(0, 2)))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_means_of_rows_give_the_mean_of_the_output_error(groups: int) -> None:
    rng = np.random.default_rng(groups)
    x, disturbed = rng.standard_normal((2, 100, groups, 5))
    weight = rng.standard_normal((8, 5))
    coarse = np.rint(weight * 4) / 4

    def outputs(rows: AnyArray, matrix: AnyArray) -> AnyArray:
        return np.einsum("ngd,god->ngo", rows, matrix.reshape(groups, -1, 5)).reshape(100, 8)

    expected = (outputs(disturbed, coarse) - outputs(x, weight)).mean(axis=0)
    found = row_mean_error(weight, coarse, x.mean(axis=0), disturbed.mean(axis=0))
    np.testing.assert_allclose(found, expected, atol=1e-12)
