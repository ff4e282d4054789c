"""Where Q and DQ go: the rows of the measured placement rules, each as a graph and what is planned for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from quantool.schema import AnyArray
from tests.rewrite.flow import Draft, draft, normal, parse

IMAGE = "float[N,8,12,12]"
CONSTANTS: dict[str, AnyArray] = {
    "w": normal(8, 8, 3, 3, scale=0.12),
    "v": normal(8, 8, 1, 1, seed=2, scale=0.35),
    "b": normal(8, seed=3, scale=0.1),
    "k": normal(16, 16, seed=4, scale=0.25),
    "bias": normal(16, seed=5),
    "zero": np.float32(0),
    "one": np.float32(1),
    "two": np.float32(2),
    "three": np.float32(3),
    "six": np.float32(6),
    "eps": np.float32(1e-5),
    "axis": np.array([0]),
    "shape": np.array([0, 8, -1, 6]),
    "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "reflect": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "mask": np.where(np.tril(np.ones((1, 8, 8))) > 0, 0, -1e9).astype(np.float32),
    "W": normal(1, 32, 16),
    "R": normal(1, 32, 8),
}


@dataclass(frozen=True)
class Row:
    """A rule, its graph, what each node becomes, and the tensors that are quantized with the group of each."""

    rule: str
    text: str
    codes: dict[str, str]
    groups: dict[str, str] = field(default_factory=dict)
    barriers: tuple[str, ...] = ()


def conv(name: str, x: str, y: str, weight: str = "w") -> str:
    pads = "1, 1, 1, 1" if weight == "w" else "0, 0, 0, 0"
    return f"[{name}] {y} = Conv <pads = [{pads}]> ({x}, {weight}, b)"


def image(body: str) -> str:
    return f"({IMAGE} x) => ({IMAGE} y) {{ {body} }}"


def rows(body: str, shape: str = "20,16") -> str:
    return f"(float[{shape}] x) => (float y) {{ {body} }}"


CONV = "QLinearConv"
ROWS = [
    Row(
        "1: Conv gets a Q on its input and its output",
        image(conv("c", "x", "t") + conv("d", "t", "y", "v")),
        {"c": CONV, "d": CONV},
        {"x": "x", "t": "t", "y": "y"},
    ),
    Row(
        "2: after the Relu only",
        image(conv("c", "x", "t") + "[r] y = Relu (t)"),
        {"c": CONV, "r": "into c"},
        {"x": "x", "y": "y"},
    ),
    Row(
        "2: after a Relu and a Clip only",
        image(conv("c", "x", "t") + "[r] u = Relu (t) [k] y = Clip (u, zero, six)"),
        {"c": CONV, "r": "into c", "k": "into c"},
        {"x": "x", "y": "y"},
    ),
    Row(
        "3: after the Conv and after Add and Relu",
        image(conv("c", "x", "t") + "[a] s = Add (t, x) [r] u = Relu (s)" + conv("d", "u", "y", "v")),
        {"c": CONV, "a": "QLinearAdd", "r": "into a", "d": CONV},
        {"x": "x", "t": "t", "u": "u", "y": "y"},
    ),
    Row(
        "3: the last sum too",
        image(conv("c", "x", "t") + "[a] s = Add (t, x) [r] y = Relu (s)"),
        {"c": CONV, "a": "QLinearAdd", "r": "into a"},
        {"x": "x", "t": "t", "y": "y"},
    ),
    Row(
        "3: a sum that a function reads in float is none",
        image(conv("c", "x", "t") + "[a] s = Add (t, x) [f] y = Tanh (s)"),
        {"c": CONV, "a": "not-between-integers", "f": "float-function"},
        {"x": "x", "t": "t"},
    ),
    Row(
        "4: SiLU, its Sigmoid with the fixed range",
        image(conv("c", "x", "t") + "[s] s = Sigmoid (t) [m] u = Mul (t, s)" + conv("d", "u", "y", "v")),
        {"c": CONV, "s": "QLinearSigmoid", "m": "QLinearMul", "d": CONV},
        {"x": "x", "t": "t", "s": "s", "u": "u", "y": "y"},
    ),
    Row(
        "5: HardSwish inside float",
        image(conv("c", "x", "t") + "[h] u = HardSwish (t)" + conv("d", "u", "y", "v")),
        {"c": CONV, "h": "float-function", "d": CONV},
        {"x": "x", "t": "t", "u": "u", "y": "y"},
    ),
    Row(
        "6: HardSwish spelled out becomes the operator",
        image(
            conv("c", "x", "t")
            + "[h0] a = Add (t, three) [h1] l = Clip (a, zero, six) [h2] m = Mul (t, l) [h] u = Div (m, six)"
            + conv("d", "u", "y", "v")
        ),
        {"c": CONV, "h": "float-function", "d": CONV},
        {"x": "x", "t": "t", "u": "u", "y": "y"},
    ),
    Row(
        "7: squeeze-excite, its gate with the fixed range",
        image(
            conv("c", "x", "t")
            + "[p] g = GlobalAveragePool (t)"
            + conv("e", "g", "f", "v")
            + "[h] h = HardSigmoid (f) [m] u = Mul (t, h)"
            + conv("d", "u", "y", "v")
        ),
        {"c": CONV, "p": "QLinearGlobalAveragePool", "e": CONV, "h": "float-function", "m": "QLinearMul", "d": CONV},
        {"x": "x", "t": "t", "g": "g", "f": "f", "h": "h", "u": "u", "y": "y"},
    ),
    Row(
        "8: MatMul gets a Q on its input only",
        rows("[m] h = MatMul (x, k) [g] t = Tanh (h) [n] y = MatMul (t, k)"),
        {"m": "MatMulIntegerToFloat", "g": "float-function", "n": "MatMulIntegerToFloat"},
        {"x": "x", "t": "t"},
    ),
    Row(
        "9: Gemm gets a Q on its input only",
        rows("[m] h = Gemm (x, k, bias) [r] t = Relu (h) [n] y = Gemm (t, k, bias)"),
        {"m": "QGemm", "r": "not-between-integers", "n": "QGemm"},
        {"x": "x", "t": "t"},
    ),
    Row(
        "10, 11: attention products and all from the scores to the Softmax stay float",
        rows(
            "[q] q = MatMul (x, k) [t] kt = Transpose <perm = [0, 2, 1]> (q) [s] s = MatMul (q, kt)"
            "[div] d = Div (s, two) [add] a = Add (d, mask) [soft] p = Softmax (a) [mix] o = MatMul (p, q)"
            "[out] y = MatMul (o, k)",
            "2,8,16",
        ),
        {
            "q": "MatMulIntegerToFloat", "t": "not-between-integers", "s": "activation-matmul", "div": "softmax",
            "add": "softmax", "soft": "softmax", "mix": "activation-matmul", "out": "MatMulIntegerToFloat",
        },
        {"x": "x", "o": "o"},
    ),
    Row(
        "12: functions and norms stay float",
        rows(
            "[m] h = MatMul (x, k) [l] n = LayerNormalization (h, bias, bias) [e] e = Erf (n) [s] s = Sub (n, e)"
            "[o] y = MatMul (s, k)"
        ),
        {
            "m": "MatMulIntegerToFloat", "l": "normalization", "e": "float-function", "s": "float-function",
            "o": "MatMulIntegerToFloat",
        },
        {"x": "x", "s": "s"},
    ),
    Row(
        "13: a Conv before a Log stays float",
        image(conv("c", "x", "t") + "[sq] s = Mul (t, t) [l] u = Log (s)" + conv("d", "u", "y", "v")),
        {"c": "before-log", "sq": "not-between-integers", "l": "float-function", "d": CONV},
        {"u": "u", "y": "y"},
    ),
    Row(
        "15: pools and movers join only on a way to an integer operator",
        image(conv("c", "x", "t") + "[p] y = MaxPool <kernel_shape = [1, 1]> (t)"),
        {"c": CONV, "p": "not-between-integers"},
        {"x": "x", "t": "t"},
    ),
    Row(
        "15: movers share the parameters of what they move",
        image(
            conv("c", "x", "t")
            + "[p] p = MaxPool <kernel_shape = [1, 1]> (t) [s] s = Transpose <perm = [0, 1, 3, 2]> (p)"
            + conv("d", "s", "y", "v")
        ),
        {"c": CONV, "p": "MaxPool", "s": "Transpose", "d": CONV},
        {"x": "x", "t": "t", "p": "t", "s": "t", "y": "y"},
    ),
    Row(
        "16: a Pad that is not folded shares the parameters of its input",
        image(conv("c", "x", "t") + '[p] p = Pad <mode = "reflect"> (t, reflect)' + conv("d", "p", "y", "v")),
        {"c": CONV, "p": "shares-parameters", "d": CONV},
        {"x": "x", "t": "t", "p": "t", "y": "y"},
    ),
    Row(
        "17: recurrent layers stay float and get no Q for their sake",
        rows("[l] s = LSTM <hidden_size = 8> (x, W, R) [o] y = Tanh (s)", "5,2,16"),
        {"l": "recurrent", "o": "float-function"},
    ),
    Row(
        "17: ConvTranspose stays float between integer Convs",
        image(conv("c", "x", "t") + "[ct] u = ConvTranspose (t, v)" + conv("d", "u", "y", "v")),
        {"c": CONV, "ct": "no-integer-kernel", "d": CONV},
        {"x": "x", "t": "t", "u": "u", "y": "y"},
        ("ct",),
    ),
    Row(
        "20: the product that makes rotary angles stays float",
        rows("[m] a = MatMul (x, k) [s] s = Sin (a) [c] c = Cos (a) [p] p = Add (s, c) [o] y = MatMul (p, k)"),
        {
            "m": "before-log", "s": "float-function", "c": "float-function", "p": "not-between-integers",
            "o": "MatMulIntegerToFloat",
        },
        {"p": "p"},
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule)
def test_placement(row):
    planned = draft(parse(row.text, CONSTANTS))
    codes = planned.codes()
    assert {name: codes[name] for name in row.codes} == row.codes
    assert set(codes) - set(row.codes) <= {n for n in codes if n.startswith("h")}  # what a rewrite made
    assert {name: spec.group for name, spec in planned.plan.activations.items()} == row.groups
    assert tuple(use.node for use in planned.plan.barriers) == row.barriers


# --- what the numbers of a row do not say -----------------------------------------------------------------


def spec_of(planned: Draft, tensor: str):
    return planned.plan.activations[tensor]


def test_clip_sets_the_bounds_of_its_unit():
    planned = draft(parse(image(conv("c", "x", "t") + "[k] y = Clip (t, zero, six)"), CONSTANTS))
    assert spec_of(planned, "y").bounds == (0.0, 6.0)
    assert spec_of(planned, "x").bounds is None


def test_gate_and_sigmoid_have_the_range_of_their_function():
    body = conv("c", "x", "t") + "[s] s = Sigmoid (t) [m] u = Mul (t, s)" + conv("d", "u", "y", "v")
    planned = draft(parse(image(body), CONSTANTS))
    assert spec_of(planned, "s").fixed == (0.0, 1.0)
    assert spec_of(planned, "u").fixed is None


def test_what_a_sigmoid_softmax_or_the_output_reads_is_never_clipped():
    body = conv("c", "x", "t") + conv("d", "t", "u", "v") + "[f] f = Flatten (u) [s] y = Sigmoid (f)"
    planned = draft(parse(f"({IMAGE} x) => (float[N,M] y) {{ {body} }}", CONSTANTS))
    assert {name: spec.exact for name, spec in planned.plan.activations.items()} == {"x": False, "t": False, "u": True}


def test_row_19_settings_are_no_activations():
    text = """(float[N,8,6,6] x, float[4] sizes, float bound) => (float[N,8,H,W] y) {
        [c] t = Conv (x, v)
        [m] scales = Mul (sizes, two)
        [up] u = Resize <mode = "nearest"> (t, , scales)
        [d] d = Conv (u, v)
        [k] y = Clip (d, , bound)
    }"""
    planned = draft(parse(text, CONSTANTS))
    assert set(planned.plan.activations) == {"x", "t", "u", "d"}
    assert planned.codes()["m"] == "not-between-integers"


def test_masks_are_no_operands():
    body = "[q] q = Conv (x, v) [a] s = Add (q, big) [d] y = Conv (s, v)"
    for value, code in ((-1e4, "not-between-integers"), (-np.inf, "not-between-integers"), (-100, "QLinearAdd")):
        planned = draft(parse(image(body), CONSTANTS | {"big": np.full((1, 1, 12, 12), value, np.float32)}))
        assert planned.codes()["a"] == code


@pytest.mark.parametrize("formula", ["onnx-symmetric", "tf-scaled"])
def test_symmetric_formulas_absorb_no_relu(formula):
    planned = draft(parse(image(conv("c", "x", "t") + "[r] y = Relu (t)"), CONSTANTS), formula=formula)
    assert planned.codes()["r"] == "not-between-integers"
    assert set(planned.plan.activations) == {"x", "t"}


@pytest.mark.parametrize("shared", ["output", "reader", "clip bound"])
def test_relu_of_a_tensor_that_others_see_is_not_absorbed(shared):
    texts = {
        "output": f"({IMAGE} x) => ({IMAGE} y, {IMAGE} t) {{ {conv('c', 'x', 't')} [r] y = Relu (t) }}",
        "reader": image(conv("c", "x", "t") + "[r] r = Relu (t) [s] y = Tanh (t) [z] z = Add (r, r)"),
        "clip bound": image(conv("c", "x", "t") + "[m] m = ReduceMax <keepdims = 0> (t) [r] y = Clip (x, zero, m)"),
    }
    planned = draft(parse(texts[shared], CONSTANTS))
    assert planned.codes()["r"] == "not-between-integers"
