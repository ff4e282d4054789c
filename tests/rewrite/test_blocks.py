"""Whole blocks of real networks: residual, gated, attention, normalized, concatenated."""

from __future__ import annotations

import numpy as np
import pytest

from quantool.schema import AnyArray
from tests.rewrite.flow import SIX_LAYERS_DB, STATIC_DB, flow, normal, normal_feeds, parse

FORMATS = pytest.mark.parametrize("form", ["qdq", "qoperator"])
IMAGES = normal_feeds(32, x=(2, 3, 12, 12))


def weight(*shape: int, seed: int = 1) -> AnyArray:
    fan_in = np.prod(shape[1:]) if len(shape) > 2 else shape[0]
    return normal(*shape, seed=seed, scale=float(fan_in) ** -0.5)


def residual(blocks: int) -> tuple[str, dict[str, AnyArray]]:
    body, constants, last = "[stem] t0 = Conv <pads = [1, 1, 1, 1]> (x, w, b)", {}, "t0"
    for i in range(blocks):
        body += f"""
            [a{i}] a{i} = Conv <pads = [1, 1, 1, 1]> ({last}, wa{i}, b)
            [ra{i}] ra{i} = Relu (a{i})
            [b{i}] b{i} = Conv <pads = [1, 1, 1, 1]> (ra{i}, wb{i}, b)
            [s{i}] s{i} = Add (b{i}, {last})
            [rs{i}] rs{i} = Relu (s{i})"""
        constants |= {f"wa{i}": weight(8, 8, 3, 3, seed=2 * i), f"wb{i}": weight(8, 8, 3, 3, seed=2 * i + 1)}
        last = f"rs{i}"
    constants |= {"w": weight(8, 3, 3, 3), "b": normal(8, seed=4, scale=0.2)}
    return body.replace(last, "y"), constants


@FORMATS
@pytest.mark.parametrize("named", [True, False])
def test_three_residual_blocks_run_as_integers_from_end_to_end(named, form):
    body, constants = residual(3)
    if not named:
        body = "\n".join(line.split("]", 1)[1] for line in body.replace("[1, 1, 1, 1]", "PADS").splitlines())
        body = body.replace("PADS", "[1, 1, 1, 1]")
    result = flow(parse(f"(float[N,3,12,12] x) => (float[N,8,12,12] y) {{ {body} }}", constants), IMAGES, format=form)
    assert (result.runs["QLinearConv"], result.runs["QLinearAdd"]) == (7, 3)
    assert result.runs["QuantizeLinear"] + result.runs["DequantizeLinear"] == 2
    assert all(d.quantized for d in result.plan.decisions.values())
    assert result.db() > SIX_LAYERS_DB


@FORMATS
def test_squeeze_excite_runs_as_integers_but_for_its_hard_sigmoid(form):
    text = """(float[N,3,12,12] x) => (float y) {
        [c] t = Conv <pads = [1, 1, 1, 1]> (x, w, b)
        [pool] g = GlobalAveragePool (t)
        [f1] f1 = Conv (g, v1)
        [r1] r1 = Relu (f1)
        [f2] f2 = Conv (r1, v2)
        [gate] h = HardSigmoid (f2)
        [scale] m = Mul (t, h)
        [d] y = Conv (m, v)
    }"""
    constants = {"w": weight(8, 3, 3, 3), "b": normal(8, seed=4, scale=0.2), "v": weight(8, 8, 1, 1)}
    constants |= {"v1": weight(4, 8, 1, 1), "v2": weight(8, 4, 1, 1)}
    result = flow(parse(text, constants), IMAGES, format=form)
    assert [name for name, d in result.plan.decisions.items() if not d.quantized] == ["gate"]
    assert (result.plan.activations["h"].fixed, result.parameters.activations["h"].zero_point) == ((0.0, 1.0), 0)
    assert result.runs["QLinearMul"] == 1
    assert result.db() > STATIC_DB


# --- attention ------------------------------------------------------------------------------------------

MASKS = pytest.mark.parametrize("value", [-1e4, -1e9, float(np.finfo(np.float32).min), -np.inf])


