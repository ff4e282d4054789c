"""EDGE_CASES, Gemm and MatMul."""

from __future__ import annotations

import numpy as np
import pytest

from quantool.schema import AnyArray
from tests.edge.driver import DYNAMIC_DB, FORMS, FOUR_BITS_DB, STATIC_DB, WEIGHTS_DB, Checked, check
from tests.edge.graphs import feeds, model, normal, weight

REACHED = {"qdq": STATIC_DB, "qoperator": STATIC_DB, "dynamic": DYNAMIC_DB, "weight-only": WEIGHTS_DB}
ALL_FORMS = pytest.mark.parametrize("form", FORMS)
OPSETS = pytest.mark.parametrize("opset", [9, 13, 23])
FEEDS = feeds(x=(6, 24))


def gemm(attributes: str, c: AnyArray | None, *, transposed: bool = False, opset: int = 17, a: str = "N,24") -> object:
    """Gemm <attributes> (x, w, c) and a Relu."""
    w = weight(24, 10)
    constants = {"w": w.T.copy() if transposed else w, **({} if c is None else {"c": c})}
    operands = "x, w" if c is None else "x, w, c"
    text = f"(float[{a}] x) => (float[M,10] y) {{ h = Gemm <{attributes}> ({operands})  y = Relu (h) }}"
    return model(text.replace(" <>", ""), constants, opset=opset)


def is_quantized(result: Checked, *names: str) -> None:
    found = result.decisions()
    assert {name: found[name] for name in names} == dict.fromkeys(names, "quantized")


@ALL_FORMS
@pytest.mark.parametrize("beta", [0.5, -1.0, 0.0])
@pytest.mark.parametrize("alpha", [0.5, 2.0, 3.0, -1.0])
def test_alpha_and_beta_take_effect_on_the_right_operand(form: str, alpha: float, beta: float) -> None:
    proto = gemm(f"alpha = {alpha}, beta = {beta}", normal(10, seed=1, scale=3.0))
    is_quantized(check(proto, FEEDS, form, db=REACHED[form]), "Gemm:h")


@ALL_FORMS
@pytest.mark.parametrize(
    "shape",
    [(10,), (1, 10), (6, 10), (1,), (), (6, 1), (1, 1)],
    ids=lambda shape: "x".join(map(str, shape)) or "scalar",
)
@pytest.mark.parametrize("opset", [9, 17])
def test_a_term_of_any_shape_is_added_as_written(form: str, shape: tuple[int, ...], opset: int) -> None:
    proto = gemm("beta = 2.0", np.asarray(normal(*shape, seed=2), np.float32), opset=opset)
    is_quantized(check(proto, FEEDS, form, db=REACHED[form]), "Gemm:h")


@ALL_FORMS
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@OPSETS
def test_transposed_operands(form: str, trans_a: int, trans_b: int, opset: int) -> None:
    attributes = f"transA = {trans_a}, transB = {trans_b}, alpha = 0.5"
    proto = gemm(attributes, normal(10), transposed=bool(trans_b), opset=opset, a="24,N" if trans_a else "N,24")
    samples = feeds(x=(24, 6)) if trans_a else FEEDS
    is_quantized(check(proto, samples, form, db=REACHED[form]), "Gemm:h")


@ALL_FORMS
def test_a_gemm_without_a_term(form: str) -> None:
    is_quantized(check(gemm("alpha = 2.0", None), FEEDS, form, db=REACHED[form]), "Gemm:h")


@ALL_FORMS
def test_a_term_computed_at_run_time(form: str) -> None:
    text = """(float[N,24] x, float[N,10] t) => (float[N,10] y) {
        s = Tanh (t)  h = Gemm <alpha = 0.5, beta = 2.0> (x, w, s)  y = Relu (h)
    }"""
    result = check(model(text, {"w": weight(24, 10)}), feeds(x=(6, 24), t=(6, 10)), form, db=REACHED[form])
    is_quantized(result, "Gemm:h")


