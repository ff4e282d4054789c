"""EDGE_CASES, normalizations in operators and spelled out, and what stands around them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.edge.driver import FORMS, WEIGHTS_DB, check
from tests.edge.graphs import feeds, model, normal, weight

STATIC = pytest.mark.parametrize("form", ["qdq", "qoperator"])
ALL_FORMS = pytest.mark.parametrize("form", FORMS)

SPELLED_OUT = {
    "LayerNorm": (
        """m = ReduceMean <axes = [-1]> (h)  d = Sub (h, m)  s = Pow (d, two)  v = ReduceMean <axes = [-1]> (s)
           e = Add (v, epsilon)  r = Sqrt (e)  n = Div (d, r)  g = Mul (n, gain)  k = Add (g, shift)""",
        ["m", "d", "s", "v", "e", "r", "n"],
    ),
    "LayerNorm by Mul": (
        """m = ReduceMean <axes = [-1]> (h)  d = Sub (h, m)  s = Mul (d, d)  v = ReduceMean <axes = [-1]> (s)
           e = Add (v, epsilon)  r = Sqrt (e)  i = Reciprocal (r)  n = Mul (d, i)  k = Mul (n, gain)""",
        ["m", "d", "s", "v", "e", "r", "i"],
    ),
    "RMSNorm": (
        """s = Pow (h, two)  v = ReduceMean <axes = [-1]> (s)  e = Add (v, epsilon)  r = Sqrt (e)
           n = Div (h, r)  k = Mul (n, gain)""",
        ["s", "v", "e", "r", "n"],
    ),
    "erf-GELU": (
        """q = Div (h, root)  f = Erf (q)  a = Add (f, one)  b = Mul (h, a)  k = Mul (b, half)""",
        ["q", "f", "a", "b"],
    ),
    "tanh-GELU": (
        """c = Pow (h, three)  l = Mul (c, small)  t = Add (h, l)  u = Mul (t, root)  f = Tanh (u)
           a = Add (f, one)  b = Mul (h, a)  k = Mul (b, half)""",
        ["c", "l", "t", "u", "f", "a", "b"],
    ),
}
NUMBERS = {
    "two": np.float32(2),
    "three": np.float32(3),
    "one": np.float32(1),
    "half": np.float32(0.5),
    "small": np.float32(0.044715),
    "root": np.float32(2**0.5),
    "epsilon": np.float32(1e-5),
    "gain": normal(16, seed=3, scale=0.2) + 1,
    "shift": normal(16, seed=4, scale=0.2),
}


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("name", SPELLED_OUT)
@ALL_FORMS
def test_spelled_out_functions_stay_float_between_quantized_matmuls(form: str, name: str, opset: int) -> None:
    body, inside = SPELLED_OUT[name]
    text = f"(float[B,6,16] x) => (float[B,6,4] y) {{ h = MatMul (x, w)  {body}  y = MatMul (k, head) }}"
    w = weight(16, 16)
    w[:, 3] *= 20  # an outlier channel
    proto = model(text, {**NUMBERS, "w": w, "head": weight(16, 4, seed=2)}, opset=opset)
    result = check(proto, feeds(x=(4, 6, 16)), form, db={"qoperator": 18, "weight-only": WEIGHTS_DB}.get(form, 24))
    found = result.decisions()
    assert found["MatMul:h"] == found["MatMul:y"] == "quantized"
    kept = {name.split(":")[1]: code for name, code in found.items() if code != "quantized"}
    assert set(inside) <= set(kept)


NORMS = {
    "LayerNormalization": ("n = LayerNormalization <axis = 1> (a, s1, b1)", 17),
    "InstanceNormalization": ("n = InstanceNormalization (a, sc, bc)", 9),
    "GroupNormalization": ("n = GroupNormalization <num_groups = 4> (a, sc, bc)", 21),
    "GroupNormalization-18": ("n = GroupNormalization <num_groups = 4> (a, sg, bg)", 18),
    "BatchNormalization after Tanh": ("t = Tanh (a)  n = BatchNormalization (t, sc, bc, bc, sc)", 15),
    "LpNormalization": ("n = LpNormalization <axis = 1> (a)", 9),
    "MeanVarianceNormalization": ("n = MeanVarianceNormalization (a)", 13),
    "LRN": ("n = LRN <size = 3> (a)", 9),
}


@pytest.mark.parametrize("name", NORMS)
@STATIC
def test_a_normalization_after_a_conv_stays_float_and_so_do_its_constants(form: str, name: str) -> None:
    body, opset = NORMS[name]
    text = f"""(float[N,3,8,8] x) => (float[N,4,8,8] y) {{
        a = Conv <pads = [1, 1, 1, 1]> (x, w)  {body}  y = Conv <pads = [1, 1, 1, 1]> (n, v)
    }}"""
    constants = {
        "w": weight(8, 3, 3, 3),
        "v": weight(4, 8, 3, 3, seed=1),
        "sc": np.abs(normal(8, seed=2)) + np.float32(0.5),
        "bc": normal(8, seed=3, scale=0.2),
        "sg": np.abs(normal(4, seed=2)) + np.float32(0.5),
        "bg": normal(4, seed=3, scale=0.2),
        "s1": np.abs(normal(8, 8, 8, seed=2)) + np.float32(0.5),
        "b1": normal(8, 8, 8, seed=3, scale=0.2),
    }
    result = check(model(text, constants, opset=opset), feeds(x=(4, 3, 8, 8)), form, db=26)
    norm = name.split("-")[0].split(" ")[0]
    assert result.ops[norm] == 1
    assert result.decisions()["Conv:a"] == result.decisions()["Conv:y"] == "quantized"
    kinds = {a.dtype for n, a in result.constants().items() if n.startswith(("sc", "bc", "sg", "bg", "s1", "b1"))}
    assert kinds <= {np.dtype(np.float32)}
