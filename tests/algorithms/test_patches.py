"""The rows that a layer multiplies, against the layer itself."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from quantool.algorithms.patches import convolution_rows, patch_means, product_rows


def convolved(x, weight, **attributes):
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xwy"]
    graph = helper.make_graph([node], "conv", ends[:2], ends[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x, "w": weight})[0]


@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "pads", "dilations"),
    [
        pytest.param((2, 3, 8, 9), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), id="same"),
        pytest.param((2, 3, 8, 9), (3, 2), (2, 1), (0, 1, 2, 0), (1, 2), id="strided-dilated-uneven"),
        pytest.param((1, 4, 20), (5,), (3,), (2, 1), (2,), id="one-axis"),
        pytest.param((2, 2, 4, 5, 6), (2, 3, 1), (1, 2, 2), (0, 1, 0, 1, 0, 0), (1, 1, 1), id="three-axes"),
        pytest.param((3, 5, 4, 4), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), id="pointwise"),
    ],
)
def test_patches_times_the_weight_is_the_convolution(shape, kernel, strides, pads, dilations):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    weight = rng.standard_normal((6, shape[1], *kernel)).astype(np.float32)
    rows = convolution_rows(x, kernel, strides=strides, pads=pads, dilations=dilations, most=10**6)
    y = convolved(x, weight, kernel_shape=kernel, strides=strides, pads=pads, dilations=dilations)
    expected = np.moveaxis(y, 1, -1).reshape(-1, 6)
    # A sum of d products in float32 differs by its order, at most d roundings of its largest term.
    slack = rows.shape[1] * np.finfo(np.float32).eps * np.abs(rows).max() * np.abs(weight).max() * rows.shape[1]
    np.testing.assert_allclose(rows @ weight.reshape(6, -1).T, expected, atol=slack)
    means = patch_means(x, kernel, strides=strides, pads=pads, dilations=dilations)
    np.testing.assert_allclose(means, rows.mean(axis=0, dtype=np.float64), atol=1e-7)


def test_at_most_so_many_rows_come_and_they_are_spread_out():
    x = np.arange(1000, dtype=np.float32).reshape(1, 1, 1000)
    rows = convolution_rows(x, (1,), strides=(1,), pads=(0, 0), dilations=(1,), most=64)
    assert 32 <= len(rows) <= 64
    assert rows.min() == 0
    assert rows.max() >= 900
    assert len(product_rows(x.reshape(10, 100, 1), most=64)) <= 64


def test_a_kernel_that_fits_nowhere_gives_no_rows():
    x = np.ones((1, 3, 2), np.float32)
    assert convolution_rows(x, (5,), strides=(1,), pads=(0, 0), dilations=(1,), most=8).shape == (0, 15)
    assert not patch_means(x, (5,), strides=(1,), pads=(0, 0), dilations=(1,)).any()
