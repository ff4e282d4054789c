"""Recurrent layers, attention operators, and contrib operators between quantized products."""

from __future__ import annotations

import numpy as np
import pytest

from quantool.schema import AnyArray
from tests.rewrite.flow import DYNAMIC_DB, STATIC_DB, WEIGHTS_DB, Result, flow, normal, normal_feeds, parse

LSTM = {"mode": "dynamic", "include_op": ["LSTM"]}


def weight(*shape: int, seed: int = 1) -> AnyArray:
    return normal(*shape, seed=seed, scale=shape[-1] ** -0.5)


def codes(result: Result) -> dict[str, str]:
    return {n: d.reason.code if d.reason else d.kernel for n, d in result.plan.decisions.items()}


@pytest.mark.parametrize("target", ["cpu-x64", "cpu-x64-avx2"])
@pytest.mark.parametrize(("direction", "count"), [("forward", 1), ("reverse", 1), ("bidirectional", 2)])
@pytest.mark.parametrize("rest", ["", ", seq, h0, c0"], ids=["plain", "lengths and states"])
def test_lstm_is_quantized_where_asked(rest, direction, count, target):
    states = f", float[{count},2,4] h0, float[{count},2,4] c0" if rest else ""
    text = f"""(float[5,2,6] x{states}) => (float[5,{count},2,4] y, float[{count},2,4] h, float[{count},2,4] c) {{
        [lstm] y, h, c = LSTM <hidden_size = 4, direction = "{direction}", layout = 0> (x, W, R, B{rest})
    }}"""
    constants = {"W": weight(count, 16, 6), "R": weight(count, 16, 4), "B": normal(count, 32, scale=0.1)}
    shapes = {"x": (5, 2, 6)} | ({"h0": (count, 2, 4), "c0": (count, 2, 4)} if rest else {})
    if rest:
        constants["seq"] = np.array([5, 3], np.int32)
    result = flow(parse(text, constants), normal_feeds(32, **shapes), **LSTM, target=target)
    assert codes(result) == {"lstm": "DynamicQuantizeLSTM"}
    assert dict(result.runs) == {"DynamicQuantizeLSTM": 1}
    largest = max(int(np.abs(a.astype(int)).max()) for a in result.constants().values() if a.dtype == np.int8)
    assert largest == (63 if target.endswith("avx2") else 127)
    assert result.db() > DYNAMIC_DB


RECURRENT = {
    "LSTM": ("y = LSTM <hidden_size = 4> (x, W, R)", 16),
    "GRU": ("y = GRU <hidden_size = 4> (x, W, R)", 12),
    "RNN": ("y = RNN <hidden_size = 4> (x, W, R)", 4),
}


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({}, STATIC_DB),
        ({"format": "qoperator"}, STATIC_DB),
        ({"mode": "dynamic"}, DYNAMIC_DB),
        ({"mode": "weight-only"}, WEIGHTS_DB),
        ({"mode": "auto"}, DYNAMIC_DB),
    ],
    ids=["qdq", "qoperator", "dynamic", "weights", "auto"],
)
@pytest.mark.parametrize("op_type", RECURRENT)
def test_recurrent_layers_stay_float_and_the_product_after_them_is_quantized(op_type, options, least):
    node, rows = RECURRENT[op_type]
    text = f"(float[5,8,6] x) => (float[5,8,3] z) {{ [r] {node} [s] t = Squeeze (y, axes) [m] z = MatMul (t, w) }}"
    constants = {"W": weight(1, rows, 6), "R": weight(1, rows, 4), "w": weight(4, 3), "axes": np.array([1])}
    result = flow(parse(text, constants), normal_feeds(48, x=(5, 8, 6)), **options)
    assert codes(result)["r"] == "recurrent"
    assert result.plan.decisions["m"].quantized
    assert result.db() > least


ATTENTION = {"w": weight(16, 48), "b": normal(48, scale=0.1), "o": weight(16, 16)}


