from __future__ import annotations

import gc
import time

import ml_dtypes
import numpy as np
import onnx
import onnx_ir
import pytest

from quantool.edits import AddInitializer, AddNode, Edit, RemoveNode, RenameOutput, SetInput, SetOpset
from quantool.graph import edit
from quantool.graph.allocator import NameAllocator
from quantool.graph.model import Model
from quantool.schema import AnyArray

from .text_model import model_of, normal, op_types, run

MATMUL = """
<ir_version: 8, opset_import: ["": 13]>
g (float[2, 3] x) => (float[2, 4] y) { y = MatMul(x, w) }
"""
BRANCHES = """
<ir_version: 8, opset_import: ["": 13]>
g (float[2, 3] x, bool c) => (float[2, 4] y) {
  h = Relu(x)
  y = If(c) <
    then_branch = t () => (float[2, 4] a) { a = MatMul(h, w) },
    else_branch = e () => (float[2, 4] b) { m = MatMul(h, w)  b = Neg(m) }
  >
}
"""


def constant(name: str, array: AnyArray) -> AddInitializer:
    return AddInitializer(name=name, dtype=str(array.dtype), shape=array.shape, load=lambda: array)


def matmul() -> Model:
    return model_of(MATMUL, {"w": normal(3, 4)})


def quantize(tensor: str, *, reader: str, near: str) -> list[Edit]:
    """Q and DQ between a tensor and one of its readers."""
    scale, zero_point = np.float32(0.05), np.uint8(128)
    parameters = (f"{tensor}_scale", f"{tensor}_zero_point")
    return [
        SetInput(reader, 0, f"{tensor}_dq"),
        AddNode(
            op_type="DequantizeLinear",
            name=f"{tensor}/dq",
            inputs=(f"{tensor}_q", *parameters),
            outputs=(f"{tensor}_dq",),
            near=near,
        ),
        AddNode(
            op_type="QuantizeLinear",
            name=f"{tensor}/q",
            inputs=(tensor, *parameters),
            outputs=(f"{tensor}_q",),
            near=near,
        ),
        constant(parameters[0], np.asarray(scale)),
        constant(parameters[1], np.asarray(zero_point)),
    ]


def test_edits_may_come_in_any_order() -> None:
    x = normal(2, 3)
    forward, backward = matmul(), matmul()
    edits = quantize("x", reader="MatMul:y", near="MatMul:y")
    edit.apply(forward, edits)
    edit.apply(backward, edits[::-1])
    assert op_types(forward) == op_types(backward) == ["QuantizeLinear", "DequantizeLinear", "MatMul"]
    np.testing.assert_array_equal(run(forward, {"x": x})[0], run(backward, {"x": x})[0])
    assert np.abs(run(forward, {"x": x})[0] - x @ normal(3, 4)).max() <= 0.025 * np.abs(normal(3, 4)).sum(0).max()


def test_written_types_of_q_and_dq_are_known() -> None:
    model = matmul()
    edit.apply(model, quantize("x", reader="MatMul:y", near="MatMul:y"))
    types = {v.name: (v.type.elem_type, list(v.shape)) for n in model.ir.graph for v in n.outputs if v.type and v.shape}
    assert types["x_q"] == (onnx_ir.DataType.UINT8, [2, 3])
    assert types["x_dq"] == (onnx_ir.DataType.FLOAT, [2, 3])


def test_a_graph_output_keeps_its_name_when_its_writer_gets_another() -> None:
    model = matmul()
    edits = [
        RenameOutput("y", "y_float"),
        AddNode(op_type="Neg", name="n", inputs=("y_float",), outputs=("y",), near="MatMul:y"),
    ]
    edit.apply(model, edits)
    x = normal(2, 3)
    np.testing.assert_allclose(run(model, {"x": x})[0], -(x @ normal(3, 4)), rtol=1e-5)
    assert [value.name for value in model.ir.graph.outputs] == ["y"]
    assert list(model.ir.graph.outputs[0].shape or ()) == [2, 4]


def test_readers_follow_a_renamed_output() -> None:
    model = model_of(
        '<ir_version: 8, opset_import: ["": 13]> g (float[2] x) => (float[2] z) { y = Neg(x)  z = Abs(y) }'
    )
    edit.apply(model, [RenameOutput("y", "inner")])
    assert [node.inputs[0].name for node in model.ir.graph if node.inputs[0]] == ["x", "inner"]


def test_a_node_is_replaced_by_one_that_writes_the_same_tensor() -> None:
    model = matmul()
    edits = [
        AddNode(op_type="Gemm", name="new", inputs=("x", "w"), outputs=("y",), near="MatMul:y"),
        RemoveNode("MatMul:y"),
    ]
    edit.apply(model, edits)
    assert op_types(model) == ["Gemm"]
    np.testing.assert_allclose(run(model, {"x": normal(2, 3)})[0], normal(2, 3) @ normal(3, 4), rtol=1e-5)