def attention(mask: str, value: float) -> tuple[str, dict[str, AnyArray]]:
    text = f"""(float[2,8,16] x) => (float[2,8,16] y) {{
        [q] q = MatMul (x, wq)
        [k] k = MatMul (x, wk)
        [v] v = MatMul (x, wv)
        [t] kt = Transpose <perm = [0, 2, 1]> (k)
        [scores] s = MatMul (q, kt)
        [div] scaled = Div (s, four)
        [mask] masked = {mask}
        [soft] p = Softmax (masked)
        [mix] o = MatMul (p, v)
        [out] y = MatMul (o, wo)
    }}"""
    seen = np.tril(np.ones((1, 8, 8), bool))
    constants = {f"w{n}": weight(16, 16, seed=i) for i, n in enumerate("qkvo")}
    constants |= {"four": np.float32(4), "seen": seen, "value": np.float32(value)}
    constants |= {"bias": np.where(seen, 0, value).astype(np.float32)}
    return text, constants


@FORMATS
@MASKS
@pytest.mark.parametrize("mask", ["Add (scaled, bias)", "Where (seen, scaled, value)"], ids=["add", "where"])
def test_masks_never_enter_a_range(mask, value, form):
    text, constants = attention(mask, value)
    result = flow(parse(text, constants), normal_feeds(48, x=(2, 8, 16)), format=form)
    codes = {n: d.reason.code for n, d in result.plan.decisions.items() if not d.quantized}
    assert codes == {
        "t": "not-between-integers", "scores": "activation-matmul", "div": "softmax",
        "mask": "softmax", "soft": "softmax", "mix": "activation-matmul",
    }  # fmt: skip
    assert {"q", "k", "v", "out"} == {n for n, d in result.plan.decisions.items() if d.quantized}
    for params in result.parameters.activations.values():
        assert np.abs(params.chosen.lo) < 100
        assert params.chosen.hi < 100
    assert result.db() > STATIC_DB


def test_attention_products_are_quantized_where_asked():
    text, constants = attention("Add (scaled, bias)", -1e9)
    result = flow(parse(text, constants), normal_feeds(48, x=(2, 8, 16)), include_op=["MatMul"])
    assert result.plan.decisions["scores"].quantized
    assert result.plan.decisions["mix"].quantized
    assert result.plan.activations["p"].fixed == (0.0, 1.0)
    assert "masked" not in result.plan.activations
    assert result.runs["MatMul"] == 0
    assert result.db() > 25  # the products' own noise comes on top


# --- normalizations spelled out -------------------------------------------------------------------------


@FORMATS
@pytest.mark.parametrize("center", [True, False], ids=["LayerNorm", "RMSNorm"])
def test_norms_and_gelus_spelled_out_stay_float_between_quantized_matmuls(center, form):
    mean = "[n1] mean = ReduceMean <axes = [-1]> (h) [n2] d = Sub (h, mean)" if center else "[n2] d = Identity (h)"
    text = f"""(float[N,16] x) => (float[N,16] y) {{
        [m0] h = MatMul (x, w0)
        {mean}
        [n3] sq = Pow (d, two)
        [n4] var = ReduceMean <axes = [-1]> (sq)
        [n5] safe = Add (var, eps)
        [n6] root = Sqrt (safe)
        [n7] normed = Div (d, root)
        [n8] scaled = Mul (normed, gamma)
        [m1] g = MatMul (scaled, w1)
        [g1] g1 = Div (g, sqrt2)
        [g2] g2 = Erf (g1)
        [g3] g3 = Add (g2, one)
        [g4] g4 = Mul (g, g3)
        [g5] g5 = Mul (g4, half)
        [m2] y = MatMul (g5, w2)
    }}"""
    w0 = weight(16, 16, seed=0)
    w0[:, 3] *= 50  # an outlier channel
    constants = {"w0": w0, "w1": weight(16, 16), "w2": weight(16, 16, seed=2), "two": np.float32(2)}
    constants |= {"eps": np.float32(1e-5), "gamma": normal(16, seed=5), "sqrt2": np.float32(2**0.5)}
    constants |= {"one": np.float32(1), "half": np.float32(0.5)}
    result = flow(parse(text, constants), normal_feeds(48, x=(20, 16)), format=form)
    kept = {n: d.reason.code for n, d in result.plan.decisions.items() if not d.quantized}
    assert {kept[n] for n in kept if n in ("n3", "n4", "n5", "n6", "n7")} == {"normalization"}
    assert {"m0", "m1", "m2"} == {n for n, d in result.plan.decisions.items() if d.quantized}
    if form == "qdq":
        assert result.db() > SIX_LAYERS_DB  # an outlier channel


