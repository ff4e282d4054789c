"""What concerns the whole file: shared constants, names, outputs, types, and the same bytes every time."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

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
        pytest.param({"mode": "dynamic"}, DYNAMIC_DB, id="dynamic"),
        pytest.param({"mode": "weight-only"}, WEIGHTS_DB, id="weights"),
        pytest.param({"mode": "weight-only", "weights": "int4"}, FOUR_BITS_DB, id="weights-int4"),
    ],
)
FEEDS = normal_feeds(48, x=(20, 16))


def weight(rows: int, columns: int, seed: int = 1) -> AnyArray:
    return normal(rows, columns, seed=seed, scale=rows**-0.5)


def narrow(result: Result) -> list[str]:
    """The types of integer constants that are no parameters."""
    return [str(a.dtype) for n, a in result.constants().items() if a.size >= 256 and a.dtype != np.float32]


# --- shared constants -----------------------------------------------------------------------------------


@WAYS
def test_weight_of_two_products_is_stored_once(options, least):
    text = "(float[20,16] x) => (float[20,16] y) { [a] a = MatMul (x, w) [t] t = Tanh (a) [b] y = MatMul (t, w) }"
    result = flow(parse(text, {"w": weight(16, 16)}), FEEDS, **options)
    assert len(narrow(result)) == 1
    assert "w" not in result.constants()
    assert result.db() > least - 2  # two layers


@WAYS
def test_excluded_product_reads_the_float_weight(options, least):
    text = "(float[20,16] x) => (float[20,16] y, float[20,16] z) { [a] y = MatMul (x, w) [b] z = MatMul (x, w) }"
    result = flow(parse(text, {"w": weight(16, 16)}), FEEDS, **options, exclude=["b"])
    np.testing.assert_array_equal(result.constant("w"), weight(16, 16))
    assert result.db("z") > 120
    assert least < result.db("y") < 120


@pytest.mark.parametrize(
    ("options", "share", "least"),
    [
        ({}, 0.8, STATIC_DB),
        ({"format": "qoperator"}, 0.8, STATIC_DB - 3),  # the output is quantized as well
        ({"mode": "weight-only"}, 0.65, WEIGHTS_DB),
        ({"mode": "weight-only", "weights": "int4"}, 0.65, FOUR_BITS_DB),
    ],
    ids=["qdq", "qoperator", "weights", "weights-int4"],
)
@pytest.mark.parametrize("rows", [100, 1000])
def test_table_tied_to_the_output_head_leaves_no_float_copy(rows, options, share, least):
    text = f"""(int64[N,8] ids) => (float[N,8,{rows}] y) {{
        [embed] h = Gather (table, ids)
        [norm] n = Tanh (h)
        [t] head = Transpose <perm = [1, 0]> (table)
        [head] y = MatMul (n, head)
    }}"""
    table = normal(rows, 32)
    rng = np.random.default_rng(3)
    feeds = [{"ids": rng.integers(0, rows, (4, 8))} for _ in range(48)]
    proto = parse(text, {"table": table})
    result = flow(proto, feeds, **options)
    assert all(a.size < table.size for a in result.constants().values() if a.dtype == np.float32)
    assert len(result.data) < share * proto.ByteSize()
    assert result.db() > least


def test_small_tables_and_other_gathers_stay_as_they_are():
    text = "(int64[N] ids) => (float[N,4] y) { [g] y = Gather (table, ids) }"
    feeds = [{"ids": np.arange(5)}]
    result = flow(parse(text, {"table": normal(20, 4)}), feeds, "weight-only")
    assert result.plan.decisions["g"].reason is not None
    assert result.db() > 200


# --- names, inputs, outputs -----------------------------------------------------------------------------


@WAYS
def test_names_that_a_quantizer_would_invent_may_exist(options, least):
    text = """(float[20,16] x, float[20,16] x_quantized) => (float[20,16] y, float[20,16] x_scale) {
        [x_QuantizeLinear] w_dequantized = MatMul (x, w)
        [y_scale] x_scale = Add (w_dequantized, x_quantized)
        [x_quantized_DequantizeLinear] y = MatMul (x_scale, w_quantized)
    }"""
    constants = {"w": weight(16, 16), "w_quantized": weight(16, 16, 2)}
    result = flow(parse(text, constants), normal_feeds(48, x=(20, 16), x_quantized=(20, 16)), **options)
    assert result.db() > least - 2


@WAYS
def test_outputs_that_pass_through_stay_exact(options, least):
    text = """(float[20,16] x, float[3] spare, int64[2] ids) => (float[20,16] y, float[20,16] h, float[20,16] x2, float[16,16] w2, int64[2] k) {
        [t] h = Tanh (x)
        [m] y = MatMul (h, w)
        [i] x2 = Identity (x)
        [j] w2 = Identity (w)
        [n] k = Add (ids, ids)
    }"""  # noqa: E501  # one signature
    feeds = [f | {"spare": np.zeros(3, np.float32), "ids": np.array([3, 4])} for f in FEEDS]
    result = flow(parse(text, {"w": weight(16, 16)}), feeds, **options)
    for given, fast, plain in zip(result.given, result.optimized, result.plain, strict=True):
        for name in ("x2", "w2", "k"):
            np.testing.assert_array_equal(given[name], fast[name])
            np.testing.assert_array_equal(given[name], plain[name])
    assert result.db("h") > 120
    assert least < result.db("y") < 120
    assert result.plan.decisions["n"].reason.code == "not-float"


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_graph_output_that_is_read_inside_runs_as_integers_all_the_same(form):
    text = """(float[N,3,12,12] x) => (float[N,8,12,12] t, float[N,8,12,12] y, float[N,8,12,12] z) {
        [c0] t = Conv <pads = [1, 1, 1, 1]> (x, w)
        [c1] y = Conv (t, v)
        [h] z = Tanh (t)
    }"""
    constants = {"w": normal(8, 3, 3, 3, scale=0.2), "v": normal(8, 8, 1, 1, scale=0.35)}
    result = flow(parse(text, constants), normal_feeds(32, x=(2, 3, 12, 12)), format=form)
    assert result.runs["QLinearConv"] == 2
    assert result.db() > STATIC_DB


@pytest.mark.parametrize("options", [{}, {"format": "qoperator"}], ids=["qdq", "qoperator"])
def test_settings_tensors_are_never_quantized(options):
    text = """(float[N,3,8,8] x, float[4] sizes, float bound) => (float[N,8,H,W] y) {
        [c] t = Conv <pads = [1, 1, 1, 1]> (x, w)
        [ratio] scales = Mul (sizes, two)
        [up] u = Resize <mode = "nearest"> (t, , scales)
        [limit] top = Mul (bound, three)
        [clip] k = Clip (u, , top)
        [d] y = Conv (k, v)
    }"""
    constants = {"w": normal(8, 3, 3, 3, scale=0.2), "v": normal(8, 8, 1, 1, scale=0.35)}
    constants |= {"two": np.float32(2), "three": np.float32(3)}
    feeds = normal_feeds(32, x=(2, 3, 8, 8))
    for feed in feeds:
        feed |= {"sizes": np.array([0.5, 0.5, 1, 0.75], np.float32), "bound": np.float32(1)}
    result = flow(parse(text, constants), feeds, **options)
    assert not {"sizes", "scales", "bound", "top"} & set(result.plan.activations)
    assert result.db() > 25  # a Clip that nothing absorbs quantizes twice


@pytest.mark.parametrize("options", [{}, {"format": "qoperator"}], ids=["qdq", "qoperator"])
def test_image_bytes_are_converted_and_the_conv_is_quantized(options):
    text = """(uint8[N,3,8,8] x) => (float[N,8,8,8] y) {
        [cast] f = Cast <to = 1> (x)
        [sub] s = Sub (f, mean)
        [div] d = Div (s, deviation)
        [c] y = Conv <pads = [1, 1, 1, 1]> (d, w)
    }"""
    constants = {"w": normal(8, 3, 3, 3, scale=0.2), "mean": np.float32(127.5), "deviation": np.float32(58)}
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.integers(0, 256, (2, 3, 8, 8)).astype(np.uint8)} for _ in range(32)]
    result = flow(parse(text, constants), feeds, **options)
    assert result.runs["QLinearConv"] == 1
    assert result.db() > STATIC_DB


# --- types ----------------------------------------------------------------------------------------------

MLP = "(float[20,16] x) => (float[20,16] y) { [a] h = Gemm (x, w0, b) [r] k = Relu (h) [c] y = MatMul (k, w1) }"
MLP_CONSTANTS = {"w0": weight(16, 16), "w1": weight(16, 16, 2), "b": normal(16, scale=0.2)}


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"activations": "uint16"}, 32),
        ({"activations": "int16"}, 32),
        ({"activations": "int16", "weights": "int16"}, 45),
        ({"weights": "int4"}, 14),
        ({"weights": "uint4"}, 14),
        ({"granularity": "block:16"}, STATIC_DB),
    ],
    ids=str,
)
def test_types_without_integer_kernels_are_written_and_said_to_run_in_float(options, least):
    result = flow(parse(MLP, MLP_CONSTANTS), FEEDS, **options)
    assert result.proto.opset_import[0].version == 21
    assert [note.code for note in result.plan.notes] == ["runs-as-float"]
    assert {d.expected for d in result.plan.decisions.values() if d.quantized} == {"float"}
    assert result.db() > least


@pytest.mark.parametrize("options", [{}, {"format": "qoperator"}], ids=["qdq", "qoperator"])
@pytest.mark.parametrize("formula", ["onnx", "onnx-symmetric", "tf-min-first", "tf-min-combined"])
def test_every_formula_gives_a_right_model(formula, options):
    result = flow(parse(MLP, MLP_CONSTANTS), FEEDS, formula=formula, **options)
    assert result.db() > STATIC_DB - 6 * (formula == "onnx-symmetric") - 3 * bool(options)


def test_qdq_and_qoperator_agree():
    """Both quantize the same tensors of a chain of Convs, so that only ties at rounding may differ."""
    text = """(float[N,3,12,12] x) => (float[N,8,12,12] y) {
        [c0] t = Conv <pads = [1, 1, 1, 1]> (x, w)
        [r] r = Relu (t)
        [c1] y = Conv (r, v)
    }"""
    constants = {"w": normal(8, 3, 3, 3, scale=0.2), "v": normal(8, 8, 1, 1, scale=0.35)}
    feeds = normal_feeds(32, x=(2, 3, 12, 12))
    first = flow(parse(text, constants), feeds)
    second = flow(parse(text, constants), feeds, format="qoperator")
    for one, other in zip(first.optimized, second.optimized, strict=True):
        np.testing.assert_array_equal(one["y"], other["y"])


# --- the same bytes -------------------------------------------------------------------------------------

DETERMINISM = """
import sys, hashlib
from tests.rewrite.test_models_as_a_whole import MANY, MANY_CONSTANTS, FEEDS
from tests.rewrite.flow import flow, parse
for options in ({}, {"format": "qoperator"}, {"mode": "dynamic"}, {"mode": "weight-only"}, {"mode": "auto"}):
    print(hashlib.sha256(flow(parse(MANY, MANY_CONSTANTS), FEEDS, **options).data).hexdigest())
"""
MANY = """(float[20,16] x) => (float[20,16] y, float[20,16] z, float[20,16] a) {
    a = MatMul (x, w0) b = Gemm (x, w1, c) d = Gemm (a, w0, c) e = Relu (b) f = Gemm (e, w1, c)
    g = Add (d, f) h = MatMul (g, w0) y = Tanh (h) i = MatMul (x, w1) z = Add (i, a)
}"""
MANY_CONSTANTS = {"w0": weight(16, 16), "w1": weight(16, 16, 2), "c": normal(16, scale=0.2)}


def test_bytes_do_not_depend_on_the_hash_seed_or_the_run():
    root = Path(__file__).parents[2]
    runs = [
        subprocess.run(
            [sys.executable, "-c", DETERMINISM],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert runs[0].split()[0] == hashlib.sha256(flow(parse(MANY, MANY_CONSTANTS), FEEDS).data).hexdigest()