def test_removing_a_node_that_holds_graphs_frees_what_they_read() -> None:
    model = model_of(BRANCHES, {"w": normal(3, 4)})
    edits = [
        RemoveNode("If:y"),
        AddNode(op_type="Gather", name="new", inputs=("h", "picks"), outputs=("y",), attributes={"axis": 1}),
        constant("picks", np.array([0, 1, 2, 0])),
    ]
    edit.apply(model, edits)
    assert "w" not in model.ir.graph.initializers
    np.testing.assert_array_equal(
        run(model, {"x": normal(2, 3), "c": np.array(True)})[0], np.maximum(normal(2, 3), 0)[:, [0, 1, 2, 0]]
    )


def test_a_branch_gets_nodes_of_its_own() -> None:
    model = model_of(BRANCHES, {"w": normal(3, 4)})
    edit.apply(model, quantize("h", reader="MatMul:m", near="MatMul:m"))
    assert op_types(model) == ["Relu", "If"]
    branch = model.ir.graph[1].attributes["else_branch"].as_graph()
    assert [node.op_type for node in branch] == ["QuantizeLinear", "DequantizeLinear", "MatMul", "Neg"]
    outputs = [run(model, {"x": normal(2, 3), "c": np.array(flag)})[0] for flag in (True, False)]
    assert np.abs(outputs[0] + outputs[1]).max() <= 0.025 * np.abs(normal(3, 4)).sum(0).max()


def test_a_tensor_that_a_branch_captures_can_be_written_anew() -> None:
    model = model_of(BRANCHES, {"w": normal(3, 4)})
    edits = [
        RenameOutput("h", "h_float"),
        AddNode(op_type="Abs", name="abs", inputs=("h_float",), outputs=("h_abs",)),
        SetInput("MatMul:a", 0, "h_abs"),
    ]
    edit.apply(model, edits)
    assert op_types(model) == ["Relu", "Abs", "If"]
    run(model, {"x": normal(2, 3), "c": np.array(True)})


def stored(dtype: str, codes: AnyArray) -> onnx.TensorProto:
    """What the file holds for codes of a type."""
    model = matmul()
    edits = [
        AddInitializer(name="c", dtype=dtype, shape=codes.shape, load=lambda: codes),
        AddNode(op_type="Shape", name="reader", inputs=("c",), outputs=("unread",)),
    ]
    edit.apply(model, edits)
    return next(t for t in onnx_ir.to_proto(model.ir).graph.initializer if t.name == "c")


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2", "int8", "uint16", "float8_e4m3fn", "bool"])
def test_constants_of_every_width_survive(dtype: str) -> None:
    codes = np.array([[0, 1, 1], [1, 0, 1]]).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    tensor = stored(dtype, codes)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), codes)
    assert len(tensor.raw_data) == -(-6 * edit.data_type(dtype).bitwidth // 8)


def test_four_bit_codes_may_come_in_bytes() -> None:
    codes = np.array([-8, 7, 3], np.int8)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(stored("int4", codes)).astype(np.int8), codes)


def test_a_constant_is_loaded_only_when_the_model_is_written() -> None:
    loads = []

    def load() -> AnyArray:
        loads.append(1)
        return normal(3, 4)

    model = matmul()
    edits = [
        AddInitializer(name="v", dtype="float32", shape=(3, 4), load=load),
        SetInput("MatMul:y", 1, "v"),
    ]
    edit.apply(model, edits)
    assert not loads
    assert list(model.ir.graph.initializers) == ["v"]
    onnx_ir.to_proto(model.ir)
    assert loads == [1]


def test_inputs_can_be_added_and_made_absent() -> None:
    model = model_of(
        '<ir_version: 8, opset_import: ["": 13]> g (float[2] x) => (float[2] y) { y = Clip(x) }',
    )
    edit.apply(model, [constant("top", np.asarray(np.float32(0.5))), SetInput("Clip:y", 2, "top")])
    np.testing.assert_array_equal(run(model, {"x": np.float32([-1, 1])})[0], np.float32([-1, 0.5]))
    edit.apply(model, [SetInput("Clip:y", 2, "")])
    assert len(model.ir.graph[0].inputs) == 1
    assert not model.ir.graph.initializers


