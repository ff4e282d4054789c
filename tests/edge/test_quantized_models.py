"""EDGE_CASES, already quantized models: refused with a message, or right."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

import quantool
from tests.edge.driver import FORMS, check, run
from tests.edge.graphs import feeds, model, normal, weight

ALL_FORMS = pytest.mark.parametrize("form", FORMS)
SAME = "<pads = [1, 1, 1, 1]>"
SCALES = {"s": np.float32(0.02), "z": np.uint8(128), "ws": np.float32(0.01), "wz": np.int8(0), "one": np.float32(0.05)}
CODES = np.random.default_rng(0).integers(-90, 91, (12, 12)).astype(np.int8)


def refused_or_right(proto: onnx.ModelProto, samples: list, form: str, db: float = 20) -> None:
    try:
        check(proto, samples, form, db=db)
    except quantool.ModelError as refusal:
        assert refusal.code == "already-quantized"  # noqa: PT017
        assert refusal.exit_code == 2  # noqa: PT017
        assert "Quantize the float model" in refusal.fix  # noqa: PT017


@ALL_FORMS
def test_a_model_with_one_quantized_conv(form: str) -> None:
    text = f"""(float[N,3,8,8] x) => (float[N,4,8,8] y) {{
        q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)  wd = DequantizeLinear (w, ws, wz)
        a = Conv {SAME} (d, wd)  aq = QuantizeLinear (a, one, z)  ad = DequantizeLinear (aq, one, z)
        r = Relu (ad)  y = Conv {SAME} (r, v)
    }}"""
    w = np.clip(np.rint(weight(6, 3, 3, 3) / 0.01), -127, 127).astype(np.int8)
    refused_or_right(model(text, {**SCALES, "w": w, "v": weight(4, 6, 3, 3, seed=1)}), feeds(20, x=(2, 3, 8, 8)), form)


FINISHED: Mapping[str, str] = {
    "QLinearMatMul": """q = QuantizeLinear (x, s, z)  m = QLinearMatMul (q, s, z, w, ws, wz, one, z)
        h = DequantizeLinear (m, one, z)""",
    "MatMulInteger": "q, qs, qz = DynamicQuantizeLinear (x)  i = MatMulInteger (q, w, qz)  h = Cast <to = 1> (i)",
    "weights with DequantizeLinear": "d = DequantizeLinear (w, ws, wz)  h = MatMul (x, d)",
    "and Transpose": "d = DequantizeLinear (w, ws, wz)  t = Transpose <perm = [1, 0]> (d)  h = MatMul (x, t)",
    "and Reshape": "d = DequantizeLinear (w, ws, wz)  t = Reshape (d, dims)  h = MatMul (x, t)",
    "and Identity": "i = Identity (w)  d = DequantizeLinear (i, ws, wz)  h = MatMul (x, d)",
    "MatMulNBits": """h = com.microsoft.MatMulNBits <K = 12, N = 12, bits = 4, block_size = 16> (x, packed, steps)""",
}


@ALL_FORMS
@pytest.mark.parametrize("name", FINISHED)
def test_finished_operators_are_refused_or_right(form: str, name: str) -> None:
    text = f"(float[N,12] x) => (float[N,5] y) {{ {FINISHED[name]}  y = MatMul (h, v) }}"
    packed = np.random.default_rng(1).integers(0, 256, (12, 1, 8)).astype(np.uint8)
    constants = {**SCALES, "w": CODES, "v": weight(12, 5, seed=2), "dims": np.array([12, 12]), "packed": packed}
    constants["steps"] = np.full(12, 0.02, np.float32)
    used = {n: a for n, a in constants.items() if f"{n})" in text or f" {n}," in text or f"({n}," in text}
    refused_or_right(model(text, used, domains={"com.microsoft": 1}), feeds(x=(16, 12)), form)


@pytest.mark.parametrize("first", [*FORMS, "int4"])
@ALL_FORMS
def test_our_own_results_are_recognized(form: str, first: str) -> None:
    text = "(float[N,32] x) => (float[N,5] y) { a = Gemm (x, w, b)  r = Relu (a)  y = MatMul (r, v) }"
    proto = model(text, {"w": weight(32, 16), "b": normal(16), "v": weight(16, 5, seed=1)})
    options = {"mode": "weight-only", "weights": "int4"} if first == "int4" else FORMS[first]
    once = quantool.quantize(proto, feeds(x=(16, 32)), **options).model
    refused_or_right(once, feeds(x=(16, 32)), form)


@ALL_FORMS
def test_a_dequantized_input_of_integers_is_no_quantized_model_or_is_refused(form: str) -> None:
    text = "(uint8[N,12] x) => (float[N,5] y) { d = DequantizeLinear (x, s, z)  h = MatMul (d, w)  y = MatMul (h, v) }"
    proto = model(text, {"s": SCALES["s"], "z": SCALES["z"], "w": weight(12, 12), "v": weight(12, 5, seed=1)})
    rng = np.random.default_rng(0)
    samples = [{"x": rng.integers(0, 256, (16, 12)).astype(np.uint8)} for _ in range(32)]
    assert run(proto, samples[:1])
    refused_or_right(proto, samples, form)
