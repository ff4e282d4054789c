"""What is kept computes in float at run time, whatever the runtime would like to do between a DQ and a Q."""

from __future__ import annotations

import numpy as np
import pytest

from quantool.schema import Use
from tests.rewrite.flow import STATIC_DB, Result, flow, normal, normal_feeds, parse

FORMATS = pytest.mark.parametrize("form", ["qdq", "qoperator"])
FEEDS = normal_feeds(x=(2, 3, 12, 12))
CONSTANTS = {
    "w0": normal(8, 3, 3, 3, scale=0.2),
    "w1": normal(8, 8, 3, 3, seed=1, scale=0.12),
    "w2": normal(8, 8, 3, 3, seed=2, scale=0.12),
    "b": normal(8, seed=3, scale=0.2),
    "half": np.float32(0.5),
    "same": np.array([0, 8, -1, 6]),
}

BEFORE = [
    "t1 = Identity (t0)",
    "t1 = Relu (t0)",
    "t1 = MaxPool <kernel_shape = [2, 2]> (t0)",
    "t1 = Transpose <perm = [0, 1, 3, 2]> (t0)",
]


def three_convs(before: str, after: str, **options: object) -> Result:
    """Conv -> before -> Conv c1 -> after -> Conv, with c1 excluded."""
    text = f"""(float[N,3,12,12] x) => (float[N,8,H,W] y) {{
        [c0] t0 = Conv <pads = [1, 1, 1, 1]> (x, w0, b)
        {before}
        [c1] m0 = Conv <pads = [1, 1, 1, 1]> (t1, w1, b)
        {after}
        [c2] y = Conv <pads = [1, 1, 1, 1]> (m1, w2, b)
    }}"""
    return flow(parse(text, CONSTANTS), FEEDS, exclude=["c1"], **options)


def convs(result: Result) -> list[str]:
    return [node.op_type for node in result.graph.nodes if node.op_type in ("Conv", "FusedConv", "QLinearConv")]


@FORMATS
@pytest.mark.parametrize("after", ["m1 = Identity (m0)", "m1 = Relu (m0)", "m1 = MaxPool <kernel_shape = [2, 2]> (m0)"])
@pytest.mark.parametrize("before", BEFORE)
def test_excluded_conv_between_integer_ones_runs_in_float(before, after, form):
    result = three_convs(f"[before] {before}", f"[after] {after}", format=form)
    assert sorted(convs(result)) == ["Conv", "QLinearConv", "QLinearConv"]
    assert result.plan.barriers == (Use("c1", 0),)
    assert result.db() > STATIC_DB


@FORMATS
def test_excluded_conv_reads_its_float_weight_and_the_same_values_at_both_levels(form):
    result = three_convs("[before] t1 = Identity (t0)", "[after] m1 = Identity (m0)", format=form)
    np.testing.assert_array_equal(result.constant("w1"), CONSTANTS["w1"])
    for fast, plain in zip(result.optimized, result.plain, strict=True):
        # float rounding moves a value over a rounding border now and then: one step of the output's scale
        step = float(result.parameters.activations["y"].scale)
        assert np.abs(fast["y"] - plain["y"]).max() <= 3 * step


