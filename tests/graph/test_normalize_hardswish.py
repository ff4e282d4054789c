from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantool.graph.normalize import PASSES, normalize, wants_hardswish
from quantool.graph.normalize.clipped import Clipped

from .text_model import model_of, normal, normalized, op_types

CONSTANTS = {
    "three": np.float32(3), "minus_three": np.float32(-3), "zero": np.float32(0), "six": np.float32(6),
    "sixth": np.float32(1 / 6), "half": np.float32(0.5), "one": np.float32(1), "five": np.float32(5),
    "row": np.full((1, 1), 3, np.float32), "wide": np.full((1, 1, 1), 3, np.float32), "nearly": np.float32(0.17),
}  # fmt: skip
CLIP = "a = Add(x, three)  b = Clip(a, zero, six)"

SPELLINGS = [
    pytest.param(f"{CLIP}  c = Mul(x, b)  y = Div(c, six)", id="x*clip/6"),
    pytest.param(f"{CLIP}  c = Mul(b, x)  y = Mul(c, sixth)", id="clip*x*sixth"),
    pytest.param(f"{CLIP}  c = Mul(b, x)  y = Mul(sixth, c)", id="sixth*clip*x"),
    pytest.param(f"{CLIP}  c = Div(b, six)  y = Mul(x, c)", id="x*(clip/6)"),
    pytest.param(f"{CLIP}  c = Mul(sixth, b)  y = Mul(c, x)", id="(sixth*clip)*x"),
    pytest.param(f"{CLIP}  c = Div(x, six)  y = Mul(c, b)", id="(x/6)*clip"),
    pytest.param("a = Add(row, x)  b = Clip(a, zero, six)  c = Mul(x, b)  y = Div(c, six)", id="three-as-row"),
    pytest.param("a = Sub(x, minus_three)  b = Clip(a, zero, six)  c = Mul(x, b)  y = Div(c, six)", id="sub"),
    pytest.param("a = Add(x, three)  r = Relu(a)  b = Min(r, six)  c = Mul(x, b)  y = Div(c, six)", id="relu-min"),
    pytest.param("a = Add(x, three)  r = Max(zero, a)  b = Min(six, r)  c = Mul(x, b)  y = Div(c, six)", id="max-min"),
    pytest.param(
        'a = Add(x, three)  r = Relu(a)  b = Clip(r, "", six)  c = Mul(x, b)  y = Div(c, six)', id="one-sided"
    ),
    pytest.param("b = HardSigmoid<alpha=0.16666667, beta=0.5>(x)  y = Mul(x, b)", id="hard-sigmoid"),
    pytest.param("a = Mul(x, sixth)  s = Add(a, half)  b = Clip(s, zero, one)  y = Mul(x, b)", id="spelled-sigmoid"),
]
OTHERS = [
    pytest.param("b = HardSigmoid(x)  y = Mul(x, b)", id="other-slope"),
    pytest.param("a = Add(x, three)  b = Clip(a, zero, five)  c = Mul(x, b)  y = Div(c, six)", id="other-bound"),
    pytest.param(f"{CLIP}  c = Mul(x, b)  y = Div(six, c)", id="reciprocal"),
    pytest.param(f"{CLIP}  y = Mul(x, b)", id="not-divided"),
    pytest.param(f"{CLIP}  c = Mul(x, b)  y = Mul(c, nearly)", id="nearly-a-sixth"),
    pytest.param(f"{CLIP}  c = Mul(b, b)  y = Div(c, six)", id="square-of-the-gate"),
    pytest.param(f"{CLIP}  r = Neg(x)  c = Mul(r, b)  y = Div(c, six)", id="another-factor"),
    pytest.param(f"{CLIP}  c = Mul(x, b)  d = Div(c, six)  y = Add(d, b)", id="gate-read-twice"),
    pytest.param(
        "a = Add(x, wide)  b = Clip(a, zero, six)  c = Mul(x, b)  y = Div(c, six)", id="constant-adds-an-axis"
    ),
    pytest.param("a = Add(x, x)  b = Clip(a, zero, six)  c = Mul(x, b)  y = Div(c, six)", id="no-constant"),
]