def attention(inputs: str = "x, w, b", attributes: str = "num_heads = 2", **options: object) -> Result:
    text = f"""(float[2,8,16] x) => (float[2,8,16] y) {{
        [att] a = com.microsoft.Attention <{attributes}> ({inputs})
        [out] y = MatMul (a, o)
    }}"""
    constants = ATTENTION | {"lengths": np.array([8, 5], np.int32)}
    return flow(parse(text, constants), normal_feeds(32, x=(2, 8, 16)), **options)


@pytest.mark.parametrize("options", [{}, {"weights": "uint8"}, {"granularity": "tensor"}], ids=str)
@pytest.mark.parametrize("inputs", ["x, w, b", "x, w, b, lengths"])
def test_attention_operator_is_quantized_in_dynamic_mode(inputs, options):
    result = attention(inputs, mode="dynamic", **options)
    assert codes(result) == {"att": "QAttention", "out": "DynamicQuantizeMatMul"}
    assert (result.runs["QAttention"], result.runs["Attention"]) == (1, 0)
    assert result.db() > DYNAMIC_DB


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [("x, w", "num_heads = 2"), ("x, w, b", "num_heads = 2, qkv_hidden_sizes = [16, 16, 16]")],
    ids=["no bias", "head sizes"],
)
def test_attention_that_qattention_cannot_express_stays_float(inputs, attributes):
    result = attention(inputs, attributes, mode="dynamic")
    assert codes(result) == {"att": "unsupported-form", "out": "DynamicQuantizeMatMul"}
    assert result.db() > DYNAMIC_DB


@pytest.mark.parametrize("options", [{}, {"format": "qoperator"}, {"mode": "weight-only"}], ids=str)
def test_attention_operator_stays_float_elsewhere(options):
    result = attention(**options)
    assert codes(result)["att"] in ("no-integer-kernel", "mode")
    assert result.plan.decisions["out"].quantized
    assert result.db() > STATIC_DB


@pytest.mark.parametrize(
    "options", [{}, {"format": "qoperator"}, {"mode": "dynamic"}, {"mode": "weight-only"}], ids=str
)
@pytest.mark.parametrize(
    "node",
    [
        "t = com.microsoft.FastGelu (h, b)",
        "t = com.microsoft.BiasGelu (h, b)",
        "t = com.microsoft.SkipLayerNormalization (h, x, gamma, b)",
        "t = com.microsoft.FusedMatMul <alpha = 0.5> (h, w1)",
    ],
    ids=lambda node: node.split(".")[2].split()[0],
)
def test_contrib_operators_stay_and_products_around_them_are_quantized(node, options):
    text = f"(float[2,20,16] x) => (float[2,20,16] y) {{ [m0] h = MatMul (x, w0) [n] {node} [m1] y = MatMul (t, w1) }}"
    constants = {"w0": weight(16, 16), "w1": weight(16, 16, seed=2), "b": normal(16, scale=0.1), "gamma": normal(16)}
    result = flow(parse(text, constants), normal_feeds(48, x=(2, 20, 16)), **options)
    assert not result.plan.decisions["n"].quantized
    assert result.plan.decisions["m0"].quantized
    assert result.plan.decisions["m1"].quantized
    assert result.db() > DYNAMIC_DB


def test_convs_stay_float_in_dynamic_mode_and_the_classifier_is_quantized():
    text = """(float[N,3,8,8] x) => (float[N,10] y) {
        [c] t = Conv (x, k)
        [g] p = GlobalAveragePool (t)
        [f] f = Flatten (p)
        [fc] y = Gemm (f, w, b)
    }"""
    constants = {"k": normal(8, 3, 3, 3, scale=0.2), "w": weight(8, 10), "b": normal(10, scale=0.1)}
    feeds = normal_feeds(32, x=(8, 3, 8, 8))
    dynamic = flow(parse(text, constants), feeds, "dynamic")
    assert (codes(dynamic)["c"], codes(dynamic)["fc"]) == ("mode", "DynamicQuantizeMatMul")
    assert "ConvInteger" not in dynamic.runs
    mixed = flow(parse(text, constants), feeds, "auto")
    assert (codes(mixed)["c"], codes(mixed)["fc"]) == ("DequantizeLinear", "DynamicQuantizeMatMul")
    assert min(dynamic.db(), mixed.db()) > DYNAMIC_DB
