from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir
import pytest

from quantool.graph.normalize import PASSES, normalize
from quantool.graph.scopes import graphs
from quantool.schema import AnyArray

from .text_model import constants_of, model_of, noise, normal, op_types, run

TYPES = [
    pytest.param("float16", np.dtype(np.float16), 1e-5, id="float16"),
    pytest.param("double", np.dtype(np.float64), 1e-12, id="float64"),
]
NET = """
<ir_version: 8, opset_import: ["": 13]>
g (T[3, 4] x) => (T[3, 6] y) { h = MatMul(x, w)  y = Relu(h) }
"""


def other_floats(text: str, name: str) -> str:
    return text.replace("T[", f"{name}[")


def inner_types(text: str, constants: dict[str, AnyArray]) -> set[str]:
    """The float types left between the Casts at the graph's ends."""
    model = model_of(text, constants)
    normalize(model)
    ends = {*model.ir.graph.inputs, *model.ir.graph.outputs}
    values = {v for g in graphs(model.ir.graph) for n in g for v in (*n.inputs, *n.outputs) if v and v not in ends}
    return {v.dtype.name for v in values if v.dtype is not None and v.dtype.is_floating_point()}


@pytest.mark.parametrize(("name", "dtype", "tolerance"), TYPES)
def test_the_inside_is_float32_and_the_ends_keep_their_types(
    name: str, dtype: np.dtype[np.generic], tolerance: float
) -> None:
    text, constants = other_floats(NET, name), {"w": normal(4, 6).astype(dtype)}
    model = model_of(text, constants)
    before = run(model, {"x": normal(3, 4).astype(dtype)})
    assert normalize(model) == ("widen",)
    after = run(model, {"x": normal(3, 4).astype(dtype)})
    assert op_types(model) == ["Cast", "MatMul", "Relu", "Cast"]
    assert after[0].dtype == dtype
    assert noise(before[0], after[0]) <= tolerance
    assert constants_of(model)["w"].dtype == np.float32
    assert inner_types(text, constants) == {"FLOAT"}
    assert [value.name for value in (*model.ir.graph.inputs, *model.ir.graph.outputs)] == ["x", "y"]
    assert model.ir.graph[0].meta["quantool.origins"] == ()


def test_a_float32_model_stays() -> None:
    model = model_of(other_floats(NET, "float"), {"w": normal(4, 6)})
    assert normalize(model) == ()


def test_bfloat16_is_widened() -> None:
    constants = {"w": normal(4, 6).astype(ml_dtypes.bfloat16)}
    model = model_of(other_floats(NET, "bfloat16"))
    model.ir.graph.register_initializer(
        onnx_ir.Value(
            name="w",
            type=onnx_ir.TensorType(onnx_ir.DataType.BFLOAT16),
            shape=onnx_ir.Shape([4, 6]),
            const_value=onnx_ir.Tensor(constants["w"], dtype=onnx_ir.DataType.BFLOAT16),
        )
    )
    model.ir.graph[0].replace_input_with(1, model.ir.graph.initializers["w"])
    assert PASSES["widen"](model) == 4
    np.testing.assert_array_equal(constants_of(model)["w"], constants["w"].astype(np.float32))


def test_integers_booleans_and_casts_to_them_stay() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (int64[3] i, float16[3] x) => (float16[3] y, int64[3] k) {
      h = Cast<to=10>(i)  a = Mul(h, x)  z = ConstantOfShape<value: tensor = float16[1] {2}>(s)
      b = Less(a, z)  y = Where(b, a, h)  k = Cast<to=7>(a)
    }
    """
    model = model_of(text, {"s": np.array([3])})
    feed = {"i": np.array([1, 2, 3]), "x": np.float16([0.5, 1.5, -2])}
    before = run(model, feed)
    normalize(model)
    for expected, now in zip(before, run(model, feed), strict=True):
        np.testing.assert_array_equal(now, expected)
    assert inner_types(text, {"s": np.array([3])}) == {"FLOAT"}


def test_a_model_with_casts_at_its_ends_gets_no_second_ones() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (float16[3] x, float[3] z) => (float16[3] y, float[3] v) {
      a = Cast<to=1>(x)  b = Neg(a)  y = Cast<to=10>(b)
      c = Cast<to=10>(z)  d = Abs(c)  v = Cast<to=1>(d)
    }
    """
    model = model_of(text)
    normalize(model)
    assert op_types(model) == ["Cast", "Neg", "Cast", "Abs"]
    x = np.float16([0.5, 1.5, -2])
    outputs = run(model, {"x": x, "z": x.astype(np.float32)})
    np.testing.assert_array_equal(outputs[0], -x)
    np.testing.assert_array_equal(outputs[1], np.abs(x).astype(np.float32))


