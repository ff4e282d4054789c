"""EDGE_CASES, extreme values in weights, biases, activations and data."""

from __future__ import annotations

import numpy as np
import pytest

import quantool
from quantool import DataError, ModelError
from tests.edge.driver import FORMS, STATIC_DB, Checked, check
from tests.edge.graphs import feeds, model, normal, weight

SAME = "<pads = [1, 1, 1, 1]>"
STATIC = pytest.mark.parametrize("form", ["qdq", "qoperator"])
ALL_FORMS = pytest.mark.parametrize("form", FORMS)
CALIBRATORS = ["mse", "minmax", "percentile", "entropy", "moving-average"]
FEEDS = feeds(20, x=(4, 3, 10, 10))
CONVS = f"""(float[N,3,10,10] x) => (float[N,4,10,10] y) {{
    a = Conv {SAME} (x, w, b)  r = Relu (a)  y = Conv {SAME} (r, v, c)
}}"""
GEMMS = "(float[N,12] x) => (float[N,5] y) { a = Gemm (x, w, b)  r = Relu (a)  y = Gemm (r, v, c) }"


def conv_constants() -> dict[str, np.ndarray]:
    return {
        "w": weight(6, 3, 3, 3),
        "b": normal(6, seed=1, scale=0.2),
        "v": weight(4, 6, 3, 3, seed=2),
        "c": normal(4, seed=3, scale=0.2),
    }


def gemm_constants() -> dict[str, np.ndarray]:
    return {
        "w": weight(12, 6),
        "b": normal(6, seed=1, scale=0.2),
        "v": weight(6, 5, seed=2),
        "c": normal(5, seed=3, scale=0.2),
    }


def zero_points(result: Checked) -> list[np.ndarray]:
    """The zero points that weights have for each channel."""
    return [array for name, array in result.constants().items() if "zero_point" in name and array.ndim]


@ALL_FORMS
@pytest.mark.parametrize("bias", [5.0, -5.0, 1e4])
@pytest.mark.parametrize("size", [1e-9, 1e-30, 1e-38])
@pytest.mark.parametrize("kind", ["conv", "gemm"])
def test_tiny_weights_beside_a_large_bias(form: str, kind: str, size: float, bias: float) -> None:
    constants = conv_constants() if kind == "conv" else gemm_constants()
    last = constants["v"][1:2] if kind == "conv" else constants["v"][:, 1:2]
    last *= np.float32(size)
    constants["c"][1] = bias
    proto = model(CONVS if kind == "conv" else GEMMS, constants)
    samples = FEEDS if kind == "conv" else feeds(x=(16, 12))
    if form == "dynamic" and kind == "conv":
        with pytest.raises(quantool.NothingQuantizedError):
            check(proto, samples, form)
        return
    result = check(proto, samples, form)
    ordinary = [0, 2, 3]
    for exact, found in zip(result.given * 2, result.optimized + result.plain, strict=True):
        error = exact["y"] - found["y"]
        assert np.abs(error[:, 1]).max() <= (abs(bias) / 127 if form == "qoperator" else abs(bias) / 250)
        if abs(bias) < 10:  # else one scale for a Conv's whole output leaves little to the others
            assert np.square(error[:, ordinary]).sum() < np.square(exact["y"][:, ordinary]).sum() / 50


@ALL_FORMS
@pytest.mark.parametrize("zero", ["channel", "all", "all with bias", "all but one"])
@pytest.mark.parametrize("weights", ["int8", "uint8"])
def test_zero_channels_have_positive_scales(form: str, zero: str, weights: str) -> None:
    constants = gemm_constants()
    if zero == "channel":
        constants["v"][:, 2] = 0
    else:
        constants["v"][:, 1 if zero == "all but one" else 0 :] = 0
    if zero == "all":
        constants["c"][:] = 0
    result = check(model(GEMMS, constants), feeds(x=(16, 12)), form, weights=weights)
    if zero == "all":  # MatMulNBits takes the zero point off after summing, in floats
        assert all(np.abs(found["y"]).max() < 1e-4 for found in (*result.optimized, *result.plain))
    else:
        assert result.db() >= 25
    assert all(np.unique(point).size == 1 for point in zero_points(result) if weights == "int8")


