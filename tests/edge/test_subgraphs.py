"""EDGE_CASES, subgraphs, functions and sequences."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.edge.driver import FORMS, Checked, check
from tests.edge.graphs import feeds, model, nodes, normal, weight

ALL_FORMS = pytest.mark.parametrize("form", FORMS)
OPSETS = pytest.mark.parametrize("opset", [11, 13, 16, 21])
FLAGS = [np.array(i % 2 == 0) for i in range(24)]

HEAD = "(bool flag, float[N,12] x) => (float[N,5] y)"
SHAPE = "float[N,5]"
BRANCHES = {
    "captures an activation": ("t = MatMul (a, v)", "e = MatMul (r, v)"),
    "captures a weight used at the top": ("s = MatMul (a, w)  t = MatMul (s, v)", "e = MatMul (a, v)"),
    "captures the input and a graph output": ("s = MatMul (x, w)  t = MatMul (s, v)", "e = MatMul (r, v)"),
    "owns a weight": ("t = MatMul (a, own)", "e = MatMul (a, own2)"),
    "reuses names": ("inner = Tanh (a)  t = MatMul (inner, v)", "inner = Relu (a)  e = MatMul (inner, v)"),
    "holds nothing but a capture": ("t = Identity (last)", "e = Identity (last)"),
    "convolves": ("t = Gemm (a, v, c)", "q = Relu (a)  e = Gemm <alpha = 0.5> (q, v, c)"),
}


def branching(name: str, opset: int) -> onnx.ModelProto:
    """MatMul -> Relu -> If whose branches read what stands outside; their own weights are inner initializers."""
    then, other = BRANCHES[name]
    text = f"""{HEAD} {{
        a = MatMul (x, w)  r = Relu (a)  last = MatMul (r, v)
        y = If (flag) <
            then_branch = then_graph () => ({SHAPE} t) {{ {then} }},
            else_branch = else_graph () => ({SHAPE} e) {{ {other} }}
        >
    }}"""
    constants = {"w": weight(12, 12), "v": weight(12, 5, seed=1), "c": normal(5, seed=4)}
    proto = model(text, constants, opset=opset)
    if name == "owns a weight":
        for attribute, inner in zip(proto.graph.node[-1].attribute, ("own", "own2"), strict=True):
            attribute.g.initializer.append(onnx.numpy_helper.from_array(weight(12, 5, seed=3), inner))
    return proto


def in_order(result: Checked) -> None:
    """Every node stands after what it reads, in all scopes."""
    onnx.checker.check_model(result.proto, full_check=True)


@ALL_FORMS
@OPSETS
@pytest.mark.parametrize("name", BRANCHES)
def test_branches(form: str, opset: int, name: str) -> None:
    samples = [{**feed, "flag": flag} for feed, flag in zip(feeds(24, x=(16, 12)), FLAGS, strict=True)]
    result = check(branching(name, opset), samples, form, db=24)
    in_order(result)
    found = result.decisions()
    assert "quantized" in {found["MatMul:a"], found["MatMul:last"]}
    inner = [row for row in result.report.nodes if row.scope]
    assert inner
    assert all(row.decision == "quantized" or row.reason for row in inner)


@ALL_FORMS
@pytest.mark.parametrize("flag", [True, False])
def test_a_branch_that_calibration_never_enters_is_right(form: str, flag: bool) -> None:
    samples = feeds(24, x=(16, 12))
    seen = [{**feed, "flag": np.array(flag)} for feed in samples[:-4]]
    unseen = [{**feed, "flag": np.array(not flag)} for feed in samples[-4:]]
    check(branching("captures an activation", 17), seen, form, held_out=unseen, db=22)


@ALL_FORMS
@pytest.mark.parametrize("opset", [13, 21])
def test_nested_branches(form: str, opset: int) -> None:
    text = f"""{HEAD} {{
        a = MatMul (x, w)
        y = If (flag) <
            then_branch = outer () => ({SHAPE} t) {{
                no = Not (flag)
                t = If (no) <
                    then_branch = p () => ({SHAPE} u) {{ u = MatMul (x, v) }},
                    else_branch = q () => ({SHAPE} o) {{ s = MatMul (a, w)  o = MatMul (s, v) }}
                >
            }},
            else_branch = other () => ({SHAPE} e) {{ e = MatMul (a, v) }}
        >
    }}"""
    samples = [{**feed, "flag": flag} for feed, flag in zip(feeds(24, x=(16, 12)), FLAGS, strict=True)]
    proto = model(text, {"w": weight(12, 12), "v": weight(12, 5, seed=1)}, opset=opset)
    in_order(check(proto, samples, form, db=24))


@ALL_FORMS
@OPSETS
def test_a_loop_that_captures_an_activation_and_a_shared_weight(form: str, opset: int) -> None:
    text = """(float[N,12] x, int64 count) => (float[N,12] y, float[K,N,12] z) {
        a = MatMul (x, w)  r = Relu (a)
        last, z = Loop (count, "", r) <
            body = step (int64 i, bool go, float[N,12] state) => (bool on, float[N,12] next, float[N,12] out) {
                on = Identity (go)  m = MatMul (state, w)  s = Add (m, a)  next = Tanh (s)  out = MatMul (next, w)
            }
        >
        y = MatMul (last, w)
    }"""
    samples = [{**feed, "count": np.array(1 + i % 3)} for i, feed in enumerate(feeds(24, x=(8, 12)))]
    result = check(model(text, {"w": weight(12, 12)}, opset=opset), samples, form, db=20)
    in_order(result)
    found = result.decisions()
    assert found["MatMul:a"] == found["MatMul:y"] == "quantized"


@ALL_FORMS
@pytest.mark.parametrize("opset", [11, 17])
def test_a_scan_with_a_matmul(form: str, opset: int) -> None:
    text = """(float[6,12] x, float[12] h) => (float[12] last, float[6,5] y) {
        a = MatMul (x, w)
        last, all = Scan (h, a) <
            num_scan_inputs = 1,
            body = step (float[12] state, float[12] now) => (float[12] next, float[12] out) {
                m = MatMul (state, w)  s = Add (m, now)  next = Tanh (s)  out = Identity (next)
            }
        >
        y = MatMul (all, v)
    }"""
    proto = model(text, {"w": weight(12, 12), "v": weight(12, 5, seed=1)}, opset=opset)
    result = check(proto, feeds(60, x=(6, 12), h=(12,)), form, db=20)
    assert result.decisions()["MatMul:y"] == "quantized"


FUNCTION = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
g (float[N,12] x) => (float[N,12] y) {
    [first] a = local.Block (x, w, b)
    [second] c = local.Block (a, v, b)
    y = MatMul (c, u)
}
<domain: "local", opset_import: ["" : 17]>
Block (i, weight, bias) => (o) { m = MatMul (i, weight)  s = Add (m, bias)  o = Relu (s) }"""

