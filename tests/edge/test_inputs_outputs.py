"""EDGE_CASES, inputs, outputs and shapes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.edge.driver import FORMS, STATIC_DB, check, run
from tests.edge.graphs import feeds, model, normal, weight

SAME = "<pads = [1, 1, 1, 1]>"
ALL_FORMS = pytest.mark.parametrize("form", FORMS)
STATIC = pytest.mark.parametrize("form", ["qdq", "qoperator"])
CALIBRATORS = pytest.mark.parametrize("calibrator", ["mse", "minmax", "percentile", "entropy", "moving-average"])
GEMMS = "(float[N,12] x) => (float[N,5] y) { a = Gemm (x, w, b)  r = Relu (a)  y = Gemm (r, v, c) }"
CONSTANTS = {
    "w": weight(12, 8),
    "b": normal(8, scale=0.3),
    "v": weight(8, 5, seed=1),
    "c": normal(5, seed=2, scale=0.3),
}


@ALL_FORMS
@pytest.mark.parametrize("ir", [3, 8])
@pytest.mark.parametrize("listed", [["w", "b", "v", "c"], ["w"], ["c", "w"]])
def test_initializers_among_the_inputs_are_constants(form: str, ir: int, listed: list[str]) -> None:
    proto = model(GEMMS, CONSTANTS, opset=9, ir=ir)
    for name in listed if ir > 3 else CONSTANTS:
        proto.graph.input.insert(0, onnx.helper.make_tensor_value_info(name, 1, CONSTANTS[name].shape))
    result = check(proto, feeds(x=(16, 12)), form, db=25)
    assert [value.name for value in result.proto.graph.input] == ["x"]
    assert result.decisions()["Gemm:a"] == result.decisions()["Gemm:y"] == "quantized"


@ALL_FORMS
@pytest.mark.parametrize("opset", [9, 17])
def test_pass_through_outputs_stay_exact(form: str, opset: int) -> None:
    text = """(float[N,12] x, int64[N] i) => (float[N,8] a, float[N,12] same, int64[N] i, float[3] k, float[N,5] y) {
        a = Gemm (x, w, b)  same = Identity (x)  r = Relu (a)  y = Gemm (r, v, c)
    }"""
    constants = {**CONSTANTS, "k": normal(3, seed=9)}
    samples = [{**feed, "i": np.arange(16)} for feed in feeds(x=(16, 12))]
    result = check(model(text, constants, opset=opset), samples, form, db=24)
    assert [result.db(name) for name in ("same", "i", "k")] == [np.inf] * 3
    assert result.decisions()["Gemm:y"] == "quantized"


@ALL_FORMS
@pytest.mark.parametrize(
    "body", ["y = MatMul (x, w)", "a = MatMul (x, w)  y = Relu (a)", "y = Gemm (x, w, b)  z = Tanh (y)"]
)
def test_a_quantized_output_keeps_its_name(form: str, body: str) -> None:
    more = ", float[N,8] z" if "z =" in body else ""
    proto = model(f"(float[N,12] x) => (float[N,8] y{more}) {{ {body} }}", {"w": CONSTANTS["w"], "b": CONSTANTS["b"]})
    check(proto, feeds(x=(16, 12)), form, db=STATIC_DB - 2)


@ALL_FORMS
def test_ids_masks_flags_and_unused_inputs_are_never_quantized(form: str) -> None:
    text = """(int64[N,6] ids, int64[N,6] mask, bool flag, float[3] unused, string[1] note) => (float[N,6,5] y) {
        e = Gather (table, ids)  m = Cast <to = 1> (mask)  k = Unsqueeze (m, last)  q = Mul (e, k)
        f = Cast <to = 1> (flag)  g = Add (q, f)  a = MatMul (g, w)  r = Relu (a)  y = MatMul (r, v)
    }"""
    constants = {"table": normal(40, 12), "last": np.array([-1]), "w": weight(12, 12), "v": weight(12, 5, seed=1)}
    rng = np.random.default_rng(0)
    samples = [
        {
            "ids": rng.integers(0, 40, (4, 6)),
            "mask": (np.arange(6) < 5).astype(np.int64) + np.zeros((4, 1), np.int64),
            "flag": np.array(i % 2 == 1),
            "unused": np.zeros(3, np.float32),
            "note": np.array(["x"]),
        }
        for i in range(32)
    ]
    result = check(model(text, constants), samples, form, db=22)
    assert {value.name for value in result.proto.graph.input} == set(samples[0])


@ALL_FORMS
@pytest.mark.parametrize("dtype", ["uint8", "int32", "float16"])
def test_an_image_input_of_another_type_stays(form: str, dtype: str) -> None:
    text = f"""({dtype}[N,3,10,10] x) => (float[N,5] y) {{
        f = Cast <to = 1> (x)  s = Sub (f, mean)  d = Div (s, deviation)  a = Conv {SAME} (d, w)  r = Relu (a)
        g = GlobalAveragePool (r)  k = Flatten (g)  y = MatMul (k, v)
    }}"""
    constants = {
        "mean": np.float32(127.5),
        "deviation": np.float32(58),
        "w": weight(8, 3, 3, 3),
        "v": weight(8, 5, seed=1),
    }
    rng = np.random.default_rng(0)
    samples = [{"x": rng.integers(0, 256, (4, 3, 10, 10)).astype(dtype)} for _ in range(20)]
    result = check(model(text, constants), samples, form, db=24)
    assert result.decisions()["Conv:a"] == ("mode" if form == "dynamic" else "quantized")


@ALL_FORMS
@pytest.mark.parametrize("kind", ["gemm", "conv"])
def test_a_symbolic_batch_stays_free(form: str, kind: str) -> None:
    if kind == "gemm":
        proto, shape = model(GEMMS, CONSTANTS), (12,)
    else:
        text = f"""(float[N,3,8,8] x) => (float[N,5] y) {{
            a = Conv {SAME} (x, w)  r = Relu (a)  g = GlobalAveragePool (r)  f = Flatten (g)  y = MatMul (f, v)
        }}"""
        proto, shape = model(text, {"w": weight(8, 3, 3, 3), "v": weight(8, 5, seed=1)}), (3, 8, 8)
    samples = feeds(40, x=(4, *shape))
    result = check(proto, samples, form, db=24)
    for rows in (0, 1, 4, 7):
        given = {"x": np.concatenate([feed["x"] for feed in samples[-2:]])[:rows]}
        (exact,), (found,) = run(proto, [given]), run(result.proto, [given])
        assert exact["y"].shape == found["y"].shape == (rows, 5)
        assert np.square(exact["y"] - found["y"]).sum() <= np.square(exact["y"]).sum() / 100


EMPTY = """(float[N,12] x, float[M,12] z) => (float[K,5] y) {
    a = MatMul (x, w)  b = MatMul (z, w)  j = Concat <axis = 0> (a, b)  r = Relu (j)  y = MatMul (r, v)
}"""


@STATIC
@CALIBRATORS
@pytest.mark.parametrize("always", [False, True])
def test_tensors_that_are_empty_in_some_or_all_samples(form: str, calibrator: str, always: bool) -> None:
    samples = feeds(x=(16, 12), z=(4, 12))
    for i, feed in enumerate(samples):
        if always or i % 3 == 0:
            feed["z"] = feed["z"][:0]
    proto = model(EMPTY, {"w": weight(12, 8), "v": weight(8, 5, seed=1)})
    check(proto, samples, form, calibrator=calibrator, db=15 if calibrator == "moving-average" else 24)


@STATIC
@CALIBRATORS
def test_samples_of_different_batch_and_length(form: str, calibrator: str) -> None:
    text = """(float[N,T,12] x) => (float[N,T,5] y) {
        a = MatMul (x, w)  p = Add (a, b)  r = Relu (p)  y = MatMul (r, v)
    }"""
    proto = model(text, {name: CONSTANTS[name] for name in "wbv"})
    samples = [feed for i in range(32) for feed in feeds(1, seed=i, x=(1 + i % 4, 3 + i % 7, 12))]
    check(proto, samples, form, calibrator=calibrator, db=15 if calibrator == "moving-average" else 20)


@STATIC
@CALIBRATORS
@pytest.mark.parametrize("shape", [(64, 12), (1, 12)])
def test_a_single_sample_is_enough(form: str, calibrator: str, shape: tuple[int, ...]) -> None:
    unseen = feeds(4, seed=3, x=(16, 12))
    result = check(model(GEMMS, CONSTANTS), feeds(1, x=shape), form, calibrator=calibrator, held_out=unseen)
    assert result.report.data.held_out is False
    assert result.db() >= (18 if shape[0] > 1 else 0)


@ALL_FORMS
@pytest.mark.parametrize(
    ("body", "opset"),
    [
        ('s = Resize <mode = "nearest"> (a, "", scales)', 13),
        ('s = Resize <mode = "linear"> (a, "", "", sizes)', 13),
        ('s = Resize <mode = "nearest"> (a, roi, scales)', 11),
        ('s = Resize <mode = "linear"> (a, scales)', 10),
        ('s = Upsample <mode = "nearest"> (a, scales)', 9),
        ('s = Clip (a, "", high)', 13),
        ("s = Clip (a)", 13),
        ('s = Conv (a, k, "")', 13),
        ('s = Pad (a, pads, "")', 13),
        ('s = Slice (a, start, stop, "", steps)', 13),
        ("s = MaxPool <kernel_shape = [2, 2], ceil_mode = 1> (a)", 11),
        ("s = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1> (a)", 11),
        ("s, i = MaxPool <kernel_shape = [2, 2]> (a)", 11),
        ("s, mask = Dropout (a)", 12),
        ("s = ReduceMean <keepdims = 1> (a)", 13),
    ],
)
def test_optional_inputs_may_be_absent(form: str, body: str, opset: int) -> None:
    text = f"""(float[2,3,8,8] x) => (float[] y) {{
        a = Conv {SAME} (x, w, b)  {body}  c = Conv {SAME} (s, u)
        g = GlobalMaxPool (c)  f = Flatten (g)  y = MatMul (f, v)
    }}"""
    constants = {
        "w": weight(4, 3, 3, 3),
        "b": normal(4, scale=0.3),
        "u": weight(6, 4, 3, 3, seed=1),
        "v": weight(6, 5, seed=2),
        "k": weight(4, 4, 1, 1, seed=3),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "sizes": np.array([2, 4, 12, 16]),
        "roi": np.zeros(0, np.float32),
        "high": np.float32(1),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 0]),
        "start": np.array([0, 0, 0, 1]),
        "stop": np.array([9, 9, 8, 7]),
        "steps": np.array([1, 1, 2, 1]),
    }
    if "ReduceMean" in body:
        constants["u"] = weight(6, 1, 3, 3, seed=1)
    kept = {name: a for name, a in constants.items() if f"{name})" in text or f"{name}," in text}
    result = check(model(text, kept, opset=opset), feeds(20, x=(2, 3, 8, 8)), form, db=22)
    assert form == "dynamic" or result.decisions()["Conv:a"] == "quantized"
