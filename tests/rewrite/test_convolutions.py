"""Convolutions of every rank and grouping, and biases that no float32 scale would hold."""

from __future__ import annotations

import numpy as np
import pytest

from quantool.schema import AnyArray
from tests.rewrite.flow import (
    DYNAMIC_DB,
    FOUR_BITS_DB,
    STATIC_DB,
    WEIGHTS_DB,
    Result,
    flow,
    normal,
    normal_feeds,
    parse,
)

WAYS = pytest.mark.parametrize(
    ("options", "least"),
    [
        pytest.param({}, STATIC_DB, id="qdq"),
        pytest.param({"format": "qoperator"}, STATIC_DB, id="qoperator"),
        pytest.param({"granularity": "tensor"}, STATIC_DB, id="qdq-tensor"),
        pytest.param({"weights": "uint8"}, STATIC_DB, id="qdq-uint8"),
        pytest.param({"weights": "uint8", "format": "qoperator"}, STATIC_DB, id="qoperator-uint8"),
        pytest.param({"mode": "dynamic", "include_op": ["Conv"]}, DYNAMIC_DB, id="dynamic"),
        pytest.param({"mode": "dynamic", "include_op": ["Conv"], "weights": "uint8"}, DYNAMIC_DB, id="dynamic-uint8"),
        pytest.param({"mode": "weight-only"}, WEIGHTS_DB, id="weights"),
        pytest.param({"mode": "weight-only", "weights": "int4"}, FOUR_BITS_DB, id="weights-int4"),
    ],
)
BIAS = normal(8, seed=4)
#: 300-fold from the first channel to the last
SPREAD = np.geomspace(1 / 17.5, 17.5, 8).astype(np.float32).reshape(8, 1, 1, 1)


def weight(*shape: int, seed: int = 1) -> AnyArray:
    return normal(*shape, seed=seed, scale=float(np.prod(shape[1:])) ** -0.5)


CONVS = {
    "1-D": ("y = Conv <pads = [1, 1]> (x, w, b)", (2, 4, 32), weight(8, 4, 3)),
    "2-D": ("y = Conv <strides = [2, 1], dilations = [1, 2]> (x, w, b)", (2, 3, 12, 12), weight(8, 3, 3, 3)),
    "3-D": ("y = Conv <pads = [1, 1, 1, 1, 1, 1]> (x, w, b)", (2, 3, 6, 6, 6), weight(8, 3, 3, 3, 3)),
    "groups": ("y = Conv <group = 2> (x, w, b)", (2, 8, 12, 12), weight(8, 4, 3, 3)),
    "depthwise": ("y = Conv <group = 8> (x, w, b)", (2, 8, 12, 12), weight(8, 1, 3, 3)),
    "empty bias": ('y = Conv <auto_pad = "SAME_UPPER"> (x, w, )', (2, 3, 12, 12), weight(8, 3, 3, 3)),
    "no bias": ("y = Conv (x, w)", (2, 3, 12, 12), weight(8, 3, 1, 1)),
}


