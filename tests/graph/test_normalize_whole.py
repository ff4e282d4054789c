"""All passes together: what is left, and that no node as given is lost on the way."""

from __future__ import annotations

import time

import numpy as np
import onnx
import onnx_ir

from quantool.graph.model import Model
from quantool.graph.normalize import normalize
from quantool.graph.normalize.ledger import origins
from quantool.graph.scopes import graphs

from .text_model import model_of, normal, normalized, op_types

BLOCK = """
<ir_version: 8, opset_import: ["": 14]>
g (float16[2, 4, 8, 8] x) => (float16[2, 5] y) {
  halves = Cast<to=10>(w)
  weight = Transpose<perm=[3, 2, 0, 1]>(halves)
  padded = Pad(x, pads)
  c = Conv(padded, weight)
  n = BatchNormalization(c, gamma, beta, mean, variance)
  i = Identity(n)
  three = Add(i, k3)
  gate = Clip(three, k0, k6)
  product = Mul(i, gate)
  swish = Div(product, k6)
  dropped = Dropout(swish)
  pool = GlobalAveragePool(dropped)
  flat = Flatten(pool)
  y = Gemm<alpha=0.5, beta=2.0>(flat, head, row)
}
"""
HALVES = {
    "gamma": normal(6, seed=1),
    "beta": normal(6, seed=2),
    "mean": normal(6, seed=3),
    "variance": np.abs(normal(6, seed=4)) + 1,
    "k0": np.float32(0),
    "k3": np.float32(3),
    "k6": np.float32(6),
    "head": normal(6, 5),
    "row": normal(1, 5),
}
CONSTANTS = {name: np.asarray(array, np.float16) for name, array in HALVES.items()} | {
    "w": normal(3, 3, 4, 6),
    "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
}


def test_a_whole_network_becomes_the_units_that_planning_knows() -> None:
    model = model_of(BLOCK, CONSTANTS)
    normalize(model)
    assert op_types(model) == ["Cast", "Conv", "HardSwish", "GlobalAveragePool", "Flatten", "Gemm", "Cast"]
    assert model.absorbed == {
        "Cast:halves": "",
        "Transpose:weight": "",
        "Pad:padded": "Conv:c",
        "BatchNormalization:n": "Conv:c",
        "Identity:i": "Conv:c",
        "Add:three": "Div:swish",
        "Clip:gate": "Div:swish",
        "Mul:product": "Div:swish",
        "Dropout:dropped": "Div:swish",
    }


def test_every_node_as_given_is_kept_or_absorbed_by_one_that_is_kept() -> None:
    model = model_of(BLOCK, CONSTANTS)
    normalize(model)
    kept = {node.name: origins(node) for graph in graphs(model.ir.graph) for node in graph}
    standing = [origin for found in kept.values() for origin in found]
    assert len(standing) == len(set(standing))
    constants = {name for name, into in model.absorbed.items() if not into}
    assert set(standing) | constants == {row.name for row in model.given}
    assert all(name in kept[into] for name, into in model.absorbed.items() if into)


def test_normalizing_twice_changes_nothing_more() -> None:
    text = BLOCK.replace("float16[", "float[").replace("to=10", "to=1")
    constants = {n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in CONSTANTS.items()}
    model = normalized(text, constants, feed={"x": normal(2, 4, 8, 8)})
    assert normalize(model) == ()


def chain(length: int) -> Model:
    """Conv, Add of a constant, Identity, and the four nodes of a hard swish, again and again."""
    nodes, make = [], onnx.helper.make_node
    for i in range(length):
        steps = [
            ("Conv", [f"t{i}", "w"], "c"), ("Add", ["c", "k"], "a"), ("Identity", ["a"], "i"),
            ("Add", ["i", "three"], "s"), ("Clip", ["s", "zero", "six"], "g"), ("Mul", ["i", "g"], "p"),
            ("Div", ["p", "six"], ""),
        ]  # fmt: skip
        for op_type, inputs, output in steps:
            local = [f"{name}{i}" if name in "caisgp" else name for name in inputs]
            nodes.append(make(op_type, local, [f"{output}{i}" if output else f"t{i + 1}"], name=f"n{len(nodes)}"))
    info = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 1, 2, 2]) for n in ("t0", f"t{length}")]
    arrays = {"w": np.ones((1, 1, 1, 1)), "k": np.ones((1, 1, 1)), "three": 3.0, "zero": 0.0, "six": 6.0}
    tensors = [onnx.numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in arrays.items()]
    graph = onnx.helper.make_graph(nodes, "chain", info[:1], info[1:], tensors)
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)])
    return Model(ir=onnx_ir.from_proto(proto), source=model_of(BLOCK, CONSTANTS).source, given=())


def test_time_is_linear_in_the_nodes() -> None:
    def cost(length: int) -> float:
        model = chain(length)
        start = time.process_time()
        assert normalize(model) == ("drop-identity", "fold-batchnorm", "hardswish")
        seconds = time.process_time() - start
        assert op_types(model) == ["Conv", "HardSwish"] * length
        return seconds

    assert cost(1200) <= 8 * cost(300)  # linear is 4, quadratic 16
