"""EDGE_CASES, attention, recurrent and contrib operators."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.edge.driver import DYNAMIC_DB, FORMS, check
from tests.edge.graphs import Constants, feeds, model, normal, weight

ALL_FORMS = pytest.mark.parametrize("form", FORMS)
STATIC = pytest.mark.parametrize("form", ["qdq", "qoperator"])
MICROSOFT = {"com.microsoft": 1}


def recurrent(op: str, *, both: bool = False, lengths: bool = False, states: bool = False) -> onnx.ModelProto:
    """[T, B, 6] -> LSTM, GRU or RNN of 8 -> MatMul."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    directions = 2 if both else 1
    operands = ["x", "w", "r", "b", "lengths" if lengths else '""', "h0" if states else '""']
    if op == "LSTM":
        operands.append("c0" if states else '""')
    while operands[-1] == '""':
        operands.pop()
    attributes = f'hidden_size = 8, direction = "{"bidirectional" if both else "forward"}"'
    inputs = "float[5,3,6] x, int32[3] lengths" if lengths else "float[5,3,6] x"
    text = f"""({inputs}) => (float[5,3,4] y, float[{directions},3,8] h) {{
        a, h = {op} <{attributes}> ({", ".join(operands)})
        t = Transpose <perm = [0, 2, 1, 3]> (a)  f = Reshape (t, dims)  y = MatMul (f, v)
    }}"""
    constants = {
        "w": normal(directions, gates * 8, 6, scale=0.4),
        "r": normal(directions, gates * 8, 8, seed=1, scale=0.3),
        "b": normal(directions, gates * 16, seed=2, scale=0.2),
        "dims": np.array([5, 3, directions * 8]),
        "v": weight(directions * 8, 4, seed=3),
        **({"h0": normal(directions, 3, 8, seed=4, scale=0.3)} if states else {}),
        **({"c0": normal(directions, 3, 8, seed=5, scale=0.3)} if states and op == "LSTM" else {}),
    }
    return model(text, constants)


def sequences(lengths: bool) -> list:
    found = feeds(40, x=(5, 3, 6))
    rng = np.random.default_rng(0)
    return [{**f, "lengths": rng.integers(1, 6, 3).astype(np.int32)} for f in found] if lengths else found


@ALL_FORMS
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    ("both", "lengths", "states"), [(False, False, False), (True, True, True), (True, False, False)]
)
def test_recurrent_layers_stay_float_with_a_reason(form: str, op: str, both: bool, lengths: bool, states: bool) -> None:
    proto = recurrent(op, both=both, lengths=lengths, states=states)
    result = check(proto, sequences(lengths), form, db=24)
    assert result.decisions()[f"{op}:a"] == "recurrent"
    assert result.decisions()["MatMul:y"] == "quantized"
    assert result.ops[op] == 1


@pytest.mark.parametrize(
    ("both", "lengths", "states"),
    [(False, False, False), (False, True, False), (False, False, True), (True, False, False), (True, True, True)],
)
def test_a_dynamic_lstm_that_is_asked_for_is_accurate(both: bool, lengths: bool, states: bool) -> None:
    proto = recurrent("LSTM", both=both, lengths=lengths, states=states)
    result = check(proto, sequences(lengths), "dynamic", include_op=["LSTM", "MatMul"], db=DYNAMIC_DB)
    assert result.decisions()["LSTM:a"] == "quantized"
    assert result.ops["DynamicQuantizeLSTM"] == 1


MASKS = {"-1e4": -1e4, "lowest": float(np.finfo(np.float32).min), "-inf": -np.inf, "-1e9": -1e9}


def attention(mask: str) -> tuple[str, Constants]:
    """One head of causal attention, its mask added or chosen, between projections."""
    masked = "m = Add (d, mask)" if mask == "Add" else "m = Where (keep, d, low)"
    text = f"""(float[N,6,16] x) => (float[N,6,16] y) {{
        q = MatMul (x, wq)  k = MatMul (x, wk)  u = MatMul (x, wv)
        t = Transpose <perm = [0, 2, 1]> (k)  s = MatMul (q, t)  d = Div (s, root)  {masked}
        p = Softmax <axis = -1> (m)  o = MatMul (p, u)  y = MatMul (o, wo)
    }}"""
    return text, {f"w{name}": weight(16, 16, seed=i) for i, name in enumerate("qkvo")} | {"root": np.float32(4)}