@FORMATS
@pytest.mark.parametrize(
    ("body", "kernel"),
    [
        ("[k] m = Add (t, u)", "QLinearAdd"),
        ("[k] m = Mul (t, u)", "QLinearMul"),
        ("[k] m = Sigmoid (t)", "QLinearSigmoid"),
        ("[k] m = LeakyRelu (t)", "QLinearLeakyRelu"),
        ("[k] m = AveragePool <kernel_shape = [2, 2]> (t)", "QLinearAveragePool"),
        ("[k] m = GlobalAveragePool (t)", "QLinearGlobalAveragePool"),
        ("[k] m = Softmax <axis = 1> (t)", "QLinearSoftmax"),
        ("[k] s = Add (t, u) [r] m = Relu (s)", "QLinearAdd"),
        ("[k] s = Add (t, u) [p] m = MaxPool <kernel_shape = [2, 2]> (s)", "QLinearAdd"),
        ("[p] s = MaxPool <kernel_shape = [2, 2]> (t) [k] m = Sigmoid (s)", "QLinearSigmoid"),
        ("[k] m = Concat <axis = 2> (t, u)", "QLinearConcat"),
        ("[k] m = Where (flag, t, u)", "QLinearWhere"),
    ],
    ids=lambda value: value if "QLinear" in str(value) else "",
)
def test_excluded_operator_between_integers_runs_in_float(body, kernel, form):
    text = f"""(float[N,3,12,12] x) => (float[N,8,H,W] y) {{
        [c0] t = Conv <pads = [1, 1, 1, 1]> (x, w0, b)
        [c1] u = Conv <pads = [1, 1, 1, 1]> (x, w0)
        {body}
        [c2] y = Conv <pads = [1, 1, 1, 1]> (m, w2, b)
    }}"""
    constants = CONSTANTS | {"flag": normal(1, 8, 12, 12) > 0}
    result = flow(parse(text, constants), FEEDS, exclude=["k"], format=form)
    assert "k" in {use.node for use in result.plan.barriers}
    assert kernel not in result.runs
    assert result.db() > STATIC_DB


@FORMATS
def test_product_of_two_integer_activations_stays_float(form):
    text = """(float[N,3,12,12] x) => (float[N,8,12,12] y) {
        [c0] t = Conv <pads = [1, 1, 1, 1]> (x, w0, b)
        [c1] u = Conv <pads = [1, 1, 1, 1]> (x, w0)
        [mm] y = MatMul (t, u)
    }"""
    result = flow(parse(text, CONSTANTS), FEEDS, format=form)
    assert result.plan.decisions["mm"].reason.code == "activation-matmul"
    assert result.plan.barriers == (Use("mm", 0),)
    assert (result.runs["QLinearConv"], result.runs["MatMul"]) == (2, 1)


def test_no_barrier_where_nothing_quantized_follows():
    text = """(float[N,3,12,12] x) => (float[N,8,12,12] y) {
        [c0] t = Conv <pads = [1, 1, 1, 1]> (x, w0, b)
        [s] y = Sigmoid (t)
    }"""
    result = flow(parse(text, CONSTANTS), FEEDS)
    assert result.plan.barriers == ()
    assert result.ops["Sum"] == 0


@FORMATS
def test_excluded_gemm_between_integer_ones_runs_in_float(form):
    text = """(float[N,16] x) => (float[N,16] y) {
        [g0] a = Gemm (x, w)
        [g1] b = Gemm (a, v)
        [g2] y = Gemm (b, w)
    }"""
    weights = {"w": normal(16, 16, scale=0.25), "v": normal(16, 16, seed=1, scale=0.25)}
    result = flow(parse(text, weights), normal_feeds(x=(40, 16)), exclude=["g1"], format=form)
    assert sum(result.runs[name] for name in ("QGemm", "QLinearMatMul", "MatMulIntegerToFloat")) == 2
    assert result.runs["Gemm"] == 1
    assert result.db() > STATIC_DB


@FORMATS
def test_excluded_conv_beside_a_quantized_one_reads_the_float_input_and_weight(form):
    text = """(float[N,3,12,12] x) => (float[N,8,12,12] y, float[N,8,12,12] z) {
        [c0] y = Conv <pads = [1, 1, 1, 1]> (x, w0, b)
        [c1] z = Conv <pads = [1, 1, 1, 1]> (x, w0, b)
    }"""
    result = flow(parse(text, CONSTANTS), FEEDS, exclude=["c1"], format=form)
    kept = next(node for node in result.proto.graph.node if node.name == "c1")
    assert list(kept.input) == ["x", "w0", "b"]
    assert sorted(convs(result)) == ["Conv", "QLinearConv"]
    assert result.db("z") > 100
    assert STATIC_DB < result.db("y") < 100