@pytest.mark.parametrize("replaced", [False, True], ids=["rewired", "replaced"])
def test_a_data_mover_that_now_reads_integers_loses_its_float_type(replaced: bool) -> None:
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (float[2, 3] x) => (float[3, 2] y) { a = Transpose(x)  b = Identity(a)  y = Neg(b) }
    """
    model = model_of(text)
    parameters = (
        constant("scale", np.asarray(np.float32(0.05))),
        constant("zero", np.asarray(np.uint8(128))),
    )
    q = AddNode(op_type="QuantizeLinear", name="q", inputs=("x", "scale", "zero"), outputs=("x_q",))
    dq = AddNode(op_type="DequantizeLinear", name="dq", inputs=("b", "scale", "zero"), outputs=("b_float",))
    edits: list[Edit] = [*parameters, q, dq, SetInput("Neg:y", 0, "b_float")]
    if replaced:
        mover = AddNode(op_type="Transpose", name="mover", inputs=("x_q",), outputs=("a",))
        edits += [RemoveNode("Transpose:a"), mover]
    else:
        edits.append(SetInput("Transpose:a", 0, "x_q"))
    edit.apply(model, edits)
    x = normal(2, 3)
    assert np.abs(run(model, {"x": x})[0] + x.T).max() <= 0.025 + 1e-6


def test_an_opset_is_raised_with_its_ir_version_and_never_lowered() -> None:
    model = matmul()
    edit.apply(model, [SetOpset("ai.onnx", 21), SetOpset("com.microsoft", 1)])
    assert model.ir.opset_imports == {"": 21, "com.microsoft": 1}
    assert model.ir.ir_version == 10
    edit.apply(model, [SetOpset("", 13)])
    assert model.ir.opset_imports[""] == 21


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([RemoveNode("nobody")], "no node 'nobody'"),
        ([SetInput("nobody", 0, "x")], "no node 'nobody'"),
        ([SetInput("MatMul:y", 0, "nothing")], "no node writes the tensor 'nothing', which 'MatMul:y' read"),
        ([RenameOutput("x", "z")], "no node writes a tensor 'x'"),
        ([RenameOutput("y", "w")], "'w' for 'y' is taken"),
        ([RenameOutput("y", "z")], "no node writes the tensor 'y', which the graph's outputs read"),
        ([RemoveNode("MatMul:y")], "no node writes the tensor 'y'"),
        ([AddNode(op_type="Neg", name="n", inputs=("x",), outputs=("y",))], "'y' has a writer"),
        ([AddNode(op_type="Neg", name="MatMul:y", inputs=("x",), outputs=("z",))], "'MatMul:y' is taken"),
        ([AddNode(op_type="Neg", name="n", inputs=("x",), outputs=("z",), near="no")], "no node 'no'"),
        ([constant("w", np.zeros(1))], "'w' has a writer"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(type(e).__name__ for e in value),
)
def test_an_edit_of_something_unknown_is_refused(edits: list[Edit], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        edit.apply(matmul(), edits)


def test_a_constant_of_another_shape_than_announced_is_refused() -> None:
    model = matmul()
    edits = [
        AddInitializer(name="v", dtype="float32", shape=(4, 3), load=lambda: normal(3, 4)),
        SetInput("MatMul:y", 1, "v"),
    ]
    edit.apply(model, edits)
    with pytest.raises(ValueError, match="'v' has shape"):
        model.ir.graph.initializers["v"].const_value.numpy()


def test_names_are_new_in_every_scope() -> None:
    model = model_of(BRANCHES, {"w": normal(3, 4)})
    allocator = NameAllocator(model)
    bases = ["x", "y", "m", "a", "w", "MatMul:m", "free", "free", "free", "m"]
    assert [allocator.fresh(base) for base in bases] == [
        "x_1", "y_1", "m_1", "a_1", "w_1", "MatMul:m_1", "free", "free_1", "free_2", "m_2",
    ]  # fmt: skip


def chain(length: int) -> Model:
    nodes = [onnx.helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(length)]
    graph = onnx.helper.make_graph(
        nodes,
        "chain",
        [onnx.helper.make_tensor_value_info("t0", onnx.TensorProto.FLOAT, [1])],
        [onnx.helper.make_tensor_value_info(f"t{length}", onnx.TensorProto.FLOAT, [1])],
    )
    ir_model = onnx_ir.from_proto(onnx.helper.make_model(graph))
    return Model(ir=ir_model, source=matmul().source, given=())


def test_time_is_linear_in_the_edits() -> None:
    def cost(length: int) -> float:
        edits = [e for i in range(length) for e in quantize(f"t{i}", reader=f"n{i}", near=f"n{i}")]
        model = chain(length)
        start = time.process_time()
        edit.apply(model, edits)
        return time.process_time() - start

    assert cost(4000) <= 8 * cost(1000)  # linear is 4, quadratic 16


def test_the_garbage_collector_is_as_before_after_an_edit() -> None:
    edit.apply(matmul(), [])
    assert gc.isenabled()
    with pytest.raises(ValueError, match="nobody"):
        edit.apply(matmul(), [RemoveNode("nobody")])
    assert gc.isenabled()


def test_a_scalar_stays_a_scalar() -> None:
    assert stored("float32", np.asarray(np.float32(0.5))).dims == []
