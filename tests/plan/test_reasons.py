"""Every reason why a node stays in float, reached by a graph; and what the report can count on."""

from __future__ import annotations

import numpy as np
import pytest

from quantool import graph, targets
from quantool.plan import make_plan
from quantool.plan.reasons import REASONS, reason
from quantool.recipe import Recipe
from quantool.schema import AnyArray, Mode
from tests.rewrite.flow import draft, flow, normal, normal_feeds, parse

CONSTANTS: dict[str, AnyArray] = {
    "w": normal(16, 16, seed=1),
    "v": normal(16, seed=2),
    "k": normal(8, 8, 1, 1, seed=3),
    "big": normal(8, 8, 1, 1, seed=3, scale=1000),
    "W": normal(1, 32, 16),
    "R": normal(1, 32, 8),
    "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
}
MATRIX = "(float[20,16] x) => (float[20,16] y)"
IMAGE = "(float[2,8,6,6] x) => (float[2,C,H,W] y)"

#: code -> (signature, body with the node n, mode, options)
REACHED: dict[str, tuple[str, str, str, dict[str, object]]] = {
    "excluded": (MATRIX, "[n] y = MatMul (x, w)", "static", {"exclude": ["n"]}),
    "not-included": (MATRIX, "[n] t = MatMul (x, w) [m] y = MatMul (t, w)", "static", {"include": ["m"]}),
    "in-subgraph": (
        "(float[20,16] x, bool c) => (float[20,16] y)",
        """[if] y = If (c) <
            then_branch = a () => (float[20,16] t) { [n] t = MatMul (x, w) },
            else_branch = b () => (float[20,16] t) { t = Identity (x) }
        >""",
        "static",
        {},
    ),
    "float-activations": (
        "(float[16,16] x) => (float[16,16] y)", "[n] y = MatMul (x, x)", "static",
        {"include": ["n"], "rules": [{"name": "n", "activations": "float"}]},
    ),
    "no-integer-kernel": (IMAGE, "[n] y = ConvTranspose (x, k)", "static", {}),
    "not-float": (
        "(int64[3] x) => (int64[3] y)", "[n] y = Add (x, x)", "static", {},
    ),
    "weight-not-constant": (
        "(float[2,8,6,6] x, float[8,8,1,1] q) => (float[2,C,H,W] y)", "[n] y = Conv (x, q)", "dynamic",
        {"include_op": ["Conv"]},
    ),
    "bias-not-constant": (
        "(float[2,8,6,6] x, float[8] q) => (float[2,C,H,W] y)", "[n] y = Conv (x, k, q)", "static", {},
    ),
    "activation-matmul": ("(float[16,16] x) => (float[16,16] y)", "[n] y = MatMul (x, x)", "static", {}),
    "constant-first-operand": ("(float[16,8] x) => (float[16,8] y)", "[n] y = MatMul (w, x)", "dynamic", {}),
    "unsupported-form": ("(float[20,16] x) => (float[20] y)", "[n] y = MatMul (x, v)", "static", {}),
    "softmax": (MATRIX, "[m] t = MatMul (x, w) [n] y = Softmax (t)", "static", {}),
    "normalization": (MATRIX, "[n] y = LayerNormalization (x, v, v)", "static", {}),
    "float-function": (MATRIX, "[n] y = Tanh (x)", "static", {}),
    "recurrent": (
        "(float[5,2,16] x) => (float[5,1,2,8] y)", "[n] y = LSTM <hidden_size = 8> (x, W, R)", "static", {},
    ),
    "before-log": (IMAGE, "[n] t = Conv (x, k) [l] y = Log (t)", "static", {}),
    "not-between-integers": (IMAGE, "[n] y = MaxPool <kernel_shape = [2, 2]> (x)", "static", {}),
    "mode": (IMAGE, "[n] y = Conv (x, k)", "dynamic", {}),
    "shares-parameters": (
        IMAGE, '[c] t = Conv (x, k) [n] p = Pad <mode = "edge"> (t, pads) [d] y = Conv (p, k)', "static", {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("code", REACHED)
def test_reason_is_reached(code):
    signature, body, mode, options = REACHED[code]
    planned = draft(parse(f"{signature} {{ {body} }}", CONSTANTS), mode, **options)
    decision = planned.plan.decisions["n"]
    assert not decision.quantized
    assert (decision.reason.code, decision.reason.fix) == (code, REASONS[code][1])
    assert decision.reason.text.startswith(REASONS[code][0])
    assert decision.expected == "float"


@pytest.mark.parametrize("op", ["Shape", "Size"])
def test_what_reads_dimensions_is_no_function_of_floats(op):
    text = f"(float[16,16] x) => (float[16,16] y, int64 s) {{ [m] y = MatMul (x, w) [n] s = {op} (x) }}"
    assert draft(parse(text, CONSTANTS), "static").plan.decisions["n"].reason == reason("not-float")


def test_reason_is_reached_for_unequal_ranges():
    text = """(float[2,8,6,6] x) => (float[2,8,6,6] y) {
        [a] a = Conv (x, k)
        [b] b = Conv (x, big)
        [n] t = Concat <axis = 1> (a, b)
        [c] y = Conv (t, q)
    }"""
    result = flow(parse(text, CONSTANTS | {"q": normal(8, 16, 1, 1)}), normal_feeds(x=(2, 8, 6, 6)))
    assert result.plan.decisions["n"].reason.code == "unequal-ranges"
    assert "fold" in result.plan.decisions["n"].reason.text


def test_reason_is_reached_for_unknown_types():
    text = f"{MATRIX} {{ [a] t = com.microsoft.Gelu (x) [n] y = MatMul (t, w) }}"
    model = graph.prepare(graph.read(parse(text, CONSTANTS)))  # without the types that the runtime knows
    plan = make_plan(graph.facts(model), Recipe(), target=targets.load("cpu-x64"), mode=Mode.STATIC)
    assert plan.decisions["n"].reason == reason("unknown-type")


def test_every_code_is_reached():
    # above, in the rows of the report, and in the tests of DirectML, of what is measured and of what does not fuse
    elsewhere = {"unequal-ranges", "too-lossy", "unknown-type", "folded", "feature-level", "not-fused"}
    assert set(REASONS) == REACHED.keys() | elsewhere


def test_every_reason_says_what_and_what_would_change_it():
    for code in REASONS:
        found = reason(code, "A detail.")
        assert found.code == code
        assert found.text.endswith(". A detail.")
        assert found.fix.endswith(".")
        assert reason(code).text == found.text.removesuffix(" A detail.")


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight-only", "auto"])
def test_every_node_has_a_decision_and_every_kept_one_a_reason(mode):
    body = """[c] t = Conv (x, k) [r] r = Relu (t) [p] p = GlobalAveragePool (r) [f] f = Flatten (p) [s] s = Shape (x)
        [g] g = Gemm (f, q) [e] y = Softmax (g)"""
    proto = parse(f"(float[2,8,6,6] x) => (float[2,4] y, int64[4] s) {{ {body} }}", CONSTANTS | {"q": normal(8, 4)})
    planned = draft(proto, mode)
    assert set(planned.plan.decisions) == {n.name for n in planned.facts.nodes}
    for decision in planned.plan.decisions.values():
        assert decision.quantized == (decision.reason is None)
        assert decision.quantized or (decision.kernel, decision.into) == ("", "")
