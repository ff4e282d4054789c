"""EDGE_CASES, names: taken ones, missing ones, repeated ones, odd ones."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.edge.driver import FORMS, check
from tests.edge.graphs import feeds, model, normal, weight

ALL_FORMS = pytest.mark.parametrize("form", FORMS)
TAKEN = [
    "x_scale", "x_quantized", "x_zero_point", "x_dequantized", "w_quantized", "w_scale", "w_zero_point",
    "w_dequantized", "b_quantized", "b_scale", "a_quantized", "a_dequantized", "a_scale", "y_quantized",
    "b_dequantized", "y_float", "a_float", "a_product", "x_DynamicQuantizeLinear", "a_integer", "a_cast", "b0",
]  # fmt: skip


@ALL_FORMS
@pytest.mark.parametrize("as_nodes", [False, True], ids=["tensors", "nodes"])
def test_names_that_a_quantizer_would_invent_are_taken(form: str, as_nodes: bool) -> None:
    chain = "a" if as_nodes else TAKEN[0]
    steps = ["a = Gemm (x, w, b)"]
    for i, name in enumerate(TAKEN):
        source = "a" if i == 0 else (f"t{i - 1}" if as_nodes else TAKEN[i - 1])
        steps.append(f"[{name}] t{i} = Add ({source}, zero)" if as_nodes else f"{name} = Add ({source}, zero)")
        chain = f"t{i}" if as_nodes else name
    text = f"(float[N,12] x) => (float[N,5] y) {{ {' '.join(steps)}  y = Gemm ({chain}, v) }}"
    constants = {"w": weight(12, 8), "b": normal(8), "v": weight(8, 5, seed=1), "zero": np.float32(0.01)}
    check(model(text, constants), feeds(x=(16, 12)), form, db=24)


@ALL_FORMS
def test_every_unnamed_node_is_addressed_on_its_own(form: str) -> None:
    text = """(float[N,12] x) => (float[N,5] y) {
        a = MatMul (x, w)  b = Tanh (a)  c = MatMul (b, w)  d = Tanh (c)  y = MatMul (d, v)
    }"""
    proto = model(text, {"w": weight(12, 12), "v": weight(12, 5, seed=1)})
    result = check(proto, feeds(x=(16, 12)), form, db=24, exclude=["MatMul:c"])
    found = result.decisions()
    assert (found["MatMul:a"], found["MatMul:c"], found["MatMul:y"]) == ("quantized", "excluded", "quantized")
    names = [node.name for node in result.proto.graph.node]
    assert len(set(names)) == len(names)
    assert all(names)


@ALL_FORMS
@pytest.mark.parametrize("name", ["same", "MatMul:a", "a"])
def test_repeated_node_names_are_made_unique(form: str, name: str) -> None:
    text = f"""(float[N,12] x) => (float[N,5] y) {{
        ["{name}"] a = MatMul (x, w)  ["{name}"] b = Tanh (a)  ["{name}"] c = MatMul (b, w)  y = MatMul (c, v)
    }}"""
    proto = model(text, {"w": weight(12, 12), "v": weight(12, 5, seed=1)})
    runnable = onnx.ModelProto.FromString(proto.SerializeToString())
    for node in runnable.graph.node:
        node.name = ""
    result = check(proto, feeds(x=(16, 12)), form, db=24, runnable=runnable)
    names = [node.name for node in result.proto.graph.node]
    assert len(set(names)) == len(names)
    assert list(result.decisions().values()).count("quantized") == 3


ODD = [
    "model/layer_1/MatMul;StatefulPartitionedCall/add:0", "a b", "ünïcode→名前", "<b>&amp;'quoted'</b>", "../../etc/x",
    "[0-9]*?", "-", "." * 300, "line\nbreak", "%s{0}$HOME", "\x1b[31mred",
]  # fmt: skip


@ALL_FORMS
@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_odd_names_survive(form: str, odd: str) -> None:
    proto = model(
        "(float[N,12] x) => (float[N,5] y) { [n] a = Gemm (x, w, b)  r = Relu (a)  y = MatMul (r, v) }",
        {"w": weight(12, 8), "b": normal(8), "v": weight(8, 5, seed=1)},
    )
    graph = proto.graph
    graph.node[0].name, graph.node[1].name = odd, f"{odd}/1"
    graph.input[0].name = graph.node[0].input[0] = f"{odd}x"
    graph.output[0].name = graph.node[2].output[0] = f"{odd}y"
    graph.initializer[0].name = graph.node[0].input[1] = f"{odd}w"
    graph.node[0].output[0] = graph.node[1].input[0] = f"{odd}a"
    samples = [{f"{odd}x": feed["x"]} for feed in feeds(x=(16, 12))]
    result = check(proto, samples, form, db=24, exclude=[f"{odd}/1"])
    assert result.decisions()[odd] == "quantized"