def test_an_input_and_a_constant_passed_to_outputs_stay_exact() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (float16[3] x) => (float16[3] x, float16[3] k, float16[3] y, float16[3] h) { h = Add(x, k)  y = Neg(h) }
    """
    constants = {"k": np.float16([1, 2, 3])}
    model = model_of(text, constants)
    feed = {"x": np.float16([0.1, 0.2, 0.3])}
    before = run(model, feed)
    assert "widen" in normalize(model)
    for expected, now in zip(before, run(model, feed), strict=True):
        assert now.dtype == np.float16
        np.testing.assert_array_equal(now, expected)


def test_branches_and_loops_are_widened_as_well() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (float16[3] x, bool c) => (float16[3] y, float16[n, 3] scan) {
      z = If(c) <
        then_branch = t () => (float16[3] a) { a = Add(x, k) },
        else_branch = e () => (float16[3] b) { b = Neg(x) }
      >
      y, scan = Loop(m, "", z) <
        body = l (int64 i, bool go, float16[3] s) => (bool again, float16[3] n, float16[3] o) {
          again = Identity(go)  n = Add(s, x)  o = Mul(n, k)
        }
      >
    }
    """
    constants = {"k": np.float16([1, 2, 3]), "m": np.array(3)}
    for flag in (True, False):
        model = model_of(text, constants)
        feed = {"x": np.float16([0.5, 0.25, 2]), "c": np.array(flag)}
        before = run(model, feed)
        normalize(model)
        for expected, now in zip(before, run(model, feed), strict=True):
            np.testing.assert_array_equal(now, expected)
    assert inner_types(text, constants) == {"FLOAT"}


@pytest.mark.parametrize(
    ("nodes", "where"),
    [
        ("y = my.Op(x)", "Op:y"),
        ("s = SequenceConstruct(x, x)  y = ConcatFromSequence<axis=0>(s)", "SequenceConstruct:s"),
        ("b = BitCast<to=5>(x)  y = Cast<to=10>(b)", "BitCast:b"),
        ("s = SequenceEmpty<dtype=10>()  t = SequenceInsert(s, x)  y = SequenceAt(t, k)", "SequenceEmpty:s"),
    ],
    ids=["custom-domain", "sequence", "bits", "empty-sequence"],
)
def test_a_node_that_may_not_accept_float32_keeps_the_model_as_it_is(nodes: str, where: str) -> None:
    text = f"""
    <ir_version: 8, opset_import: ["": 13, "my": 1]> g (float16[3] x) => (float16[n] y) {{ {nodes} }}
    """
    model = model_of(text, {"k": np.array(0)})
    assert PASSES["widen"](model) == 0
    [note] = model.notes
    assert (note.code, note.where) == ("not-widened", where)
    assert {value.dtype.name for value in model.ir.graph.inputs if value.dtype} == {"FLOAT16"}


def test_numbers_beyond_float32_become_its_largest_and_infinity_stays() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 13]> g (double[4] x) => (double[4] y) { y = Add(x, k) }
    """
    model = model_of(text, {"k": np.array([-1e300, 1e300, -np.inf, 1.0])})
    normalize(model)
    largest = np.finfo(np.float32).max
    np.testing.assert_array_equal(constants_of(model)["k"], np.float32([-largest, largest, -np.inf, 1]))