@WAYS
@pytest.mark.parametrize("name", CONVS)
def test_every_convolution_is_quantized_and_right(name, options, least):
    node, shape, w = CONVS[name]
    dims = ",".join(["N", *map(str, shape[1:])])
    result = flow(
        parse(f"(float[{dims}] x) => (float y) {{ [n] {node} }}", {"w": w, "b": BIAS}), normal_feeds(x=shape), **options
    )
    assert result.plan.decisions["n"].quantized
    assert "w" not in result.constants()
    assert result.db() > least


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"mode": "dynamic", "include_op": ["Conv"]}, DYNAMIC_DB),
        ({"mode": "dynamic", "include_op": ["Conv"], "weights": "uint8"}, DYNAMIC_DB),
        ({"mode": "weight-only"}, WEIGHTS_DB),
        ({"mode": "weight-only", "weights": "uint4"}, FOUR_BITS_DB),
    ],
    ids=["dynamic", "dynamic-uint8", "weights", "weights-uint4"],
)
def test_depthwise_channels_of_unequal_weights_are_scaled_apart(options, least):
    text = "(float[N,8,12,12] x) => (float[N,8,10,10] y) { y = Conv <group = 8> (x, w) }"
    proto = parse(text, {"w": weight(8, 1, 3, 3) * SPREAD})
    result = flow(proto, normal_feeds(x=(2, 8, 12, 12)), **options)
    assert min(channel_db(result, channel) for channel in range(8)) > least


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_depthwise_channels_that_a_batch_norm_evens_out_are_accurate(form):
    text = """(float[N,8,12,12] x) => (float y) {
        t = Conv <group = 8> (x, w)
        y = BatchNormalization (t, scale, b, mean, var)
    }"""
    constants = {"w": weight(8, 1, 3, 3) * SPREAD, "scale": np.ones(8, np.float32), "b": BIAS}
    constants |= {"mean": np.zeros(8, np.float32), "var": (SPREAD**2).reshape(8)}
    result = flow(parse(text, constants), normal_feeds(x=(2, 8, 12, 12)), format=form)
    assert result.runs["QLinearConv"] == 1
    assert result.db() > STATIC_DB


def channel_db(result: Result, channel: int, name: str = "y") -> float:
    exact = np.concatenate([run[name][:, channel].ravel() for run in result.given])
    found = [
        np.concatenate([run[name][:, channel].ravel() for run in runs]) for runs in (result.optimized, result.plain)
    ]
    return min(float(10 * np.log10((exact**2).sum() / ((exact - other) ** 2).sum())) for other in found)