def spelled(nodes: str, *, opset: int = 14, outputs: str = "float y") -> str:
    return f'<ir_version: 8, opset_import: ["": {opset}]> g (float[5, 40] x) => ({outputs}) {{ {nodes} }}'


X = 4 * normal(5, 40)


@pytest.mark.parametrize("nodes", SPELLINGS)
def test_spellings_become_the_operator(nodes: str) -> None:
    model = normalized(spelled(nodes), CONSTANTS, feed={"x": X}, only="hardswish")
    assert op_types(model) == ["HardSwish"]
    [node] = model.ir.graph
    assert sorted(node.meta["quantool.origins"]) == sorted(row.name for row in model.given)
    assert model.absorbed == {row.name: node.name for row in model.given if row.name != node.name}
    assert not model.ir.graph.initializers


@pytest.mark.parametrize("nodes", OTHERS)
def test_functions_that_differ_stay(nodes: str) -> None:
    model = normalized(spelled(nodes), CONSTANTS, feed={"x": X}, only="hardswish")
    assert len(op_types(model)) == len(model.given)


def test_an_inner_tensor_that_is_an_output_stays() -> None:
    text = spelled(f"{CLIP}  c = Mul(x, b)  y = Div(c, six)", outputs="float b, float y")
    model = normalized(text, CONSTANTS, feed={"x": X}, only="hardswish")
    assert "HardSwish" not in op_types(model)


def test_several_in_a_row_and_in_branches() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 14]>
    g (float[5, 40] x, bool f) => (float[5, 40] y) {
      a = Add(x, three)  b = Clip(a, zero, six)  c = Mul(x, b)  d = Div(c, six)
      y = If(f) <
        then_branch = t () => (float[5, 40] p) { s = HardSigmoid<alpha=0.16666667, beta=0.5>(d)  p = Mul(s, d) },
        else_branch = e () => (float[5, 40] q) { q = Mul(d, d) }
      >
    }
    """
    for flag in (True, False):
        model = normalized(text, CONSTANTS, feed={"x": X, "f": np.array(flag)}, only="hardswish")
    assert op_types(model) == ["HardSwish", "If"]
    assert [n.op_type for n in model.ir.graph[1].attributes["then_branch"].as_graph()] == ["HardSwish"]


def test_the_planner_is_told_when_a_higher_opset_would_help() -> None:
    nodes = "a = Add(x, three)  b = Clip<min=0.0, max=6.0>(a)  c = Mul(x, b)  y = Div(c, six)"
    old = model_of(spelled(nodes, opset=10), CONSTANTS)
    assert wants_hardswish(old)
    assert PASSES["hardswish"](old) == 0
    assert not wants_hardswish(model_of(spelled("y = Relu(x)", opset=10)))
    new = model_of(spelled(f"{CLIP}  c = Mul(x, b)  y = Div(c, six)"), CONSTANTS)
    assert not wants_hardswish(new)
    assert normalize(new) == ("hardswish",)


numbers = st.floats(-8, 8).map(lambda value: round(value, 3))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("times"), numbers),
        st.tuples(st.just("plus"), numbers),
        st.tuples(st.just("clip"), numbers, st.floats(0, 9).map(lambda width: round(width, 3))),
    ),
    max_size=6,
)


@given(steps, numbers)
def test_a_chain_of_steps_is_one_clipped_line(chain: list[tuple[str, float, float]], x: float) -> None:
    function, value, size = Clipped(), x, 1.0
    for name, *arguments in chain:
        match name:
            case "times":
                function, value = function.times(arguments[0]), value * arguments[0]
            case "plus":
                function, value = function.plus(arguments[0]), value + arguments[0]
            case "clip":
                lo, hi = arguments[0], arguments[0] + arguments[1]
                function, value = function.clip(lo, hi), min(max(value, lo), hi)
        size = max(size, abs(function.slope * x), abs(function.offset), abs(value))
    line = function.slope * x + function.offset
    # each step rounds once on either side, and later steps scale what was lost by at most 8 each
    bound = 2 * len(chain) * 8 ** len(chain) * size * np.finfo(float).eps
    assert math.isclose(min(max(line, function.lo), function.hi), value, rel_tol=0, abs_tol=bound)