@ALL_FORMS
@pytest.mark.parametrize("value", MASKS)
@pytest.mark.parametrize("kind", ["Add", "Where"])
@pytest.mark.parametrize("opset", [11, 17])
def test_mask_values_never_enter_a_range(form: str, value: str, kind: str, opset: int) -> None:
    text, constants = attention(kind)
    above = np.triu(np.ones((6, 6), bool), 1)
    if kind == "Add":
        constants = {**constants, "mask": np.where(above, np.float32(MASKS[value]), np.float32(0))}
    else:
        constants = {**constants, "keep": ~above, "low": np.float32(MASKS[value])}
    result = check(model(text, constants, opset=opset), feeds(x=(4, 6, 16)), form, db=20)
    for row in result.report.tensors:
        assert row.range is None or max(-row.range[0], row.range[1]) < 100
    found = result.decisions()
    assert [found[f"MatMul:{name}"] for name in "qkuy"] == ["quantized"] * 4


@ALL_FORMS
@pytest.mark.parametrize("value", MASKS)
def test_a_mask_computed_from_an_input(form: str, value: str) -> None:
    if value == "-inf":
        pytest.skip("0 * inf is NaN in the float model too")
    text, constants = attention("Add")
    text = text.replace("(float[N,6,16] x)", "(float[N,6,16] x, float[N,1,6] keep)").replace(
        "m = Add (d, mask)", "i = Sub (one, keep)  mask = Mul (i, low)  m = Add (d, mask)"
    )
    samples = [
        {**f, "keep": (np.arange(6) < 2 + i % 4).astype(np.float32) * np.ones((4, 1, 1), np.float32)}
        for i, f in enumerate(feeds(x=(4, 6, 16)))
    ]
    proto = model(text, {**constants, "one": np.float32(1), "low": np.float32(MASKS[value])})
    result = check(proto, samples, form, db=20)
    assert all(row.range is None or row.range[0] > -100 for row in result.report.tensors)


CONTRIB = {
    "FastGelu": "k = com.microsoft.FastGelu (h, c)",
    "BiasGelu": "k = com.microsoft.BiasGelu (h, c)",
    "Gelu": "k = com.microsoft.Gelu (h)",
    "QuickGelu": "k = com.microsoft.QuickGelu <alpha = 1.7> (h)",
    "SkipLayerNormalization": "k = com.microsoft.SkipLayerNormalization <epsilon = 1.e-5> (h, x, g, c)",
    "SimplifiedLayerNormalization": "k = SimplifiedLayerNormalization <axis = -1, epsilon = 1.e-5> (h, g)",
    "FusedMatMul": "k = com.microsoft.FusedMatMul <alpha = 0.5, transB = 1> (h, u)",
    "FusedMatMul of activations": "t = com.microsoft.FusedMatMul <transB = 1> (h, x)  k = MatMul (t, x)",
}


@ALL_FORMS
@pytest.mark.parametrize("name", CONTRIB)
@pytest.mark.parametrize("opset", [11, 17])
def test_contrib_operators_next_to_matmuls(form: str, name: str, opset: int) -> None:
    text = f"""(float[4,6,16] x) => (float[4,6,5] y) {{
        h = MatMul (x, w)  {CONTRIB[name]}  y = MatMul (k, v)
    }}"""
    constants = {
        "w": weight(16, 16),
        "v": weight(16, 5, seed=1),
        "u": weight(16, 16, seed=2),
        "c": normal(16, seed=3, scale=0.2),
        "g": normal(16, seed=4, scale=0.1) + 1,
    }
    used = {n: a for n, a in constants.items() if f"{n})" in text or f" {n}," in text}
    result = check(model(text, used, opset=opset, domains=MICROSOFT), feeds(x=(4, 6, 16)), form, db=18)
    assert result.decisions()["MatMul:h"] == result.decisions()["MatMul:y"] == "quantized"


@pytest.mark.parametrize("mask", [False, True])
@ALL_FORMS
def test_fused_attention(form: str, mask: bool) -> None:
    text = f"""(float[4,6,16] x{", int32[4,6] mask" if mask else ""}) => (float[4,6,5] y) {{
        a = com.microsoft.Attention <num_heads = 2> (x, w, b{", mask" if mask else ""})  y = MatMul (a, v)
    }}"""
    constants = {"w": weight(16, 48), "b": normal(48, scale=0.1), "v": weight(16, 5, seed=1)}
    samples = feeds(x=(4, 6, 16))
    if mask:
        samples = [{**f, "mask": (np.arange(6) < 4).astype(np.int32) * np.ones((4, 1), np.int32)} for f in samples]
    result = check(model(text, constants, domains=MICROSOFT), samples, form, db=24)
    assert result.decisions()["MatMul:y"] == "quantized"
    assert form != "dynamic" or result.ops["QAttention"] == 1