@pytest.mark.parametrize("trans_b", [0, 1])
@OPSETS
def test_int4_blocks_of_a_gemm(trans_b: int, opset: int) -> None:
    proto = gemm(f"transB = {trans_b}, alpha = 0.5, beta = 2.0", normal(10), transposed=bool(trans_b), opset=opset)
    result = check(proto, FEEDS, "weight-only", weights="int4", db=FOUR_BITS_DB)
    is_quantized(result, "Gemm:h")
    (product,) = [node for node in result.proto.graph.node if node.op_type == "MatMulNBits"]
    assert {"bits": 4, "block_size": 32}.items() <= {item.name: item.i for item in product.attribute}.items()


@ALL_FORMS
@pytest.mark.parametrize(
    ("x", "b"),
    [((3, 6, 8), (3, 8, 5)), ((6, 8), (3, 8, 5)), ((2, 3, 6, 8), (3, 8, 5)), ((2, 1, 4, 8), (2, 3, 8, 5))],
    ids=str,
)
def test_a_batched_constant_never_has_scales_along_k(form: str, x: tuple[int, ...], b: tuple[int, ...]) -> None:
    dims = ",".join(map(str, x))
    proto = model(f"(float[{dims}] x) => (float[] y) {{ y = MatMul (x, b) }}", {"b": weight(*b)})
    result = check(proto, feeds(x=x), form, db=REACHED[form])
    is_quantized(result, "MatMul:y")
    assert {array.shape[-1:] for array in result.constants().values() if array.dtype == np.float32} <= {(), (1,), (5,)}


AROUND = {
    "constant A": ("(float[8,N] x) => (float[5,M] y) { y = MatMul (w, x) }", (5, 8), (8, 6)),
    "constant A, batched": ("(float[B,8,6] x) => (float[] y) { y = MatMul (w, x) }", (5, 8), (3, 8, 6)),
    "1-D B": ("(float[N,8] x) => (float[N] y) { y = MatMul (x, w) }", (8,), (6, 8)),
    "1-D A": ("(float[8] x) => (float[5] y) { y = MatMul (x, w) }", (8, 5), (8,)),
    "both 1-D": ("(float[8] x) => (float[] y) { y = MatMul (x, w) }", (8,), (8,)),
    "N = 1": ("(float[N,8] x) => (float[N,1] y) { y = MatMul (x, w) }", (8, 1), (96, 8)),
    "K = 1": ("(float[N,1] x) => (float[N,5] y) { y = MatMul (x, w) }", (1, 5), (6, 1)),
    "one by one": ("(float[N,1] x) => (float[N,1] y) { y = MatMul (x, w) }", (1, 1), (6, 1)),
    "rank-3 A": ("(float[B,T,8] x) => (float[B,T,5] y) { y = MatMul (x, w) }", (8, 5), (2, 6, 8)),
    "rank-5 A": ("(float[1,2,B,T,8] x) => (float[] y) { y = MatMul (x, w) }", (8, 5), (1, 2, 2, 3, 8)),
    "1-D A with batched B": ("(float[8] x) => (float[] y) { y = MatMul (x, w) }", (3, 8, 5), (8,)),
}
LEFT_FLOAT = {"constant A", "constant A, batched", "1-D B", "both 1-D"}


@ALL_FORMS
@pytest.mark.parametrize("opset", [9, 21])
@pytest.mark.parametrize("name", AROUND)
def test_matmul_of_any_form_is_right_beside_an_ordinary_one(form: str, opset: int, name: str) -> None:
    text, w, x = AROUND[name]
    text = (
        text.replace("{ y =", "{ a = MatMul (x, v)  t = Tanh (a)  y =")
        .replace("(x, w)", "(t, w)")
        .replace("(w, x)", "(w, t)")
    )
    constants = {"w": normal(*w, scale=0.3), "v": weight(x[-1], x[-1], seed=1)}
    result = check(model(text, constants, opset=opset), feeds(x=x), form, db=REACHED[form] - 2)
    is_quantized(result, "MatMul:a", *([] if name in LEFT_FLOAT else ["MatMul:y"]))
