from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from quantool import graph
from quantool.algorithms.layer_input import LayerInput, layer_input

RNG = np.random.default_rng(0)


def facts_of(op_type: str, x_shape: tuple[int, ...], w_shape: tuple[int, ...], **attributes: object):
    weight = RNG.standard_normal(w_shape).astype(np.float32)
    node = helper.make_node(op_type, ["x", "w"], ["y"], "layer", **attributes)
    made = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x_shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    facts = graph.facts(graph.prepare(graph.read(model), opset=None))
    return model, weight, facts, facts.by_name["layer"]


CONVOLUTIONS = {
    "plain": ((2, 3, 8, 7), (5, 3, 3, 3), {}),
    "padded": ((1, 3, 9, 9), (4, 3, 3, 2), {"pads": [1, 2, 1, 0], "strides": [2, 1], "dilations": [2, 1]}),
    "grouped": ((2, 6, 5, 5), (4, 3, 3, 3), {"group": 2, "pads": [1] * 4}),
    "depthwise": ((1, 6, 5, 5), (6, 1, 3, 3), {"group": 6}),
    "same upper": ((1, 3, 8, 7), (4, 3, 4, 3), {"auto_pad": "SAME_UPPER", "strides": [3, 2]}),
    "same lower": ((1, 3, 8, 7), (4, 3, 4, 3), {"auto_pad": "SAME_LOWER", "strides": [1, 2]}),
    "valid": ((1, 3, 8, 7), (4, 3, 2, 3), {"auto_pad": "VALID"}),
    "one axis": ((2, 4, 11), (3, 4, 5), {"pads": [2, 2]}),
    "three axes": ((1, 2, 4, 5, 3), (3, 2, 2, 2, 2), {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_rows_times_weights_are_the_convolution(case):
    x_shape, w_shape, attributes = CONVOLUTIONS[case]
    model, weight, facts, node = facts_of("Conv", x_shape, w_shape, **attributes)
    layer = layer_input(facts, node)
    assert layer is not None
    x = RNG.standard_normal(x_shape).astype(np.float32)
    rows = layer.rows(x, most=10**6)
    assert rows.shape[1:] == (layer.groups, layer.size)
    by_group = weight.reshape(layer.groups, -1, layer.size)
    found = np.einsum("ngd,god->ngo", rows, by_group).reshape(len(rows), -1)
    (y,) = ReferenceEvaluator(model).run(None, {"x": x})
    expected = np.moveaxis(y, 1, -1).reshape(-1, y.shape[1])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("op_type", "x_shape", "w_shape", "attributes"),
    [("MatMul", (2, 4, 6), (6, 3), {}), ("Gemm", (4, 6), (6, 3), {}), ("Gemm", (4, 6), (3, 6), {"transB": 1})],
)
def test_rows_of_products_are_those_of_the_last_axis(op_type, x_shape, w_shape, attributes):
    _, _, facts, node = facts_of(op_type, x_shape, w_shape, **attributes)
    layer = layer_input(facts, node)
    assert (layer, layer.key, layer.axis) == (LayerInput(tensor="x", size=6), "x", -1)
    x = RNG.standard_normal(x_shape).astype(np.float32)
    assert np.array_equal(layer.rows(x, most=10**6)[:, 0], x.reshape(-1, 6))
    assert len(layer.rows(x, most=3)) <= 3


def test_layers_that_multiply_the_same_rows_share_a_key():
    def key(**attributes):
        _, _, facts, node = facts_of("Conv", (1, 4, 8, 8), (4, 4, 3, 3), **attributes)
        return layer_input(facts, node).key

    assert key() == key(strides=[1, 1], pads=[0] * 4) == key(auto_pad="VALID")
    assert len({key(), key(pads=[1] * 4), key(strides=[2, 2]), key(auto_pad="SAME_UPPER")}) == 4


def test_other_nodes_have_no_rows():
    node = helper.make_node("MatMul", ["x", "x"], ["y"], "layer")
    made = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, 3))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert isinstance(model, onnx.ModelProto)
    facts = graph.facts(graph.prepare(graph.read(model), opset=None))
    assert layer_input(facts, facts.by_name["layer"]) is None