@WAYS
@pytest.mark.parametrize("group", [1, 2, 4])
def test_conv_transpose_is_kept_or_right(group, options, least):
    text = f"""(float[N,4,6,6] x) => (float y) {{
        [c] t = Conv (x, v)
        [n] y = ConvTranspose <group = {group}, strides = [2, 2], output_padding = [1, 1]> (t, w, b)
    }}"""
    constants = {"v": weight(4, 4, 1, 1), "w": weight(4, 8 // group, 3, 3), "b": BIAS}
    result = flow(parse(text, constants), normal_feeds(x=(2, 4, 6, 6)), **options)
    decision = result.plan.decisions["n"]
    assert decision.quantized == (options.get("mode") == "weight-only")
    if not decision.quantized:
        assert decision.reason.code in ("no-integer-kernel", "not-included")
    assert result.db() > least


@WAYS
def test_conv_whose_weight_is_a_graph_input_is_kept(options, least):
    text = """(float[N,3,12,12] x, float[8,3,3,3] w) => (float y) {
        [n] t = Conv (x, w, b)
        [c] y = Conv (t, v)
    }"""
    feeds = normal_feeds(x=(2, 3, 12, 12), w=(8, 3, 3, 3))
    result = flow(parse(text, {"b": BIAS, "v": weight(8, 8, 1, 1)}), feeds, **options)
    assert result.plan.decisions["n"].reason.code == "weight-not-constant"
    assert result.plan.decisions["c"].quantized
    assert result.db() > least


# --- biases ---------------------------------------------------------------------------------------------


def conv_of(w: AnyArray, b: AnyArray, **options: object) -> Result:
    text = "(float[N,3,12,12] x) => (float[N,8,12,12] y) { y = Conv <pads = [1, 1, 1, 1]> (x, w, b) }"
    return flow(parse(text, {"w": w, "b": b}), normal_feeds(x=(2, 3, 12, 12)), **options)


STATIC_WAYS = pytest.mark.parametrize(
    "options",
    [{}, {"format": "qoperator"}, {"granularity": "tensor"}, {"weights": "uint8"}, {"target": "cpu-x64-avx2"}],
    ids=lambda options: "-".join(map(str, options.values())) or "qdq",
)


@STATIC_WAYS
def test_channel_of_tiny_weights_with_a_large_bias_leaves_the_others_intact(options):
    w, b = weight(8, 3, 3, 3), BIAS.copy()
    w[2], b[2] = w[2] * np.float32(1e-9), 5
    result = conv_of(w, b, **options)
    step = float(result.parameters.activations["y"].scale)
    tiny = result.parameters.weights[next(iter(result.parameters.weights))]
    assert np.abs(tiny.bias).max() <= 2**30
    for runs in (result.optimized, result.plain):
        for exact, found in zip(result.given, runs, strict=True):
            assert np.abs(found["y"][:, 2] - exact["y"][:, 2]).max() <= step  # bias rounding, then output rounding
    assert result.db() > 40  # the large bias raises the signal
    assert min(channel_db(result, c) for c in (0, 1, 3, 4, 5, 6, 7)) > 25  # steps are those of the wide output


@STATIC_WAYS
@pytest.mark.parametrize("whole", [False, True], ids=["channel", "tensor"])
def test_zero_weights_keep_their_bias(whole, options):
    w, b = weight(8, 3, 3, 3), np.linspace(-1, 1, 8).astype(np.float32)
    w[:] = 0 if whole else w
    w[5] = 0
    result = conv_of(w, b, **options)
    solved = next(iter(result.parameters.weights.values()))
    assert np.all(np.isfinite(solved.params.scale))
    assert np.all(solved.params.scale > 0)
    assert np.unique(solved.params.zero_point).size == 1
    step = float(result.parameters.activations["y"].scale)
    for runs in (result.optimized, result.plain):
        assert all(np.abs(run["y"][:, 5] - b[5]).max() <= step for run in runs)


def test_weights_that_reach_exactly_qmax_keep_their_scale_of_one():
    w = np.clip(np.rint(normal(8, 3, 3, 3) * 40), -127, 127)
    w[:, 0, 0, 0] = 127
    result = conv_of(w, BIAS)
    np.testing.assert_array_equal(next(iter(result.parameters.weights.values())).params.scale, np.ones(8, np.float32))
    assert result.db() > STATIC_DB


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("named", [True, False])
def test_two_convs_that_share_a_bias_get_codes_of_their_own(named, form):
    names = ("[c0]", "[c1]") if named else ("", "")
    text = f"""(float[N,3,12,12] x) => (float y, float z) {{
        {names[0]} y = Conv (x, w, b)
        {names[1]} z = Conv (x, v, b)
    }}"""
    constants = {"w": weight(8, 3, 3, 3), "v": weight(8, 3, 3, 3, seed=2) * 100, "b": BIAS}
    result = flow(parse(text, constants), normal_feeds(x=(2, 3, 12, 12)), format=form)
    codes = [p.bias for p in result.parameters.weights.values()]
    assert not np.array_equal(codes[0], codes[1])
    assert sum(array.dtype == np.int32 for array in result.constants().values()) == 2
    assert result.runs["QLinearConv"] == 2
    assert min(result.db("y"), result.db("z")) > STATIC_DB


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_two_convs_that_share_everything_store_it_once(form):
    text = """(float[N,3,12,12] x) => (float y, float z) {
        a = Conv (x, w, b)
        y = Relu (a)
        z = Conv (x, w, b)
    }"""
    result = flow(parse(text, {"w": weight(8, 3, 3, 3), "b": BIAS}), normal_feeds(x=(2, 3, 12, 12)), format=form)
    kinds = [str(array.dtype) for array in result.constants().values() if array.size > 1]
    assert sorted(k for k in kinds if k != "float32") == ["int32", "int8", "int8"]  # bias, weight, zero points
    assert result.runs["QLinearConv"] == 2


def test_int8_convinteger_bias_works_at_the_least_opset():
    text = "(float[N,3,12,12] x) => (float y) { y = Conv (x, w, b) }"
    proto = parse(text, {"w": weight(8, 3, 3, 3), "b": BIAS}, opset=9)
    options = {"mode": "dynamic", "include_op": ["Conv"], "granularity": "tensor"}
    result = flow(proto, normal_feeds(x=(2, 3, 12, 12)), **options)
    assert result.proto.opset_import[0].version == 11
    assert result.runs["ConvInteger"] == 1
    assert result.db() > DYNAMIC_DB
