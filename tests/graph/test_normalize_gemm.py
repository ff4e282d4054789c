from __future__ import annotations

import numpy as np
import pytest

from quantool.graph.normalize import PASSES
from quantool.schema import AnyArray

from .text_model import constants_of, model_of, normal, normalized, op_types

CONSTANTS = {
    "w": normal(4, 6),
    "v": normal(6, 4),
    "n": normal(6),
    "row": normal(1, 6),
    "one": normal(1),
    "scalar": normal(),
    "column": normal(3, 1),
    "matrix": normal(3, 6),
}


def gemm(call: str, *, opset: int = 13) -> str:
    return f"""
    <ir_version: 8, opset_import: ["": {opset}]>
    g (float[3, 4] x, float[4, 3] xt, float[6] d, float[3, 6] e) => (float[3, 6] y) {{ y = {call} }}
    """


FEED = {"x": normal(3, 4), "xt": normal(4, 3), "d": normal(6), "e": normal(3, 6)}
FACTORS = "alpha={alpha}, beta={beta}"


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("factors", [(0.5, 2.0), (3.0, -1.0), (-1.0, 0.5), (1.0, 1.0), (2.0, 0.0)])
@pytest.mark.parametrize("term", ["n", "row", "one", "scalar", "column", "matrix", "d", "e", ""])
@pytest.mark.parametrize("opset", [9, 13])
def test_every_form_is_brought_to_one(trans: int, factors: tuple[float, float], term: str, opset: int) -> None:
    if opset < 11 and not term:
        pytest.skip("C is required below opset 11")
    attributes = f"transB={trans}, alpha={factors[0]}, beta={factors[1]}"
    call = f"Gemm<{attributes}>(x, {'v' if trans else 'w'}{', ' + term if term else ''})"
    model = normalized(gemm(call, opset=opset), CONSTANTS, feed=FEED, only="gemm")
    [node] = [node for node in model.ir.graph if node.op_type == "Gemm"]
    assert node.attributes.get_float("alpha", 1.0) == node.attributes.get_float("beta", 1.0) == 1
    if len(node.inputs) > 2:
        assert constants_of(model)[node.inputs[2].name].shape == (6,)
    behind = ["Add"] if term in {"column", "matrix", "d", "e"} else []
    assert [op for op in op_types(model) if op == "Add"] == behind
    assert [name for n in model.ir.graph for name in n.meta["quantool.origins"]] == ["Gemm:y"]


@pytest.mark.parametrize("call", ["Gemm<transA=1>(xt, w, n)", "Gemm<transA=1, transB=1, alpha=2.0>(xt, v)"])
def test_a_transposed_left_side_is_transposed_beforehand(call: str) -> None:
    model = normalized(gemm(call), CONSTANTS, feed=FEED, only="gemm")
    assert op_types(model) == ["Transpose", "Gemm"]
    assert list(model.ir.graph[0].outputs[0].shape or ()) == [3, 4]


def test_a_constant_left_side_is_transposed_and_scaled_in_place() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (float[4, 6] z) => (float[3, 6] y) { y = Gemm<transA=1, alpha=2.0>(k, z) }
    """
    model = normalized(text, {"k": normal(4, 3)}, feed={"z": normal(4, 6)}, only="gemm")
    assert op_types(model) == ["Gemm"]
    np.testing.assert_array_equal(constants_of(model)["k"], normal(4, 3).T * np.float32(2))


def test_shared_constants_are_copied() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (float[3, 4] x) => (float[3, 6] y) {
      a = Gemm<alpha=2.0, beta=3.0>(x, w, row)  b = Gemm(x, w, row)  y = Add(a, b)
    }
    """
    constants = {name: CONSTANTS[name] for name in ("w", "row")}
    model = normalized(text, constants, feed={"x": normal(3, 4)}, only="gemm")
    found = constants_of(model)
    np.testing.assert_array_equal(found["w"], CONSTANTS["w"])
    np.testing.assert_array_equal(found["w_scaled"], 2 * CONSTANTS["w"])
    assert sorted(array.shape for name, array in found.items() if "row" in name) == [(6,), (6,)]


@pytest.mark.parametrize(
    ("call", "constants"),
    [("Gemm<transB=1>(x, v, n)", {}), ("Gemm<alpha=2.0>(x, f)", {}), ("Gemm(x, f, e)", {})],
    ids=["plain", "alpha-without-constant", "term-without-weight"],
)
def test_what_is_plain_or_has_no_weight_stays(call: str, constants: dict[str, AnyArray]) -> None:
    text = gemm(call).replace("float[6] d", "float[4, 6] f")
    model = model_of(text, CONSTANTS | constants)
    assert PASSES["gemm"](model) == 0
    assert op_types(model) == ["Gemm"]


def test_a_product_that_is_read_in_a_branch_is_the_whole_sum() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (float[3, 4] x, bool c) => (float[3, 6] y) {
      h = Gemm(x, w, matrix)
      y = If(c) <
        then_branch = t () => (float[3, 6] a) { a = Relu(h) },
        else_branch = e () => (float[3, 6] b) { b = Neg(h) }
      >
    }
    """
    for flag in (True, False):
        feed = {"x": normal(3, 4), "c": np.array(flag)}
        model = normalized(text, CONSTANTS, feed=feed, only="gemm")
    assert op_types(model) == ["Gemm", "Add", "If"]