# --- Concat ---------------------------------------------------------------------------------------------


def concat(factor: float, tail: str = "[d] y = Conv (m, v)", **options: object):
    text = f"""(float[N,3,12,12] x) => (float y) {{
        [c0] t = Conv <pads = [1, 1, 1, 1]> (x, w, b)
        [c1] u = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
        [cat] m = Concat <axis = 1> (t, u)
        {tail}
    }}"""
    constants = {
        "w": weight(8, 3, 3, 3),
        "w1": weight(8, 3, 3, 3, seed=3) * np.float32(factor),
        "v": weight(8, 16, 1, 1),
    }
    constants |= {"b": normal(8, seed=4, scale=0.2), "b1": normal(8, seed=6, scale=0.2 * factor)}
    return flow(parse(text, constants), IMAGES, **options)


@FORMATS
def test_concat_of_similar_ranges_shares_one_scale_and_copies(form):
    result = concat(1.2, format=form)
    assert {result.plan.activations[t].group for t in ("t", "u", "m")} == {"u"}
    scales = {float(result.parameters.activations[t].scale) for t in ("t", "u", "m")}
    assert len(scales) == 1
    assert result.runs["QLinearConv"] == 3
    assert result.db() > STATIC_DB


@FORMATS
def test_concat_of_different_ranges_keeps_a_scale_for_each_input(form):
    result = concat(4.0, format=form)
    scales = [float(result.parameters.activations[t].scale) for t in ("t", "u", "m")]
    assert scales[1] > 2 * scales[0]
    assert result.plan.decisions["cat"].quantized
    assert result.runs["QLinearConcat"] == 1
    assert result.db() > STATIC_DB


@FORMATS
@pytest.mark.parametrize(
    "tail", ["[d] y = Conv (m, v)", "[p] p = MaxPool <kernel_shape = [2, 2]> (m) [d] y = Conv (p, v)"]
)
def test_concat_of_ranges_that_differ_much_stays_float(tail, form):
    result = concat(100.0, tail, format=form)
    assert result.plan.decisions["cat"].reason.code == "unequal-ranges"
    assert [use.node for use in result.plan.barriers][:1] == ["cat"]
    assert result.runs["QLinearConcat"] == 0
    assert result.runs["QLinearConv"] == 3


def test_concat_is_quantized_all_the_same_where_asked():
    result = concat(100.0, include=["*"])
    assert result.plan.decisions["cat"].quantized


def test_concat_with_a_relu_never_lets_negative_values_through():
    text = """(float[N,3,12,12] x) => (float[N,16,12,12] y, float[N,8,10,10] z) {
        [c0] t0 = Conv <pads = [1, 1, 1, 1]> (x, w, b)
        [r] t = Relu (t0)
        [c1] u = Conv <pads = [1, 1, 1, 1]> (x, w1)
        [cat] y = Concat <axis = 1> (t, u)
        [d] z = Conv (y, v)
    }"""
    constants = {
        "w": weight(8, 3, 3, 3),
        "w1": weight(8, 3, 3, 3, seed=3),
        "b": normal(8, seed=4),
        "v": weight(8, 16, 3, 3),
    }
    result = flow(parse(text, constants), IMAGES)
    assert result.plan.activations["t"].group == "t"  # u's range would let Relu's negative half through
    assert result.plan.activations["u"].group == "u"
    assert min(float(run["y"][:, :8].min()) for run in result.optimized) >= 0
    assert result.db() > STATIC_DB
