"""What stands between two Convs: data movers, followers, rectifiers, and what runs around them."""

from __future__ import annotations

import numpy as np
import pytest

from quantool.schema import AnyArray
from tests.rewrite.flow import STATIC_DB, Result, flow, normal, normal_feeds, parse

FORMATS = pytest.mark.parametrize("form", ["qdq", "qoperator"])
FEEDS = normal_feeds(32, x=(2, 3, 12, 12))


def weight(out: int, channels: int, *kernel: int, seed: int = 2) -> AnyArray:
    return normal(out, channels, *kernel, seed=seed, scale=float(channels * np.prod(kernel)) ** -0.5)


def ints(*values: int) -> AnyArray:
    return np.array(values, np.int64)


def between(body: str, constants: dict[str, AnyArray] | None = None, *, opset: int = 17, **options: object) -> Result:
    """Conv c -> body (t to m) -> Conv d."""
    text = f"""(float[N,3,12,12] x) => (float[N,8,H,W] y) {{
        [c] t = Conv <pads = [1, 1, 1, 1]> (x, w, b)
        {body}
        [d] y = Conv (m, v)
    }}"""
    own = {"w": weight(8, 3, 3, 3, seed=1), "b": normal(8, seed=4, scale=0.2), "v": weight(8, 8, 1, 1)}
    return flow(parse(text, own | (constants or {}), opset=opset), FEEDS, **options)


MOVERS = {
    "MaxPool": ("m = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (t)", {}),
    "Transpose": ("m = Transpose <perm = [0, 1, 3, 2]> (t)", {}),
    "Reshape": ("m = Reshape (t, s)", {"s": ints(0, 8, 6, 24)}),
    "Slice": ("m = Slice (t, s, e, a)", {"s": ints(2), "e": ints(9), "a": ints(3)}),
    "Gather": ("m = Gather <axis = 2> (t, i)", {"i": ints(2, 4, 5)}),
    "Flatten": ("f = Flatten (t) [n] m = Reshape (f, s)", {"s": ints(2, 8, 12, 12)}),
    "Unsqueeze": ("u = Unsqueeze (t, a) [n] m = Squeeze (u, a)", {"a": ints(4)}),
    "Split": ("m, r = Split <axis = 2> (t, s)", {"s": ints(6, 6)}),
    "Expand": ("m = Expand (t, s)", {"s": ints(2, 8, 12, 12)}),
    "Tile": ("m = Tile (t, s)", {"s": ints(1, 1, 2, 1)}),
    "DepthToSpace": ("m = DepthToSpace <blocksize = 2> (t)", {"v": weight(8, 2, 1, 1)}),
    "ReduceMax": ("m = ReduceMax <axes = [2], keepdims = 1> (t)", {}),
    "ReduceMin": ("m = ReduceMin <axes = [3], keepdims = 1> (t)", {}),
    "Resize": ('m = Resize <mode = "nearest"> (t, , f)', {"f": np.array([1, 1, 2, 2], np.float32)}),
}


@FORMATS
@pytest.mark.parametrize("name", MOVERS)
def test_data_movers_share_parameters_and_move_integers(name, form):
    body, constants = MOVERS[name]
    result = between(f"[n0] {body}", constants, format=form)
    group = {result.plan.activations[t].group for t in ("t", "m")}
    assert group == {"t"}
    assert result.parameters.activations["m"] is not None
    np.testing.assert_array_equal(result.parameters.activations["m"].scale, result.parameters.activations["t"].scale)
    assert result.runs["QLinearConv"] == 2
    assert (result.runs["QuantizeLinear"], result.runs["Conv"]) == (1, 0)  # of the input alone
    assert result.db() > STATIC_DB


