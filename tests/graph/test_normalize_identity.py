from __future__ import annotations

import numpy as np
import pytest

from .text_model import normal, normalized, op_types

HEAD = '<ir_version: 8, opset_import: ["": 13]> g (float[2, 3] x)'

REMOVED = [
    pytest.param("=> (float[2, 3] y) { a = Identity(x)  y = Relu(a) }", ["Relu"], id="at-input"),
    pytest.param("=> (float[2, 3] y) { a = Relu(x)  y = Identity(a) }", ["Relu"], id="at-output"),
    pytest.param("=> (float[2, 3] y) { a = Relu(x)  b = Identity(a)  y = Neg(b) }", ["Relu", "Neg"], id="inside"),
    pytest.param("=> (float[2, 3] y) { a = Relu(x)  b = Dropout(a)  y = Neg(b) }", ["Relu", "Neg"], id="dropout"),
    pytest.param("=> (float[2, 3] y) { a = Relu(x)  b = Cast<to=1>(a)  y = Neg(b) }", ["Relu", "Neg"], id="cast"),
    pytest.param("=> (float[2, 3] y) { a = Relu(x)  b = Identity(a)  y = Identity(b) }", ["Relu"], id="two"),
    pytest.param(
        "=> (float[2, 3] y, float[2, 3] z) { a = Relu(x)  y = Identity(a)  z = Identity(a) }",
        ["Relu", "Identity"],
        id="two-outputs",
    ),
]
KEPT = [
    pytest.param("=> (float[2, 3] y) { y = Identity(x) }", id="input-to-output"),
    pytest.param("=> (float[2, 3] x, float[2, 3] y) { y = Identity(x) }", id="input-is-output"),
    pytest.param("=> (float[2, 3] a, float[2, 3] y) { a = Relu(x)  y = Identity(a) }", id="both-outputs"),
    pytest.param("=> (float[2, 3] y, bool[2, 3] m) { y, m = Dropout(x) }", id="mask-is-output"),
    pytest.param("=> (double[2, 3] y) { a = Cast<to=11>(x)  y = Neg(a) }", id="cast-to-another-type"),
]


@pytest.mark.parametrize(("rest", "left"), REMOVED)
def test_nodes_that_change_nothing_go(rest: str, left: list[str]) -> None:
    model = normalized(f"{HEAD} {rest}", {}, feed={"x": normal(2, 3)}, only="drop-identity")
    assert op_types(model) == left
    survivors = {node.name for node in model.ir.graph}
    assert set(model.absorbed.values()) <= survivors
    assert {origin for node in model.ir.graph for origin in node.meta["quantool.origins"]} == {
        given.name for given in model.given
    }


@pytest.mark.parametrize("rest", KEPT)
def test_nodes_that_an_output_needs_stay(rest: str) -> None:
    model = normalized(f"{HEAD} {rest}", {}, feed={"x": normal(2, 3)}, only="drop-identity")
    assert len(op_types(model)) == len(model.given)
    assert model.absorbed == {}


def test_an_identity_that_brings_an_outer_tensor_out_of_a_branch_stays() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (float[2, 3] x, bool c) => (float[2, 3] y) {
      r = Relu(x)
      y = If(c) <
        then_branch = t () => (float[2, 3] a) { a = Identity(r) },
        else_branch = e () => (float[2, 3] b) { q = Identity(r)  b = Neg(q) }
      >
    }
    """
    for flag in (True, False):
        feed = {"x": normal(2, 3), "c": np.array(flag)}
        model = normalized(text, {}, feed=feed, only="drop-identity")
    branches = model.ir.graph[1].attributes
    assert [node.op_type for node in branches["then_branch"].as_graph()] == ["Identity"]
    assert [node.op_type for node in branches["else_branch"].as_graph()] == ["Neg"]


def test_dropout_that_trains_stays() -> None:
    text = f"{HEAD} => (float[2, 3] y) {{ a = Dropout(x, r, t)  y = Neg(a) }}"
    for training, left in ((True, ["Dropout", "Neg"]), (False, ["Neg"])):
        constants = {"r": np.float32(0), "t": np.array(training)}
        model = normalized(text, constants, feed={"x": normal(2, 3)}, only="drop-identity")
        assert op_types(model) == left
