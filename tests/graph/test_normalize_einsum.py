"""An Einsum with constant weights becomes a MatMul where only its weights need another order."""

from __future__ import annotations

import pytest

from tests.graph.text_model import constants_of, normal, normalized, op_types

HEADER = '<ir_version: 8, opset_import: ["" : 13]> agraph '

PRODUCTS = {
    "dense": ("btd,df->btf", (2, 3, 6), (6, 4), (6, 4), ["MatMul"]),
    "blanks": ("b t d , d f -> b t f", (2, 3, 6), (6, 4), (6, 4), ["MatMul"]),
    "turned-weight": ("bd,fd->bf", (2, 6), (4, 6), (6, 4), ["MatMul"]),
    "heads": ("btd,dhe->bthe", (2, 3, 6), (6, 2, 4), (6, 8), ["MatMul", "Reshape"]),
    "joined-heads": ("bthe,hed->btd", (2, 3, 2, 4), (2, 4, 5), (8, 5), ["Reshape", "MatMul"]),
    "heads-turned": ("bthe,dhe->btd", (2, 3, 2, 4), (5, 2, 4), (8, 5), ["Reshape", "MatMul"]),
    "both": ("bthe,hedf->btdf", (2, 3, 2, 4), (2, 4, 5, 3), (8, 15), ["Reshape", "MatMul", "Reshape"]),
    "experts": ("btd,edf->ebtf", (2, 3, 6), (5, 6, 4), (5, 1, 6, 4), ["MatMul"]),
    "of-each-expert": ("ebtf,efd->ebtd", (5, 2, 3, 4), (5, 4, 6), (5, 1, 4, 6), ["MatMul"]),
    "groups": ("gtd,gdf->gtf", (5, 3, 6), (5, 6, 4), (5, 6, 4), ["MatMul"]),
}


@pytest.mark.parametrize(("equation", "operand", "weight", "matrix", "ops"), PRODUCTS.values(), ids=PRODUCTS)
def test_products_are_written_as_matmul(equation, operand, weight, matrix, ops):
    shape = ",".join(map(str, operand))
    text = f'{HEADER}(float[{shape}] x) => (float[] y) {{ y = Einsum <equation = "{equation}"> (x, w) }}'
    model = normalized(text, {"w": normal(*weight, seed=1)}, feed={"x": normal(*operand)}, only="einsum")
    assert op_types(model) == ops
    assert matrix in [array.shape for array in constants_of(model).values()]
    assert model.ir.graph.outputs[0].name == "y"


OTHERS = {
    "operand-would-be-turned": ("bdt,df->btf", (2, 6, 3), (6, 4)),
    "result-would-be-turned": ("btd,df->bft", (2, 3, 6), (6, 4)),
    "own-weight-a-row": ("btd,tdf->btf", (2, 3, 6), (3, 6, 4)),
    "elementwise": ("btd,d->btd", (2, 3, 6), (6,)),
    "vector": ("btd,d->bt", (2, 3, 6), (6,)),
    "outer": ("bt,f->btf", (2, 3), (4,)),
    "weight-summed-alone": ("btd,dfg->btf", (2, 3, 6), (6, 4, 2)),
    "diagonal": ("btd,ddf->btf", (2, 3, 6), (6, 6, 4)),
    "ellipsis": ("...d,df->...f", (2, 3, 6), (6, 4)),
    "no-result": ("btd,df", (2, 3, 6), (6, 4)),
}


@pytest.mark.parametrize(("equation", "operand", "weight"), OTHERS.values(), ids=OTHERS)
def test_other_equations_stay(equation, operand, weight):
    shape = ",".join(map(str, operand))
    text = f'{HEADER}(float[{shape}] x) => (float[] y) {{ y = Einsum <equation = "{equation}"> (x, w) }}'
    model = normalized(text, {"w": normal(*weight, seed=1)}, feed={"x": normal(*operand)}, only="einsum")
    assert op_types(model) == ["Einsum"]


def test_a_shared_weight_and_a_symbolic_batch():
    text = f"""{HEADER}(float[n,3,6] x) => (float[] y) {{
        p = Einsum <equation = "btd,dhe->bthe"> (x, w)
        q = Einsum <equation = "bthe,dhe->btd"> (p, w)
        y = Add (q, x) }}"""
    model = normalized(text, {"w": normal(6, 2, 4, seed=1)}, feed={"x": normal(2, 3, 6)}, only="einsum")
    assert op_types(model) == ["MatMul", "Reshape", "Reshape", "MatMul", "Add"]


def test_products_of_activations_stay():
    text = f'{HEADER}(float[2,3] x, float[3,4] z) => (float[] y) {{ y = Einsum <equation = "ij,jk->ik"> (x, z) }}'
    model = normalized(text, {}, feed={"x": normal(2, 3), "z": normal(3, 4)}, only="einsum")
    assert op_types(model) == ["Einsum"]