FOLLOWERS = {
    "Add": ("m = Add (t, c)", {"c": normal(1, 1, 12, 12)}, "QLinearAdd"),
    "Mul by a scalar": ("a = Add (t, t) [n] m = Mul (a, c)", {"c": np.float32(0.5)}, "QLinearMul"),
    "AveragePool": (
        "m = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1> (t)",
        {},
        "QLinearAveragePool",
    ),
    "AveragePool past the edge": (
        "m = AveragePool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (t)",
        {},
        "QLinearAveragePool",
    ),
    "GlobalAveragePool": ("m = GlobalAveragePool (t)", {}, "QLinearGlobalAveragePool"),
    "LeakyRelu": ("m = LeakyRelu <alpha = 0.2> (t)", {}, "QLinearLeakyRelu"),
    "Sigmoid": ("m = Sigmoid (t)", {}, "QLinearSigmoid"),
    "SiLU": ("s = Sigmoid (t) [n] m = Mul (t, s)", {}, "QLinearMul"),
    "Where with a constant": (
        "m = Where (f, t, c)",
        {"c": np.float32(0.25), "f": normal(1, 8, 12, 12) > 0},
        "QLinearWhere",
    ),
    "Concat of one": ("m = Concat <axis = 1> (t)", {}, "QLinearConcat"),
    "Concat of the same": ("m = Concat <axis = 1> (t, t)", {"v": weight(8, 16, 1, 1)}, "QLinearConcat"),
    "Concat with a constant": (
        "m = Concat <axis = 1> (t, c)",
        {"v": weight(8, 16, 1, 1), "c": normal(2, 8, 12, 12)},
        "QLinearConcat",
    ),
}


@FORMATS
@pytest.mark.parametrize("name", FOLLOWERS)
def test_followers_between_convs_run_as_integers(name, form):
    body, constants, kernel = FOLLOWERS[name]
    result = between(f"[n0] {body}", constants, format=form)
    assert result.runs[kernel] == 1
    assert (result.runs["QuantizeLinear"], result.runs["QLinearConv"]) == (1, 2)
    assert result.db() > STATIC_DB


FLOATS = {
    "mask": ("m = Add (t, c)", {"c": np.full((1, 1, 12, 12), -1e9, np.float32)}),
    "Tanh": ("m = Tanh (t)", {}),
    "linear Resize": ('m = Resize <mode = "linear"> (t, , f)', {"f": np.array([1, 1, 2, 2], np.float32)}),
    "MaxPool with indices": ("m, i = MaxPool <kernel_shape = [2, 2]> (t)", {}),
    "Pad with 9": ("m = Pad (t, p, z)", {"p": ints(0, 0, 1, 1, 0, 0, 1, 1), "z": np.float32(9)}),
    "dilated AveragePool": ("m = AveragePool <kernel_shape = [3, 3], dilations = [2, 2]> (t)", {}),
    "HardSwish": ("m = HardSwish (t)", {}),
    "Softmax": ("m = Softmax <axis = 1> (t)", {}),
}


@FORMATS
@pytest.mark.parametrize("name", FLOATS)
def test_what_has_no_integer_form_stays_float_between_integer_convs(name, form):
    body, constants = FLOATS[name]
    result = between(f"[n0] {body}", constants, opset=19, format=form)
    assert not result.plan.decisions["n0"].quantized
    assert result.plan.activations["m"].group == "m"
    assert result.runs["QLinearConv"] == 2
    assert result.db() > STATIC_DB


@FORMATS
@pytest.mark.parametrize(
    ("attributes", "pads"),
    [
        ('<mode = "reflect">', (0, 0, 1, 1, 0, 0, 1, 1)),
        ('<mode = "edge">', (0, 0, 1, 1, 0, 0, 1, 1)),
        ("", (0, 0, -1, 1, 0, 0, 1, -2)),
    ],
    ids=["reflect", "edge", "negative"],
)
def test_pad_that_nothing_folds_keeps_the_scale_of_its_input(attributes, pads, form):
    result = between(f"[n] m = Pad {attributes} (t, p)", {"p": ints(*pads)}, format=form)
    assert result.plan.decisions["n"].reason.code == "shares-parameters"
    assert result.plan.activations["m"].group == "t"
    assert (result.runs["QLinearConv"], result.runs["Pad"]) == (2, 1)
    assert result.db() > STATIC_DB


