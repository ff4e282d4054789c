"""EDGE_CASES, Clip and Relu: removed only where saturation does the same."""

from __future__ import annotations

import numpy as np
import pytest

from tests.edge.driver import FORMS, STATIC_DB, Checked, check
from tests.edge.graphs import feeds, model, normal, weight

SAME = "<pads = [1, 1, 1, 1]>"
FEEDS = feeds(20, x=(4, 3, 10, 10))
STATIC = pytest.mark.parametrize("form", ["qdq", "qoperator"])
BOUNDS = [
    (1, 5),
    (-6, -1),
    (0, 6),
    (-1, 1),
    (0, 0.5),
    (None, 1),
    (-0.5, None),
    (0, None),
    (None, 0),
    (None, None),
]


def within(result: Checked, low: float, high: float, name: str = "z", *, step: bool = False) -> None:
    """Values stay between the bounds; step: but for the rounding of a bound that is no code."""
    scales = [row.scale for row in result.report.tensors if isinstance(row.scale, float) and row.name in ("a", "c")]
    slack = max(scales, default=0.0) / 2 if step else 0.0
    for found in (*result.optimized, *result.plain):
        assert found[name].min() >= low - slack
        assert found[name].max() <= high + slack


@pytest.mark.parametrize("last", [False, True], ids=["inside", "output"])
@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@STATIC
def test_a_clip_after_a_conv(form: str, bounds: tuple[float | None, float | None], opset: int, last: bool) -> None:
    low, high = bounds
    if opset < 11:
        given = [f"{k} = {float(v)}" for k, v in zip(("min", "max"), bounds, strict=True) if v is not None]
        clip = f"c = Clip <{', '.join(given)}> (a)" if given else "c = Clip (a)"
    else:
        low_name, high_name = ("" if v is None else n for n, v in zip(("low", "high"), bounds, strict=True))
        names = [n or '""' for n in ("a", low_name, high_name)]
        while names[-1] == '""':
            names.pop()
        clip = f"c = Clip ({', '.join(names)})"
    body = "z = Identity (c)" if last else f"z = Conv {SAME} (c, v)"
    text = f"(float[N,3,10,10] x) => (float[N,4,10,10] z) {{ a = Conv {SAME} (x, w, b)  {clip}  {body} }}"
    constants = {
        "w": weight(4, 3, 3, 3) * 2,
        "b": normal(4, seed=1),
        "v": weight(4, 4, 3, 3, seed=2),
        **({"low": np.float32(low)} if low is not None and opset >= 11 else {}),
        **({"high": np.float32(high)} if high is not None and opset >= 11 else {}),
    }
    result = check(model(text, constants, opset=opset), FEEDS, form, db=STATIC_DB - 4)
    if last:
        within(result, -np.inf if low is None else low, np.inf if high is None else high, step=True)


RELUS = {
    "shared": "r = Relu (a)  t = Tanh (a)  s = Add (r, t)",
    "shared by a conv": f"r = Relu (a)  t = Conv {SAME} (a, u)  s = Add (r, t)",
    "shared by two": "r = Relu (a)  t = Relu (a)  s = Add (r, t)",
    "output": "r = Relu (a)  o = Identity (a)  s = Identity (r)",
    "twice": "q = Relu (a)  r = Relu (q)  s = Identity (r)",
    "before a clip": "q = Relu (a)  r = Clip (q, one, six)  s = Identity (r)",
}


@pytest.mark.parametrize("activations", ["uint8", "int8", "uint16"])
@pytest.mark.parametrize("name", RELUS)
@STATIC
def test_negative_values_never_leak_through_a_relu(form: str, name: str, activations: str) -> None:
    if form == "qoperator" and activations == "uint16":
        pytest.skip("QOperator has 8 bits")
    more = ", float[N,4,10,10] o" if name == "output" else ""
    text = f"""(float[N,3,10,10] x) => (float[N,4,10,10] r, float[N,4,10,10] y{more}) {{
        a = Conv {SAME} (x, w)  {RELUS[name]}  y = Conv {SAME} (s, v)
    }}"""
    constants = {
        "w": weight(4, 3, 3, 3),
        "v": weight(4, 4, 3, 3, seed=2),
        "u": weight(4, 4, 3, 3, seed=3),
        "one": np.float32(1),
        "six": np.float32(6),
    }
    for formula in ("onnx", "onnx-symmetric"):
        result = check(model(text, constants), FEEDS, form, activations=activations, formula=formula, db=STATIC_DB - 4)
        within(result, 0, np.inf, "r")


AFTER_PRODUCTS = {
    "quantized too": "y = Gemm (h, v)",
    "rectified": "r = Relu (h)  y = Gemm (r, v)",
    "clipped": "r = Clip (h, zero, three)  y = MatMul (r, v)",
    "rectified and read in float": "t = Tanh (h)  r = Relu (h)  g = Gemm (r, v)  k = Gemm (t, v)  y = Add (g, k)",
    "transposed": "s = Transpose <perm = [1, 0]> (h)  t = Transpose <perm = [1, 0]> (s)  y = MatMul (t, v)",
    "rectified and reshaped": "r = Relu (h)  s = Reshape (r, dims)  y = MatMul (s, v)",
}


@pytest.mark.parametrize("output", [False, True], ids=["inside", "output"])
@pytest.mark.parametrize("product", ["Gemm (x, w, b)", "Gemm (x, w)", "MatMul (x, w)"])
@pytest.mark.parametrize("name", AFTER_PRODUCTS)
@pytest.mark.parametrize("form", FORMS)
def test_a_product_that_is_read_in_float_and_behind_a_rectifier(
    form: str, name: str, product: str, output: bool
) -> None:
    outputs = "float[N,8] h, float[N,5] y" if output else "float[N,5] y"
    text = f"(float[N,12] x) => ({outputs}) {{ h = {product}  {AFTER_PRODUCTS[name]} }}"
    constants = {
        "w": weight(12, 8),
        "b": normal(8),
        "v": weight(8, 5, seed=1),
        "zero": np.float32(0),
        "three": np.float32(3),
        "dims": np.array([-1, 8]),
    }
    result = check(model(text, constants), feeds(x=(16, 12)), form, db=24)
    assert result.decisions()[f"{product.split()[0]}:h"] == "quantized"
    assert not output or (result.optimized[0]["h"] < 0).any()