@STATIC
@pytest.mark.parametrize("weights", ["int8", "uint8"])
def test_a_zero_channel_of_a_conv_has_the_zero_point_of_the_others(form: str, weights: str) -> None:
    constants = conv_constants()
    constants["v"][2] = 0
    result = check(model(CONVS, constants), FEEDS, form, weights=weights, db=STATIC_DB - 3)
    assert zero_points(result)
    assert all(np.unique(point).size == 1 for point in zero_points(result))


DEGENERATE = {
    "zero": "t = Mul (x, zero)",
    "constant": "s = Mul (x, zero)  t = Add (s, three)",
    "denormal": "s = Tanh (x)  t = Mul (s, denormal)",
    "smallest": "s = Tanh (x)  t = Mul (s, smallest)",
    "all negative": "s = Exp (x)  t = Neg (s)",
    "all positive": "s = Exp (x)  t = Add (s, three)",
    "huge": "s = Tanh (x)  t = Mul (s, huge)",
    "huge and tiny": "s = Exp (x)  q = Mul (s, s)  p = Mul (q, q)  t = Mul (p, p)",
}


@pytest.mark.parametrize("calibrator", CALIBRATORS)
@pytest.mark.parametrize("name", DEGENERATE)
@STATIC
def test_degenerate_activations(form: str, name: str, calibrator: str) -> None:
    text = f"""(float[N,12] x) => (float[N,5] y, float[N,5] z) {{
        {DEGENERATE[name]}  a = MatMul (t, w)  y = Gemm (a, v, c)  z = MatMul (x, u)
    }}"""
    constants = {
        "w": weight(12, 6),
        "v": weight(6, 5, seed=2),
        "c": normal(5, seed=3),
        "u": weight(12, 5, seed=4),
        "zero": np.float32(0),
        "three": np.float32(3),
        "denormal": np.float32(1e-39),
        "smallest": np.float32(1e-45),
        "huge": np.float32(1e30),
    }
    result = check(model(text, constants), feeds(20, x=(16, 12)), form, calibrator=calibrator)
    assert result.db("z") >= (STATIC_DB - 4 if calibrator != "moving-average" else 18)
    if name != "huge and tiny":  # a range over many powers of ten has no accurate form
        assert result.db("y") >= (22 if calibrator != "moving-average" else 16)


@ALL_FORMS
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["w", "b"])
def test_nonfinite_weights_are_refused_by_name(form: str, where: str, value: float) -> None:
    constants = gemm_constants()
    constants[where].flat[2] = value
    samples = [] if form in ("dynamic", "weight-only") else feeds(x=(16, 12))
    options = {**FORMS[form], "data": samples} if samples else FORMS[form]
    try:
        report = quantool.quantize(model(GEMMS, constants), **options).report
    except (ModelError, DataError) as refusal:
        assert f"'{where}'" in str(refusal) or f"[{where}]" in str(refusal) or "tensor" in str(refusal)  # noqa: PT017
        return
    assert where == "b", "a float bias may stay"
    assert form in ("dynamic", "weight-only")
    assert report.nodes


@STATIC
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sample", [0, 5, 19])
def test_nonfinite_data_is_refused_by_input_and_sample(form: str, value: float, sample: int) -> None:
    samples = feeds(20, x=(16, 12))
    samples[sample]["x"][3, 4] = value
    with pytest.raises(DataError, match=rf"nonfinite.*input 'x', sample {sample}"):
        quantool.quantize(model(GEMMS, gemm_constants()), samples, **FORMS[form])


@STATIC
def test_data_that_makes_infinity_inside_is_refused_by_tensor_and_sample(form: str) -> None:
    text = "(float[N,12] x) => (float[N,5] y) { e = Exp (x)  y = MatMul (e, v) }"
    samples = feeds(8, x=(16, 12))
    samples[3]["x"][0, 0] = 100
    with pytest.raises(DataError, match=r"nonfinite.*sample 3"):
        quantool.quantize(model(text, {"v": weight(12, 5)}), samples, **FORMS[form])
    options = {**FORMS[form], "allow_nonfinite": True, "verify": False}
    assert quantool.quantize(model(text, {"v": weight(12, 5)}), samples, **options).model.graph.node
