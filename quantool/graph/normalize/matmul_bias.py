"""Bring a MatMul with a bias to forms that ONNX Runtime leaves alone.

Its MatMulAddFusion turns MatMul + Add of a row into a Gemm whose bias is float: no integer kernel takes that. A
MatMul of matrices becomes that Gemm here, where the bias can become int32. Of larger operands only those of fully
known shape are fused: there the row gets a second axis, which the fusion does not match.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantool.graph.allocator import NameAllocator
from quantool.graph.normalize.constants import computed, float_tensor, set_constant, shape_of
from quantool.graph.normalize.ledger import absorb_reader
from quantool.graph.scopes import graphs

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir

    from quantool.graph.model import Model


def settle_biases(model: Model) -> int:
    """Rewrite every MatMul by a constant matrix whose only reader adds a constant row."""
    fresh = NameAllocator(model).fresh
    changes = 0
    for graph in graphs(model.ir.graph):
        for node in tuple(graph):
            if node.op_type == "MatMul" and not node.domain and (found := _added_row(node)) is not None:
                changes += _settle(model, node, *found, fresh=fresh)
    return changes


def _added_row(node: onnx_ir.Node) -> tuple[onnx_ir.Node, int] | None:
    """The Add behind a MatMul and the index of its constant row, or None."""
    weight, product = float_tensor(node.inputs[1]), node.outputs[0]
    uses = tuple(product.uses())
    if weight is None or len(shape_of(weight)) != 2 or product.is_graph_output() or len(uses) != 1:
        return None
    addition, index = uses[0]
    row = float_tensor(addition.inputs[1 - index]) if addition.op_type == "Add" and not addition.domain else None
    if addition.graph is not node.graph or row is None or row.dtype != weight.dtype:
        return None
    shape = shape_of(row)
    is_row = bool(shape) and shape[-1] == shape_of(weight)[1] and all(dim == 1 for dim in shape[:-1])
    return (addition, 1 - index) if is_row else None


def _settle(
    model: Model, node: onnx_ir.Node, addition: onnx_ir.Node, index: int, *, fresh: Callable[[str], str]
) -> bool:
    left, top = node.inputs[0], model.ir.graph
    shape = None if left is None else left.shape
    row = float_tensor(addition.inputs[index])
    bias = addition.inputs[index]
    assert row is not None
    assert bias is not None
    columns = shape_of(row)[-1]
    if shape is not None and len(shape) == 2 and len(shape_of(row)) <= 2:
        flat = computed(lambda: row.numpy().reshape(-1), dtype=row.dtype, shape=(columns,))
        set_constant(top, addition, index, tensor=flat, name=lambda: fresh(f"{bias.name}_row"))
        _become_gemm(model, node, addition, index)
        return True
    if shape is None or len(shape) < 3 or not shape.is_static() or len(shape_of(row)) > 1:
        return False
    tall = computed(lambda: row.numpy().reshape(1, -1), dtype=row.dtype, shape=(1, columns))
    set_constant(top, addition, index, tensor=tall, name=lambda: fresh(f"{bias.name}_row"))
    return True


def _become_gemm(model: Model, node: onnx_ir.Node, addition: onnx_ir.Node, index: int) -> None:
    """Turn the MatMul into a Gemm that adds the row itself."""
    row = addition.inputs[index]
    node.op_type = "Gemm"
    node.resize_inputs(3)
    node.replace_input_with(2, row)
    absorb_reader(model, addition, into=node)