@FORMATS
@pytest.mark.parametrize("value", ["", ", z"])
def test_pad_with_zeros_vanishes(value, form):
    result = between(f"[n] m = Pad (t, p{value})", {"p": ints(0, 0, 1, 1, 0, 0, 1, 1), "z": np.float32(0)}, format=form)
    assert (result.runs["QLinearConv"], result.runs["Pad"], result.runs["QuantizeLinear"]) == (2, 0, 1)
    assert result.db() > STATIC_DB


# --- rectifiers -----------------------------------------------------------------------------------------

CLIPS = pytest.mark.parametrize(
    ("low", "high", "absorbed"),
    [(0, 6, True), (0, 0.5, True), (0, None, True), (1, 5, False), (-6, -1, False), (-1, 1, False), (None, 1, False)],
)


@FORMATS
@CLIPS
def test_clip_is_absorbed_only_where_saturation_does_the_same(low, high, absorbed, form):
    bounds = {name: np.float32(value) for name, value in (("lo", low), ("hi", high)) if value is not None}
    arguments = ", ".join(["t", "lo" if low is not None else "", *(["hi"] if high is not None else [])])
    result = between(f"[n] m = Clip ({arguments})", bounds, format=form)
    assert (result.plan.decisions["n"].into == "c") == absorbed
    assert ("t" in result.plan.activations) != absorbed
    assert result.runs["QLinearConv"] == 2
    assert result.db() > STATIC_DB - 1  # the narrowest are quantized twice


@FORMATS
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activations": "int8"},
        {"formula": "onnx-symmetric"},
        {"formula": "tf-scaled", "activations": "int8"},
    ],
    ids=str,
)
def test_no_negative_value_leaks_through_a_relu(options, form):
    text = """(float[N,3,12,12] x) => (float[N,8,12,12] y) {
        [c] t = Conv <pads = [1, 1, 1, 1]> (x, w, b)
        [r] y = Relu (t)
    }"""
    constants = {"w": weight(8, 3, 3, 3), "b": normal(8, seed=4, scale=0.2)}
    result = flow(parse(text, constants), FEEDS, strict=not options, format=form, **options)
    symmetric = "formula" in options
    assert (result.plan.decisions["r"].into == "c") != symmetric
    for runs in (result.optimized, result.plain):
        assert min(float(run["y"].min()) for run in runs) == 0
    assert result.db() > STATIC_DB


@FORMATS
def test_relu_of_a_shared_tensor_is_no_part_of_the_conv(form):
    result = between("[r] r = Relu (t) [n] m = Add (r, t)", format=form)
    assert not result.plan.decisions["r"].quantized
    assert result.plan.activations["t"].bounds is None
    assert result.db() > STATIC_DB


@FORMATS
def test_relu_of_a_graph_output_is_no_part_of_the_conv(form):
    text = """(float[N,3,12,12] x) => (float[N,8,12,12] t, float[N,8,12,12] y) {
        [c] t = Conv <pads = [1, 1, 1, 1]> (x, w)
        [r] y = Relu (t)
    }"""
    result = flow(parse(text, {"w": weight(8, 3, 3, 3)}), FEEDS, format=form)
    assert min(float(run["t"].min()) for run in result.plain) < 0
    assert result.db() > STATIC_DB


@FORMATS
def test_clip_of_a_sigmoid_limits_its_fixed_range(form):
    result = between(
        "[s] s = Sigmoid (t) [n] m = Clip (s, lo, hi)", {"lo": np.float32(0), "hi": np.float32(0.5)}, format=form
    )
    assert result.plan.decisions["n"].into == "s"
    solved = result.parameters.activations["m"]
    assert np.float32(255) * solved.scale <= np.float32(0.5)
    assert result.runs["QLinearSigmoid"] == 1
    assert result.db() > STATIC_DB
