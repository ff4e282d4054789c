from __future__ import annotations

import numpy as np
import onnx_ir
import pytest

from quantool.graph.normalize import constants as constants_module
from quantool.graph.normalize import normalize

from .text_model import constants_of, model_of, normal, normalized, op_types

W = normal(4, 6)
AXES = np.array([0], np.int64)

WEIGHTS = [
    pytest.param("w = Transpose(c)", {"c": W.T.copy()}, id="transpose"),
    pytest.param("w = Transpose<perm=[1, 0]>(c)", {"c": W.T.copy()}, id="transpose-perm"),
    pytest.param("w = Reshape(c, s)", {"c": W.reshape(2, 12), "s": np.array([4, -1])}, id="reshape"),
    pytest.param("w = Reshape(c, s)", {"c": W.reshape(4, 2, 3), "s": np.array([0, 6])}, id="reshape-zero"),
    pytest.param("w = Identity(c)", {"c": W}, id="identity"),
    pytest.param("w = Cast<to=1>(c)", {"c": W.astype(np.float16)}, id="cast-half"),
    pytest.param("w = Cast<to=1>(c)", {"c": (W * 9).astype(np.int8)}, id="cast-integers"),
    pytest.param("w = Mul(c, f)", {"c": W, "f": np.float32(0.3)}, id="mul"),
    pytest.param("w = Div(c, f)", {"c": W, "f": np.float32([0.3, 2, 3, 4, 5, 6])}, id="div-columns"),
    pytest.param("w = Sub(f, c)", {"c": W, "f": np.float32(0.3)}, id="sub"),
    pytest.param("w = Flatten<axis=-2>(c)", {"c": W.reshape(4, 2, 3)}, id="flatten"),
    pytest.param("w = Squeeze(c, a)", {"c": W[None], "a": AXES}, id="squeeze"),
    pytest.param("w = Squeeze(c)", {"c": W[None]}, id="squeeze-all"),
    pytest.param("v = Unsqueeze(c, a)  w = Squeeze(v, a)", {"c": W, "a": AXES}, id="unsqueeze"),
    pytest.param("v = Transpose(c)  u = Cast<to=1>(v)  w = Identity(u)", {"c": W.T.astype(np.float64)}, id="chain"),
]


@pytest.mark.parametrize(("nodes", "constants"), WEIGHTS)
def test_weights_behind_nodes_become_constants(nodes: str, constants: dict[str, np.ndarray]) -> None:
    text = f"""
    <ir_version: 8, opset_import: ["": 13]>
    g (float[3, 4] x) => (float[3, 6] y) {{ {nodes}  y = MatMul(x, w) }}
    """
    given = {node.name for node in model_of(text, constants).ir.graph}
    model = normalized(text, constants, feed={"x": normal(3, 4)})
    assert op_types(model) == ["MatMul"]
    assert len(model.ir.graph.initializers) == 1
    assert model.absorbed == {name: "" for name in given if name != "MatMul:y"}


def test_axes_may_be_attributes() -> None:
    text = """
    <ir_version: 6, opset_import: ["": 11]>
    g (float[3, 4] x) => (float[3, 6] y) {
      v = Unsqueeze<axes=[-1]>(c)  w = Squeeze<axes=[2]>(v)  y = MatMul(x, w)
    }
    """
    assert op_types(normalized(text, {"c": W}, feed={"x": normal(3, 4)})) == ["MatMul"]


def test_a_reshape_knows_zero_sizes_only_without_allowzero() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 14]>
    g (float[0, 2] x) => (float[0, 2] y) { w = Reshape<allowzero=1>(c, s)  y = Add(x, w) }
    """
    constants = {"c": np.zeros((2, 0), np.float32), "s": np.array([0, 2])}
    model = normalized(text, constants, feed={"x": np.zeros((0, 2), np.float32)})
    assert op_types(model) == ["Add"]


@pytest.mark.parametrize(
    ("nodes", "kept"),
    [("v = Cast<to=7>(c)  y = Cast<to=1>(v)", 2), ("y = Identity(c)", 1), ("v = Div(d, d)  y = Cast<to=1>(v)", 2)],
    ids=["fractions-to-integers", "constant-as-output", "integer-division"],
)
def test_what_the_runtime_does_its_own_way_stays(nodes: str, kept: int) -> None:
    text = f"""
    <ir_version: 8, opset_import: ["": 13]> g (float[1] x) => (float[4, 6] y) {{ {nodes} }}
    """
    constants = {"c": W, "d": np.arange(1, 25).reshape(4, 6)}
    assert len(op_types(normalized(text, constants, feed={"x": np.zeros(1, np.float32)}))) == kept


def test_arithmetic_does_not_make_large_constants_out_of_small_ones() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (float[100, 100] x) => (float[100, 100] y) { w = Mul(a, b)  y = Add(x, w) }
    """
    constants = {"a": normal(100, 1), "b": normal(1, 100)}
    assert op_types(normalized(text, constants, feed={"x": normal(100, 100)})) == ["Mul", "Add"]


def test_constants_in_a_branch_are_folded_too() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (float[3, 4] x, bool c) => (float[3, 6] y) {
      y = If(c) <
        then_branch = t () => (float[3, 6] a) { v = Transpose(k)  a = MatMul(x, v) },
        else_branch = e () => (float[3, 6] b) { u = Transpose(k)  b = MatMul(x, u) }
      >
    }
    """
    for flag in (True, False):
        feed = {"x": normal(3, 4), "c": np.array(flag)}
        model = normalized(text, {"k": W.T.copy()}, feed=feed)
    assert set(constants_of(model)) == {"v", "u"}


def test_a_tied_weight_keeps_its_other_reader() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (int64[3] x) => (float[3, 4] y) { e = Gather(k, x)  w = Transpose(k)  y = MatMul(e, w) }
    """
    model = normalized(text, {"k": W}, feed={"x": np.array([2, 0, 3])})
    assert op_types(model) == ["Gather", "MatMul"]
    assert set(constants_of(model)) == {"k", "w"}


def test_a_large_weight_is_computed_when_it_is_read() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (float[1, 300] x) => (float[1, 300] y) { v = Transpose(c)  w = Mul(v, f)  y = MatMul(x, w) }
    """
    weight = normal(300, 300)
    assert weight.size > constants_module.EAGER_ELEMENTS
    model = normalized(text, {"c": weight, "f": np.float32(3)}, feed={"x": normal(1, 300)})
    tensor = model.ir.graph.initializers["w"].const_value
    assert isinstance(tensor, onnx_ir.LazyTensor)
    np.testing.assert_array_equal(tensor.numpy(), weight.T * np.float32(3))


def test_an_unknown_pass_is_refused() -> None:
    model = model_of('<ir_version: 8, opset_import: ["": 13]> g (float[1] x) => (float[1] y) { y = Neg(x) }')
    with pytest.raises(ValueError, match="fold-everything"):
        normalize(model, skip=["fold-everything"])


def test_a_skipped_pass_does_not_run() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (float[3, 4] x) => (float[3, 6] y) { w = Transpose(c)  y = MatMul(x, w) }
    """
    model = model_of(text, {"c": W.T.copy()})
    assert normalize(model, skip=["fold-constants"]) == ()
    assert normalize(model) == ("fold-constants",)
    assert normalize(model) == ()
