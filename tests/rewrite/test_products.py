"""MatMul and Gemm in all their forms, static, dynamic and with quantized weights alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from quantool.schema import AnyArray
from tests.rewrite.flow import DYNAMIC_DB, FOUR_BITS_DB, STATIC_DB, WEIGHTS_DB, flow, normal, normal_feeds, parse

WAYS = pytest.mark.parametrize(
    ("options", "least"),
    [
        pytest.param({}, STATIC_DB, id="qdq"),
        pytest.param({"format": "qoperator"}, STATIC_DB, id="qoperator"),
        pytest.param({"granularity": "tensor"}, STATIC_DB, id="qdq-tensor"),
        pytest.param({"weights": "uint8"}, STATIC_DB, id="qdq-uint8"),
        pytest.param({"weights": "uint8", "format": "qoperator"}, STATIC_DB, id="qoperator-uint8"),
        pytest.param({"mode": "dynamic"}, DYNAMIC_DB, id="dynamic"),
        pytest.param({"mode": "dynamic", "weights": "uint8"}, DYNAMIC_DB, id="dynamic-uint8"),
        pytest.param({"mode": "dynamic", "granularity": "tensor"}, DYNAMIC_DB, id="dynamic-tensor"),
        pytest.param({"mode": "weight-only"}, WEIGHTS_DB, id="weights"),
        pytest.param({"mode": "weight-only", "weights": "int4"}, FOUR_BITS_DB, id="weights-int4"),
        pytest.param({"mode": "weight-only", "weights": "uint4"}, FOUR_BITS_DB, id="weights-uint4"),
        pytest.param({"mode": "weight-only", "target": "generic"}, WEIGHTS_DB, id="weights-dq"),
        pytest.param({"mode": "auto"}, DYNAMIC_DB, id="auto"),
    ],
)


def weight(*shape: int) -> AnyArray:
    return normal(*shape, scale=shape[-2] ** -0.5, seed=1)


@dataclass(frozen=True)
class Product:
    """A node y = node(x, w, ...), the shapes of its input, and its constants."""

    node: str
    x: tuple[int, ...]
    constants: dict[str, AnyArray]
    signature: str
    feeds: int = 32

    def text(self) -> str:
        return f"{self.signature} {{ [n] {self.node} }}"


def matmul(x: tuple[int, ...], w: tuple[int, ...], signature: str, *, feeds: int = 32) -> Product:
    return Product("y = MatMul (x, w)", x, {"w": weight(*w)}, signature, feeds)


PRODUCTS = {
    "rank 2": matmul((40, 16), (16, 8), "(float[N,16] x) => (float[N,8] y)"),
    "rank 3": matmul((2, 20, 16), (16, 8), "(float[B,N,16] x) => (float[B,N,8] y)"),
    "rank 4": matmul((2, 2, 10, 16), (16, 8), "(float[B,2,N,16] x) => (float[B,2,N,8] y)"),
    "vector times matrix": matmul((16,), (16, 8), "(float[16] x) => (float[8] y)", feeds=160),
    "one column": matmul((40, 16), (16, 1), "(float[N,16] x) => (float[N,1] y)"),
    "one row": matmul((40, 1), (1, 8), "(float[N,1] x) => (float[N,8] y)"),
    "blocks do not divide K": matmul((40, 33), (33, 7), "(float[N,33] x) => (float[N,7] y)"),
    "K below a block": matmul((40, 5), (5, 7), "(float[N,5] x) => (float[N,7] y)"),
    "stack of matrices": matmul((2, 20, 16), (2, 16, 8), "(float[2,N,16] x) => (float[2,N,8] y)"),
    "stack times matrix": matmul((20, 16), (3, 16, 8), "(float[N,16] x) => (float[3,N,8] y)"),
    "gemm": Product(
        "y = Gemm (x, w, b)", (40, 33), {"w": weight(33, 7), "b": normal(7)}, "(float[N,33] x) => (float[N,7] y)"
    ),
    "gemm without bias": Product(
        "y = Gemm (x, w)", (40, 33), {"w": weight(33, 7)}, "(float[N,33] x) => (float[N,7] y)"
    ),
    "gemm transposed and scaled": Product(
        "y = Gemm <transB = 1, alpha = 0.5, beta = -2.0> (x, w, b)",
        (40, 33),
        {"w": weight(33, 7).T.copy(), "b": normal(7)},
        "(float[N,33] x) => (float[N,7] y)",
    ),
    "gemm of a transposed input": Product(
        "y = Gemm <transA = 1, alpha = 3.0> (x, w)",
        (33, 40),
        {"w": weight(33, 7)},
        "(float[33,40] x) => (float[40,7] y)",
    ),
}


@WAYS
@pytest.mark.parametrize("name", PRODUCTS)
def test_every_form_is_quantized_and_right(name, options, least):
    product = PRODUCTS[name]
    result = flow(parse(product.text(), product.constants), normal_feeds(product.feeds, x=product.x), **options)
    assert all(d.quantized for d in result.plan.decisions.values() if d.node == "n")
    assert "w" not in result.constants()
    assert least < result.db() < 200


@pytest.mark.parametrize("shape", [(7,), (1, 7), (40, 7), (1,), (), (40, 1)], ids=str)
@WAYS
def test_every_shape_of_the_third_operand_is_right(shape, options, least):
    constants = {"w": weight(33, 7), "c": normal(*shape)}
    text = "(float[40,33] x) => (float[40,7] y) { [n] y = Gemm <beta = -1.0> (x, w, c) }"
    result = flow(parse(text, constants), normal_feeds(x=(40, 33)), **options)
    assert result.plan.decisions["n"].quantized
    assert result.db() > least


@dataclass(frozen=True)
class Kept:
    """A product without an integer form: its text, constants and reason."""

    node: str
    constants: dict[str, AnyArray] = field(default_factory=dict)
    code: str = ""


@WAYS
@pytest.mark.parametrize(
    "kept",
    [
        Kept("y = MatMul (x, w)", {"w": weight(8, 1)[:, 0]}, "unsupported-form"),
        Kept("y = MatMul (x, x)", {}, "activation-matmul"),
        Kept("y = Gemm (x, x)", {}, "weight-not-constant"),
    ],
    ids=lambda kept: kept.code,
)
def test_products_without_an_integer_form_stay_exact_and_say_why(kept, options, least):
    shape = (8, 8) if kept.node.count("x") == 2 else (16, 8)
    text = f"(float[{shape[0]},8] x) => (float y) {{ [n] {kept.node} }}"
    result = flow(parse(text, kept.constants), normal_feeds(x=shape), **options)
    assert result.plan.decisions["n"].reason.code == kept.code
    assert result.db() > 120


@WAYS
def test_product_with_a_constant_in_front_stays_exact_or_has_its_weight_stored(options, least):
    text = "(float[16,8] x) => (float[4,8] y) { [n] y = MatMul (w, x) }"
    result = flow(parse(text, {"w": weight(4, 16)}), normal_feeds(x=(16, 8)), **options)
    if options.get("mode") == "weight-only":
        assert result.plan.decisions["n"].kernel == "DequantizeLinear"
        assert least < result.db() < 120
    else:
        assert result.plan.decisions["n"].reason.code == "constant-first-operand"
        assert result.db() > 120


@WAYS
@pytest.mark.parametrize("rows", [0, 1, 4, 33])
def test_the_result_runs_with_other_batches(rows, options, least):
    text = "(float[N,33] x) => (float[N,7] y) { h = Gemm (x, w, b) r = Relu (h) y = MatMul (r, v) }"
    constants = {"w": weight(33, 20), "b": normal(20), "v": weight(20, 7)}
    feeds = [*normal_feeds(40, x=(20, 33)), *normal_feeds(14, x=(rows, 33))]
    result = flow(parse(text, constants), feeds, **options)
    assert [run["y"].shape for run in result.optimized[-10:]] == [(rows, 7)] * 10
    assert rows == 0 or result.db() > least - 2  # a layer more


def test_mlp_runs_as_integers_from_input_to_output():
    text = """(float[N,16] x) => (float[N,16] y) {
        [g0] a = Gemm (x, w0, b)
        [r0] b0 = Relu (a)
        [g1] c = Gemm (b0, w1, b)
        [m] y = MatMul (c, w2)
    }"""
    constants = {f"w{i}": normal(16, 16, seed=i, scale=0.25) for i in range(3)} | {"b": normal(16, scale=0.2)}
    feeds = normal_feeds(64, x=(20, 16))
    qdq = flow(parse(text, constants), feeds)
    assert dict(qdq.runs) == {"QuantizeLinear": 1, "QGemm": 2, "MatMulIntegerToFloat": 1}
    qoperator = flow(parse(text, constants), feeds, format="qoperator")
    assert dict(qoperator.runs) == {"QuantizeLinear": 1, "QGemm": 2, "QLinearMatMul": 1, "DequantizeLinear": 1}
    assert qdq.db() > qoperator.db() > STATIC_DB


def test_matmuls_that_read_one_tensor_share_its_quantization_at_run_time():
    text = "(float[N,16] x) => (float[N,8] y, float[N,8] z) { y = MatMul (x, w) z = MatMul (x, v) }"
    proto = parse(text, {"w": weight(16, 8), "v": weight(16, 8) * 2})
    result = flow(proto, normal_feeds(x=(20, 16)), "dynamic")
    assert result.ops["DynamicQuantizeLinear"] == 1
    assert result.runs["MatMulIntegerToFloat"] == 2


SQUARES = {f"w{i}": weight(16, 16) * np.float32(1 + i) for i in range(3)} | {"b": normal(16, scale=0.2)}
SQUARES |= {"rows": normal(20, 16), "flat": np.array([-1, 4, 4]), "small": weight(4, 4)}


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize(
    ("outputs", "body"),
    [
        ("float[20,16] y", "[c] c = MatMul (a, w1) [d] d = Tanh (a) [s] y = Add (c, d)"),
        ("float[20,16] y, float[20,16] a", "[c] y = MatMul (a, w1)"),
        ("float[20,16] y", "[c] c = MatMul (a, w1) [d] d = MatMul (a, w2) [s] y = Add (c, d)"),
        ("float[20,16] y", "[r] r = Relu (a) [c] c = MatMul (r, w1) [d] d = Tanh (r) [s] y = Mul (c, d)"),
        ("float[20,4,4] y", "[r] r = Reshape (a, flat) [c] c = MatMul (r, small) [d] d = Tanh (r) [s] y = Add (c, d)"),
    ],
    ids=["float reader", "graph output", "two integer readers", "behind a Relu", "behind a Reshape"],
)
@pytest.mark.parametrize("first", ["MatMul (x, w0)", "Gemm (x, w0, b)"], ids=["MatMul", "Gemm"])
def test_product_that_others_read_in_float_stays_integer(first, outputs, body, form):
    text = f"(float[20,16] x) => ({outputs}) {{ [a] a = {first} {body} }}"
    result = flow(parse(text, SQUARES), normal_feeds(64, x=(20, 16)), format=form)
    assert all(d.quantized for name, d in result.plan.decisions.items() if name in "acd" and name != "d")
    assert result.runs["MatMul"] + result.runs["Gemm"] == 0
    assert result.db() > STATIC_DB


@pytest.mark.parametrize("mode", ["static", "weight-only"])
@pytest.mark.parametrize("term", ["(a, x)", "(x, a)", "(a, rows)", "(a, a2)"])
def test_sum_behind_a_product_does_not_make_a_float_gemm_of_it(term, mode):
    text = (
        f"(float[20,16] x) => (float[20,16] y) {{ [a] a = MatMul (x, w0) [a2] a2 = MatMul (x, w1) [s] y = Add {term} }}"
    )
    text = text if "a2" in term else text.replace("[a2] a2 = MatMul (x, w1)", "")
    result = flow(parse(text, SQUARES), normal_feeds(64, x=(20, 16)), mode)
    assert result.runs["Gemm"] == 0
    assert result.runs["MatMulIntegerToFloat" if mode == "static" else "MatMulNBits"] == (2 if "a2" in term else 1)
    assert result.db() > STATIC_DB


@pytest.mark.parametrize("reader", ["Relu (a)", "Clip (a, low, high)"])
def test_weights_before_a_rectifier_are_read_by_matmulnbits(reader):
    text = f"(float[20,16] x) => (float[20,16] y) {{ [a] a = MatMul (x, w0) [r] y = {reader} }}"
    constants = SQUARES | {"low": np.float32(0), "high": np.float32(2)}
    result = flow(parse(text, constants), normal_feeds(64, x=(20, 16)), "weight-only")
    assert (result.runs["MatMulNBits"], result.runs["DequantizeLinear"]) == (1, 0)
    assert result.db() > WEIGHTS_DB


RECTIFIERS = ["Relu (a)", "Clip (a, zero, one)", "Clip (a, low, one)", "Clip (a, half, one)", "Clip (a, , one)"]
TAILS = {
    "a function": "[t] y = Tanh (r)",
    "the output": "[t] y = Identity (r)",
    "an integer product": "[t] y = MatMul (r, w1)",
    "both": "[t] t = Tanh (r) [u] u = MatMul (r, w1) [v] y = Add (t, u)",
    "a Relu": "[t] t = Relu (r) [u] y = MatMul (t, w1)",
}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("rectifier", RECTIFIERS)
@pytest.mark.parametrize("product", ["MatMul (x, w0)", "Gemm (x, w0, b)"], ids=["MatMul", "Gemm"])
def test_rectifier_behind_a_product_does_not_hide_it(product, rectifier, tail):
    text = f"(float[20,16] x) => (float[20,16] y) {{ [a] a = {product} [r] r = {rectifier} {TAILS[tail]} }}"
    constants = SQUARES | {"zero": np.float32(0), "one": np.float32(1), "low": np.float32(-1), "half": np.float32(0.5)}
    result = flow(parse(text, constants), normal_feeds(64, x=(20, 16)))
    assert result.plan.decisions["a"].quantized
    assert result.runs["MatMul"] + result.runs["Gemm"] + result.runs["FusedGemm"] == 0
    assert result.db() > STATIC_DB - 2  # a Clip to half of the values' range


@pytest.mark.parametrize("reader", ["Sum (a, x)", "Transpose <perm = [1, 0]> (a)"])
def test_gemm_without_bias_stays_integer_before(reader):
    text = f"(float[16,16] x) => (float[16,16] y) {{ [a] a = Gemm (x, w0) [r] y = {reader} }}"
    result = flow(parse(text, SQUARES), normal_feeds(64, x=(16, 16)))
    assert (result.runs["QGemm"], result.runs["Gemm"]) == (1, 0)
    assert result.db() > STATIC_DB


def test_dynamic_columns_of_unequal_size_are_scaled_apart():
    factor = (np.float32(10) ** np.linspace(-2, 2, 8)).astype(np.float32)
    text = "(float[N,16] x) => (float[N,8] y) { y = MatMul (x, w) }"
    result = flow(parse(text, {"w": weight(16, 8) * factor}), normal_feeds(x=(20, 16)), "dynamic")
    for column in range(8):
        exact = np.concatenate([run["y"][:, column] for run in result.given])
        error = exact - np.concatenate([run["y"][:, column] for run in result.optimized])
        assert 10 * np.log10((exact**2).sum() / (error**2).sum()) > DYNAMIC_DB