WITH_ATTRIBUTE = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
g (float[N,12] x) => (float[N,12] y) {
    [first] a = local.Leaky <slope = 0.1> (x, w)
    [second] c = local.Leaky <slope = 0.3> (a, v)
    y = MatMul (c, u)
}
<domain: "local", opset_import: ["" : 17]>
Leaky <slope> (i, weight) => (o) { m = MatMul (i, weight)  o = LeakyRelu <alpha: float = @slope> (m) }"""


@ALL_FORMS
@pytest.mark.parametrize("text", [FUNCTION, WITH_ATTRIBUTE], ids=["plain", "attribute"])
def test_a_local_function_called_twice(form: str, text: str) -> None:
    proto = onnx.parser.parse_model(text)
    arrays = {"w": weight(12, 12), "v": weight(12, 12, seed=1), "u": weight(12, 12, seed=2), "b": normal(12, scale=0.2)}
    used = {name for node in proto.graph.node for name in node.input}
    for name in used & arrays.keys():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(arrays[name], name))
    result = check(proto, feeds(x=(16, 12)), form, db=24)
    found = result.decisions()
    assert (found["first"], found["second"], found["MatMul:y"]) == ("quantized",) * 3
    left = result.report.runtime.fused
    assert sum(left.values()) >= 3 or form == "weight-only"


@ALL_FORMS
@pytest.mark.parametrize("opset", [11, 17])
def test_sequences_between_matmuls_are_left_alone(form: str, opset: int) -> None:
    text = """(float[6,12] x) => (float[6,5] y) {
        a = MatMul (x, w)  parts = SplitToSequence <axis = 0> (a, three)
        first = SequenceAt (parts, zero)  more = SequenceInsert (parts, first)
        joined = ConcatFromSequence <axis = 0> (more)  half = Slice (joined, start, stop)
        y = MatMul (half, v)
    }"""
    constants = {
        "w": weight(12, 12),
        "v": weight(12, 5, seed=1),
        "three": np.array(3),
        "zero": np.array(0),
        "start": np.array([3]),
        "stop": np.array([9]),
    }
    result = check(model(text, constants, opset=opset), feeds(60, x=(6, 12)), form, db=24)
    assert result.decisions()["MatMul:a"] == result.decisions()["MatMul:y"] == "quantized"


@ALL_FORMS
def test_a_sequence_as_input_and_output(form: str) -> None:
    text = """(seq(float[N,12]) s, int64 i) => (seq(float[N,5]) t, float[N,5] y) {
        x = SequenceAt (s, i)  a = MatMul (x, w)  y = MatMul (a, v)  t = SequenceConstruct (y, y)
    }"""
    proto = model(text, {"w": weight(12, 12), "v": weight(12, 5, seed=1)})
    samples = [{"s": [normal(8, 12, seed=i).clip(-2.5, 2.5)], "i": np.array(0)} for i in range(40)]
    check(proto, samples, form, db=24)


def test_every_scope_is_in_the_report() -> None:
    proto = branching("reuses names", 17)
    samples = [{**feed, "flag": flag} for feed, flag in zip(feeds(24, x=(16, 12)), FLAGS, strict=True)]
    result = check(proto, samples)
    assert [row.scope for row in result.report.nodes].count("") == len(proto.graph.node)
    assert len(result.report.nodes) == sum(1 for _ in nodes(proto.graph))
