"""Bring Gemm to the one form that integer kernels take: A x B + C with a constant, one-dimensional C."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from quantool.graph.allocator import NameAllocator
from quantool.graph.normalize.constants import (
    add_constant,
    computed,
    float_tensor,
    set_constant,
    shape_of,
    tensor_of,
)
from quantool.graph.normalize.ledger import helper_node, take_over
from quantool.graph.scopes import graphs

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir

    from quantool.graph.model import Model
    from quantool.schema import AnyArray

TERM_OPTIONAL = 11
"""The opset from which Gemm's C may be absent."""


def simplify_gemms(model: Model) -> int:
    """Write alpha and beta into constants, C as [N] or as an Add of its own, and transA as a Transpose.

    alpha A B + beta C = A (alpha B) + (beta C). alpha stays where neither factor is a constant.
    """
    fresh = NameAllocator(model).fresh
    top = model.ir.graph
    opset = top.opset_imports.get("", 1)
    changes = 0
    for graph in graphs(top):
        for node in tuple(graph):
            if node.op_type == "Gemm" and not node.domain:
                rewrites = (
                    _fold_alpha(top, node, fresh=fresh),
                    _simplify_term(top, node, opset=opset, fresh=fresh),
                    _untranspose(top, node, fresh=fresh),
                )
                changes += any(rewrites)
    return changes


def _fold_alpha(top: onnx_ir.Graph, node: onnx_ir.Node, *, fresh: Callable[[str], str]) -> bool:
    alpha = node.attributes.get_float("alpha", 1.0)
    constant = next((index for index in (1, 0) if float_tensor(node.inputs[index]) is not None), None)
    if alpha == 1 or constant is None:
        return False
    value = node.inputs[constant]
    factor = float_tensor(value)
    assert value is not None
    assert factor is not None
    tensor = _scaled(factor, alpha)
    set_constant(top, node, constant, tensor=tensor, name=lambda: fresh(f"{value.name}_scaled"))
    del node.attributes["alpha"]
    return True


def _scaled(tensor: onnx_ir.TensorProtocol, factor: float) -> onnx_ir.TensorProtocol:
    def load() -> AnyArray:
        scaled: AnyArray = tensor.numpy().astype(np.float64) * factor
        return scaled

    return computed(load, dtype=tensor.dtype, shape=shape_of(tensor))


def _simplify_term(top: onnx_ir.Graph, node: onnx_ir.Node, *, opset: int, fresh: Callable[[str], str]) -> bool:
    """Bring C to [N] with beta folded in, or move it behind the Gemm; beta is 1 afterwards."""
    term = node.inputs[2] if len(node.inputs) > 2 else None
    beta = node.attributes.get_float("beta", 1.0)
    if term is None:
        node.attributes.pop("beta", None)
        return beta != 1
    columns, tensor = _columns(node), float_tensor(term)
    if columns is None:
        return False
    if tensor is not None and _is_row(shape_of(tensor), columns):
        if beta == 1 and shape_of(tensor) == (columns,):
            return False
        row = _row(tensor, beta, columns)
        set_constant(top, node, 2, tensor=row, name=lambda: fresh(f"{term.name}_row"))
    elif float_tensor(node.inputs[1]) is None:
        return False
    else:
        scaled = _scaled_term(top, node, beta, fresh=fresh)
        _drop_term(top, node, columns=columns, opset=opset, fresh=fresh)
        _add_behind(node, scaled, fresh=fresh)
    node.attributes.pop("beta", None)
    return True


def _columns(node: onnx_ir.Node) -> int | None:
    """N, from the constant B or from what is known of the output."""
    weight = float_tensor(node.inputs[1])
    if weight is not None and len(shape_of(weight)) == 2:
        return shape_of(weight)[0 if node.attributes.get_int("transB", 0) else 1]
    shape = node.outputs[0].shape
    last = shape[1] if shape is not None and len(shape) == 2 else None
    return last if isinstance(last, int) else None


def _is_row(shape: tuple[int, ...], columns: int) -> bool:
    """Whether a C of this shape adds the same row to every row of the result."""
    return math.prod(shape) in (1, columns) and all(dim == 1 for dim in shape[:-1])


def _row(tensor: onnx_ir.TensorProtocol, beta: float, columns: int) -> onnx_ir.TensorProtocol:
    def load() -> AnyArray:
        return np.broadcast_to(tensor.numpy().astype(np.float64).reshape(-1) * beta, (columns,))

    return computed(load, dtype=tensor.dtype, shape=(columns,))


def _scaled_term(top: onnx_ir.Graph, node: onnx_ir.Node, beta: float, *, fresh: Callable[[str], str]) -> onnx_ir.Value:
    """The tensor beta * C: C itself, a constant, or what a Mul before the Gemm writes."""
    term, weight = node.inputs[2], float_tensor(node.inputs[1])
    assert term is not None
    assert weight is not None
    if beta == 1:
        return term
    constant = float_tensor(term)
    if constant is not None:
        return add_constant(top, fresh(f"{term.name}_scaled"), _scaled(constant, beta))
    tensor = computed(lambda: np.asarray(beta), dtype=weight.dtype, shape=())
    factor = add_constant(top, fresh(f"{node.name}_beta"), tensor)
    scaling = helper_node("Mul", [term, factor], name=fresh(f"{node.name}_scale_term"))
    scaling.outputs[0].name = fresh(f"{term.name}_scaled")
    node.prepend(scaling)
    return scaling.outputs[0]


def _drop_term(
    top: onnx_ir.Graph, node: onnx_ir.Node, *, columns: int, opset: int, fresh: Callable[[str], str]
) -> None:
    if opset >= TERM_OPTIONAL:
        node.resize_inputs(2)
        return
    weight = float_tensor(node.inputs[1])
    assert weight is not None
    zeros = computed(lambda: np.zeros(columns), dtype=weight.dtype, shape=(columns,))
    node.replace_input_with(2, add_constant(top, fresh(f"{node.name}_zeros"), zeros))


def _add_behind(node: onnx_ir.Node, term: onnx_ir.Value, *, fresh: Callable[[str], str]) -> None:
    """Let an Add write what the Gemm wrote, and read what it writes now."""
    product = node.outputs[0]
    addition = helper_node("Add", [], name=fresh(f"{node.name}_add_term"))
    take_over(addition.outputs[0], product)
    product.name, product.doc_string = fresh(f"{node.name}_product"), None
    addition.resize_inputs(2)
    addition.replace_input_with(0, product)
    addition.replace_input_with(1, term)
    node.append(addition)


def _untranspose(top: onnx_ir.Graph, node: onnx_ir.Node, *, fresh: Callable[[str], str]) -> bool:
    """Transpose A beforehand, so that its rows are the samples."""
    import onnx_ir

    left = node.inputs[0]
    if left is None or not node.attributes.get_int("transA", 0):
        return False
    del node.attributes["transA"]
    tensor = tensor_of(left)
    if tensor is not None:
        shape = shape_of(tensor)
        turned = computed(lambda: tensor.numpy().T, dtype=tensor.dtype, shape=(shape[1], shape[0]))
        set_constant(top, node, 0, tensor=turned, name=lambda: fresh(f"{left.name}_transposed"))
        return True
    transpose = helper_node("Transpose", [left], name=fresh(f"{node.name}_transpose"), perm=(1, 0))
    output = transpose.outputs[0]
    output.name, output.type = fresh(f"{left.name}_transposed"), left.type
    output.shape = None if left.shape is None else onnx_ir.Shape(tuple(left.shape)[::-1])
    node.prepend(transpose)
    node.replace_input_with(0, output)
    return True
