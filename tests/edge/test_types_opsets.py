"""EDGE_CASES, types and opsets."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import quantool
from tests.edge.driver import FORMS, FOUR_BITS_DB, check, run
from tests.edge.graphs import Constants, feeds, model, normal, weight

SAME = "<pads = [1, 1, 1, 1]>"
ALL_FORMS = pytest.mark.parametrize("form", FORMS)


def cast(constants: Constants, dtype: str) -> Constants:
    return {name: a.astype(dtype) if a.dtype == np.float32 else a for name, a in constants.items()}


def cast_feeds(samples: list, dtype: str) -> list:
    return [{name: a.astype(dtype) for name, a in feed.items()} for feed in samples]


MODELS = {
    "gemm": (
        "(float[N,24] x) => (float[N,5] y) { a = Gemm (x, w, b)  r = Relu (a)  y = MatMul (r, v) }",
        {"w": weight(24, 12), "b": normal(12), "v": weight(12, 5, seed=1)},
        feeds(x=(8, 24)),
    ),
    "conv": (
        f"""(float[N,3,8,8] x) => (float[N,5] y) {{
            a = Conv {SAME} (x, w, b)  r = Relu (a)  m = MaxPool <kernel_shape = [2, 2]> (r)
            c = Conv {SAME} (m, u)  g = GlobalAveragePool (c)  f = Flatten (g)  y = MatMul (f, v)
        }}""",
        {"w": weight(6, 3, 3, 3), "b": normal(6), "u": weight(6, 6, 3, 3, seed=2), "v": weight(6, 5, seed=1)},
        feeds(x=(4, 3, 8, 8)),
    ),
    "norm": (
        """(float[N,6,16] x) => (float[N,6,5] y, float[N,6,16] h) {
            h = MatMul (x, w)  m = ReduceMean <axes = [-1]> (h)  d = Sub (h, m)  s = Mul (d, d)
            q = ReduceMean <axes = [-1]> (s)  e = Add (q, eps)  k = Sqrt (e)  n = Div (d, k)
            z = Softmax <axis = -1> (n)  j = Add (n, z)  y = MatMul (j, v)
        }""",
        {"w": weight(16, 16), "eps": np.float32(1e-3), "v": weight(16, 5, seed=1)},
        feeds(x=(4, 6, 16)),
    ),
}


# ONNX Runtime has no Conv of float64.
@ALL_FORMS
@pytest.mark.parametrize("opset", [11, 13, 17, 19, 21])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("gemm", "float16"), ("conv", "float16"), ("norm", "float16"), ("gemm", "float64"), ("norm", "float64")],
)
def test_other_float_types_keep_their_signature(form: str, dtype: str, opset: int, name: str) -> None:
    text, constants, samples = MODELS[name]
    if opset >= 18:
        text = text.replace("ReduceMean <axes = [-1]> (h)", "ReduceMean (h, last)")
        text = text.replace("ReduceMean <axes = [-1]> (s)", "ReduceMean (s, last)")
    text = text.replace("float[", {"float16": "float16[", "float64": "double["}[dtype])
    extra = {"last": np.array([-1])} if name == "norm" and opset >= 18 else {}
    proto = model(text, {**cast(constants, dtype), **extra}, opset=opset)
    result = check(proto, cast_feeds(samples, dtype), form, db=18 if form == "qoperator" else 24)
    assert {o["y"].dtype for o in result.optimized} == {np.dtype(dtype)}
    assert list(result.decisions().values()).count("quantized") >= 1


def test_half_precision_constants_are_not_stored_wider_than_needed() -> None:
    text, constants, samples = MODELS["gemm"]
    proto = model(text.replace("float[", "float16["), cast(constants, "float16"))
    result = check(proto, cast_feeds(samples, "float16"), "weight-only")
    kinds = {a.dtype.name for a in result.constants().values()}
    assert kinds == {"uint8", "float16"}
    assert result.ops["MatMulNBits"] == 2
    assert result.ops["Cast"] == 0
    assert result.db() > 30


@ALL_FORMS
@pytest.mark.parametrize("opset", range(7, 13))
def test_old_opsets_are_raised_for_scales_of_each_channel(form: str, opset: int) -> None:
    text = f"""(float[N,3,8,8] x) => (float[N,5] y) {{
        a = Conv {SAME} (x, w, b)  r = Relu (a)  c = Conv {SAME} (r, u)
        g = GlobalAveragePool (c)  f = Flatten (g)  y = Gemm (f, v, d)
    }}"""
    constants = {
        "w": weight(6, 3, 3, 3) * np.geomspace(1, 30, 6).astype(np.float32).reshape(-1, 1, 1, 1),
        "b": normal(6),
        "u": weight(6, 6, 3, 3, seed=2),
        "v": weight(6, 5, seed=1),
        "d": normal(5, seed=5),
    }
    result = check(model(text, constants, opset=opset, ir=4), feeds(x=(4, 3, 8, 8)), form, db=24)
    found = result.decisions()
    assert form == "dynamic" or found["Conv:a"] == found["Conv:c"] == "quantized"
    assert found["Gemm:y"] == "quantized"
    assert any(a.shape == (6,) and a.dtype == np.float32 for a in result.constants().values())


@ALL_FORMS
@pytest.mark.parametrize("opset", [9, 11, 12])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", ["", "<axis = 1>", "<axis = 2>", "<axis = -1>"])
def test_an_old_softmax_keeps_its_flattening(form: str, opset: int, op: str, axis: str) -> None:
    text = f"""(float[N,3,4,4] x) => (float[N,3,4,4] s, float[N,2,4,4] y) {{
        s = {op} {axis} (x)  c = Conv <pads = [1, 1, 1, 1]> (x, w)  y = Conv <pads = [1, 1, 1, 1]> (c, v)
    }}"""
    if form == "dynamic":
        text = text.replace("float[N,2,4,4] y", "float[N,2] y").replace(
            "y = Conv <pads = [1, 1, 1, 1]> (c, v)",
            """
            g = GlobalAveragePool (c)  f = Flatten (g)  y = MatMul (f, u)""",
        )
    constants = {"w": weight(4, 3, 3, 3), "v": weight(2, 4, 3, 3, seed=1), "u": weight(4, 2, seed=3)}
    result = check(model(text, constants, opset=opset), feeds(20, x=(4, 3, 4, 4)), form, db=22)
    assert result.db("s") > 100


@pytest.mark.parametrize("opset", [11, 12, 13, 17, 18, 20, 21, 23])
def test_int4_on_every_opset_with_operators_whose_form_changed(opset: int) -> None:
    new = opset >= 18
    axes = "(h, last)" if new else "<axes = [-1]> (h)"
    pieces = ", pieces" if opset >= 13 else ""
    split = "" if opset >= 13 else ", split = [8, 24]"
    sums = "(p, last)" if opset >= 13 else "<axes = [-1]> (p)"
    squeeze = "(t, last)" if opset >= 13 else "<axes = [-1]> (t)"
    text = f"""(float[N,6,64] x) => (float[N,6,5] y, float[N,6] k) {{
        h = MatMul (x, w)  m = ReduceMean {axes}  d = Sub (h, m)  s = Softmax <axis = 2> (d)
        p, q = Split <axis = 2{split}> (s{pieces})  t = ReduceSum {sums}  k = Squeeze {squeeze}
        z = Clip (d, low, high)  y = MatMul (z, v)
    }}"""
    constants = {"w": weight(64, 32), "v": weight(32, 5, seed=1), "low": np.float32(-3), "high": np.float32(3)}
    used = {"last": np.array([-1]), "pieces": np.array([8, 24])}
    constants |= {name: a for name, a in used.items() if f", {name}" in text}
    result = check(model(text, constants, opset=opset), feeds(x=(4, 6, 64)), "weight-only", weights="int4")
    assert result.db("y") >= FOUR_BITS_DB - 4  # two layers
    assert result.proto.opset_import[0].version == max(opset, 21)
    assert list(result.decisions().values()).count("quantized") == 2


@pytest.mark.parametrize("ir", [3, 4, 7, 10])
@ALL_FORMS
def test_ir_versions(form: str, ir: int) -> None:
    text, constants, samples = MODELS["gemm"]
    proto = model(text, constants, opset=9, ir=ir)
    if ir == 3:
        for tensor in proto.graph.initializer:
            proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, 1, tensor.dims))
    result = check(proto, samples, form, db=24)
    assert result.proto.ir_version >= max(ir, 4)


@ALL_FORMS
def test_a_float64_model_without_a_form_for_it_is_never_an_unchanged_copy(form: str) -> None:
    proto = model("(double[N,4] x) => (double[N,4] y) { a = Abs (x)  y = Exp (a) }")
    with pytest.raises(quantool.NothingQuantizedError):
        check(proto, cast_feeds(feeds(4, x=(2, 4)), "float64"), form)


@ALL_FORMS
def test_bfloat16_is_right_or_refused(form: str) -> None:
    text, constants, samples = MODELS["gemm"]
    given = model(text, constants)
    proto = model(text.replace("float[", "bfloat16["))
    for tensor in given.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        proto.graph.initializer.append(
            onnx.helper.make_tensor(tensor.name, onnx.TensorProto.BFLOAT16, tensor.dims, array.ravel())
        )
    try:
        result = quantool.quantize(proto, samples, **FORMS[form]).model
    except quantool.QuantoolError as refusal:
        assert refusal.exit_code in (2, 3)  # noqa: PT017
        assert refusal.what  # noqa: PT017
    else:
        onnx.checker.check_model(result, full_check=True)
        run(result, [])
