"""If branches and Loop bodies: static plans leave them float, dynamic and weight-only ones quantize inside."""

from __future__ import annotations

import numpy as np
import pytest

from quantool.schema import AnyArray
from tests.rewrite.flow import DYNAMIC_DB, FOUR_BITS_DB, STATIC_DB, WEIGHTS_DB, Result, flow, normal, parse

WAYS = pytest.mark.parametrize(
    ("options", "least"),
    [
        pytest.param({}, STATIC_DB, id="qdq"),
        pytest.param({"format": "qoperator"}, STATIC_DB, id="qoperator"),
        pytest.param({"mode": "dynamic"}, DYNAMIC_DB, id="dynamic"),
        pytest.param({"mode": "weight-only"}, WEIGHTS_DB, id="weights"),
        pytest.param({"mode": "weight-only", "weights": "int4"}, FOUR_BITS_DB, id="weights-int4"),
        pytest.param({"mode": "auto"}, DYNAMIC_DB, id="auto"),
    ],
)


def weight(rows: int, columns: int, seed: int) -> AnyArray:
    return normal(rows, columns, seed=seed, scale=rows**-0.5)


WEIGHTS = {f"w{i}": weight(16, 16, i) for i in range(3)} | {"b": normal(16, seed=5, scale=0.1)}
BOTH_BRANCHES = [{"x": normal(20, 16, seed=i), "c": np.array(i % 2 == 0)} for i in range(48)]


def in_scopes(result: Result) -> dict[str, str]:
    """Node of an inner graph -> reason, or kernel."""
    nodes = {n.name: n.scope for n in result.facts.nodes if n.scope}
    decisions = result.plan.decisions
    return {n: d.reason.code if d.reason else d.kernel for n, d in decisions.items() if n in nodes}


IF = """(float[20,16] x, bool c) => (float[20,16] y, float[20,16] z) {
    [top] a = MatMul (x, w0)
    [if] y = If (c) <
        then_branch = then () => (float[20,16] t) {
            [m1] t0 = MatMul (a, w1)
            [r1] t1 = Relu (t0)
            [m2] t = MatMul (t1, w0)
        },
        else_branch = otherwise () => (float[20,16] e) {
            [s1] e0 = Add (a, b)
            [g1] e = Gemm (e0, w2, b)
        }
    >
    [last] z = MatMul (a, w1)
}"""


@WAYS
def test_branches_that_capture_activations_and_weights_are_right(options, least):
    result = flow(parse(IF, WEIGHTS), BOTH_BRANCHES, **options)
    inside = in_scopes(result)
    if options.get("mode") in (None, "static"):
        assert set(inside.values()) == {"in-subgraph"}
        assert {"w0", "w1", "w2"} <= set(result.constants())  # the branches read the float weights
    else:
        kernel = "MatMulNBits" if options["mode"] == "weight-only" else "DynamicQuantizeMatMul"
        assert {name: inside[name] for name in ("m1", "m2", "g1")} == dict.fromkeys(("m1", "m2", "g1"), kernel)
        assert not {"w0", "w1", "w2"} & set(result.constants())
    assert result.plan.decisions["top"].quantized
    assert result.db() > least


def branches_with_own_weight(values: AnyArray) -> str:
    """Both branches call their output t; one owns its weight."""
    listed = ", ".join(f"{value:.6f}" for value in values.ravel())
    return f"""(float[20,16] x, bool c) => (float[20,16] y) {{
        [if] y = If (c) <
            then_branch = then () => (float[20,16] t)
                <float[16,16] w = {{{listed}}}>
            {{
                [m1] t = MatMul (x, w)
            }},
            else_branch = otherwise () => (float[20,16] t) {{
                [m2] h = MatMul (x, w0)
                [m3] t = MatMul (h, w1)
            }}
        >
    }}"""


@pytest.mark.parametrize("mode", ["dynamic", "weight-only", "auto"])
def test_branches_that_own_a_weight_and_reuse_names_are_right(mode):
    result = flow(parse(branches_with_own_weight(weight(16, 16, 9)), WEIGHTS), BOTH_BRANCHES, mode)
    assert all(d.quantized for name, d in result.plan.decisions.items() if name.startswith("m"))
    assert result.db() > DYNAMIC_DB


LOOP = """(float[20,16] x, int64 n) => (float[20,16] y, float[3,20,16] s) {
    [top] a = MatMul (x, w0)
    [loop] last, s = Loop (n, , a) <body = body (int64 i, bool go, float[20,16] v) => (bool more, float[20,16] w, float[20,16] o) {
        [more] more = Identity (go)
        [m1] v1 = MatMul (v, w0)
        [tanh] v2 = Tanh (v1)
        [add] w = Add (v2, a)
        [m2] o = MatMul (w, w1)
    }>
    [out] y = MatMul (last, w1)
}"""  # noqa: E501  # one signature


@WAYS
def test_loop_bodies_that_capture_a_weight_are_right(options, least):
    feeds = [{"x": normal(20, 16, seed=i), "n": np.array(3)} for i in range(32)]
    result = flow(parse(LOOP, WEIGHTS), feeds, **options)
    static = "mode" not in options
    assert (in_scopes(result)["m1"] == "in-subgraph") == static
    assert result.plan.decisions["out"].quantized
    assert result.db() > least - 2  # four products in a row


CONVS = """(float[2,3,6,6] x, bool c) => (float[2,8,6,6] z, float[2,8,5,5] m) {
    [c1] a = Conv (x, k)
    [r] r = Relu (a)
    [if] y = If (c) <
        then_branch = then () => (float[2,8,6,6] t) {
            [tc] t0 = Conv (r, k2)
            [tr] t = Relu (t0)
        },
        else_branch = otherwise () => (float[2,8,6,6] e) {
            [ec] e = Conv (r, k3, kb)
        }
    >
    [z] z = Conv (y, k2)
    [m] m = MaxPool <kernel_shape = [2, 2]> (r)
}"""


@WAYS
def test_branches_that_read_an_integer_activation_get_it_in_float(options, least):
    constants = {"k": normal(8, 3, 1, 1, scale=0.6), "kb": normal(8, seed=5)}
    constants |= {"k2": normal(8, 8, 1, 1, seed=2, scale=0.35), "k3": normal(8, 8, 1, 1, seed=3, scale=0.35)}
    feeds = [{"x": normal(2, 3, 6, 6, seed=i), "c": np.array(i % 2 == 0)} for i in range(48)]
    result = flow(parse(CONVS, constants), feeds, **options)
    assert result.db() > least
    if "mode" not in options:
        assert result.runs["QLinearConv"] == 2
        assert result.plan.barriers == ()
