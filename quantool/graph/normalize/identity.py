"""Take out nodes that change nothing: Identity, Dropout at inference, Cast to the type that is there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantool.graph.normalize.constants import tensor_of
from quantool.graph.normalize.ledger import absorb, take_over
from quantool.graph.scopes import graphs

if TYPE_CHECKING:
    import onnx_ir

    from quantool.graph.model import Model


def drop_identities(model: Model) -> int:
    """Let readers of y = x read x.

    A node between a graph's input and its output stays, as does one that brings a tensor of an outer scope or a
    constant to an output: the output needs a writer.
    """
    changes = 0
    for graph in graphs(model.ir.graph):
        for node in tuple(graph):
            if _is_identity(node) and _drop(model, node):
                changes += 1
    return changes


def _is_identity(node: onnx_ir.Node) -> bool:
    if node.domain or not node.inputs or node.inputs[0] is None:
        return False
    if node.op_type == "Dropout":
        return not any(_is_read(mask) for mask in node.outputs[1:]) and _is_inference(node)
    if node.op_type == "Cast":
        return node.inputs[0].dtype is not None and node.inputs[0].dtype == node.attributes["to"].as_int()
    return node.op_type == "Identity"


def _is_read(value: onnx_ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _is_inference(dropout: onnx_ir.Node) -> bool:
    if len(dropout.inputs) < 3 or dropout.inputs[2] is None:
        return True
    flag = tensor_of(dropout.inputs[2])
    return flag is not None and not flag.numpy().any()


def _drop(model: Model, node: onnx_ir.Node) -> bool:
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    writer = source.producer()
    if result.is_graph_output():
        if writer is None or writer.graph is not node.graph or source.is_graph_output():
            return False
        take_over(source, result)
        absorb(model, node, into=writer)
        return True
    heir = writer or next(iter(result.consumers()), None)
    if heir is None:
        return False
    result.replace_all_uses_with(source)
    absorb(model, node, into=None if tensor_of(source) is not None else heir)
    return True
