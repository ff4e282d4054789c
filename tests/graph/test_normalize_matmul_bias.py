"""A MatMul and its bias take the form that the runtime leaves alone."""

from __future__ import annotations

import pytest

from tests.graph.text_model import constants_of, normal, normalized, op_types

HEADER = '<ir_version: 8, opset_import: ["" : 13]> agraph '
CONSTANTS = {"w": normal(6, 4, seed=1), "b": normal(4, seed=2)}


@pytest.mark.parametrize("order", ["p, b", "b, p"])
def test_matrices_become_a_gemm_that_adds_the_row(order):
    text = HEADER + f"(float[n, 6] x) => (float[n, 4] y) {{ p = MatMul(x, w)  y = Add({order}) }}"
    model = normalized(text, CONSTANTS, feed={"x": normal(3, 6)}, only="matmul-bias")
    assert op_types(model) == ["Gemm"]
    assert model.absorbed == {"Add:y": "MatMul:p"}
    assert model.ir.graph.outputs[0].name == "y"


def test_a_row_of_two_axes_becomes_flat_in_the_gemm():
    constants = {"w": CONSTANTS["w"], "b": normal(1, 4, seed=2)}
    text = HEADER + "(float[n, 6] x) => (float[n, 4] y) { p = MatMul(x, w)  y = Add(p, b) }"
    model = normalized(text, constants, feed={"x": normal(3, 6)}, only="matmul-bias")
    assert op_types(model) == ["Gemm"]
    assert [a.shape for a in constants_of(model).values()] == [(6, 4), (4,)]


def test_known_shapes_of_rank_three_keep_the_matmul_and_get_a_taller_row():
    text = HEADER + "(float[2, 3, 6] x) => (float[2, 3, 4] y) { p = MatMul(x, w)  y = Add(p, b) }"
    model = normalized(text, CONSTANTS, feed={"x": normal(2, 3, 6)}, only="matmul-bias")
    assert op_types(model) == ["MatMul", "Add"]
    assert constants_of(model)["b"].shape == (1, 4)


def test_an_unknown_batch_leaves_the_row_flat_because_the_runtime_does_not_fuse_it():
    text = HEADER + "(float[n, 3, 6] x) => (float[n, 3, 4] y) { p = MatMul(x, w)  y = Add(p, b) }"
    model = normalized(text, CONSTANTS, feed={"x": normal(2, 3, 6)}, only="matmul-bias")
    assert constants_of(model)["b"].shape == (4,)


@pytest.mark.parametrize(
    ("outputs", "body"),
    [
        pytest.param("float[n, 4] y, float[n, 4] p", "p = MatMul(x, w)  y = Add(p, b)", id="product-is-output"),
        pytest.param("float[n, 4] y", "p = MatMul(x, w)  s = Add(p, b)  y = Add(s, p)", id="two-readers"),
        pytest.param("float[n, 4] y", "p = MatMul(x, w)  y = Sub(p, b)", id="no-add"),
        pytest.param(
            "float[n, 4] y", "p = MatMul(x, w)  q = Neg(x)  r = MatMul(q, w)  y = Add(p, r)", id="no-constant"
        ),
    ],
)
def test_other_forms_stay_as_they_are(outputs, body):
    text = HEADER + f"(float[n, 6] x) => ({outputs}) {{ {body} }}"
    model = normalized(text, CONSTANTS, feed={"x": normal(3, 6)}, only="matmul-bias")
    assert "Gemm" not in op_types(model)
