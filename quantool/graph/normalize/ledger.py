"""Taking nodes out of a graph while keeping account of what stands for them afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantool.graph.edit import detach
from quantool.graph.model import ORIGINS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir

    from quantool.graph.model import Model
    from quantool.schema import AttributeValue


def origins(node: onnx_ir.Node) -> tuple[str, ...]:
    """The nodes of the model as given that a node stands for."""
    names: tuple[str, ...] = node.meta.get(ORIGINS, ())
    return names


def absorb(model: Model, node: onnx_ir.Node, *, into: onnx_ir.Node | None) -> None:
    """Take a node away that nobody reads; `into` stands for it from now on, or None where it became a constant."""
    for origin in origins(node):
        model.absorbed[origin] = "" if into is None else into.name or ""
    if into is not None:
        into.meta[ORIGINS] = (*origins(into), *origins(node))
    detach(node)
    assert node.graph is not None
    node.graph.remove(node)


def absorb_reader(model: Model, reader: onnx_ir.Node, *, into: onnx_ir.Node) -> None:
    """Let `into` write what its only reader wrote, under that tensor's name, and take the reader away."""
    take_over(into.outputs[0], reader.outputs[0])
    absorb(model, reader, into=into)


def take_over(value: onnx_ir.Value, replaced: onnx_ir.Value) -> None:
    """Make a tensor stand in for another: its readers, its place among the outputs, its name and description."""
    replaced.replace_all_uses_with(value, replace_graph_outputs=True)
    value.name = replaced.name
    value.type = value.type if replaced.type is None else replaced.type
    value.shape = value.shape if replaced.shape is None else replaced.shape
    value.doc_string = replaced.doc_string
    value.metadata_props.update(replaced.metadata_props)


def only_reader(value: onnx_ir.Value) -> onnx_ir.Node | None:
    """The node that alone reads a tensor, once and in the same scope; None where a graph returns it as well."""
    uses = tuple(value.uses())
    if len(uses) != 1 or value.is_graph_output() or value.graph is not uses[0].node.graph:
        return None
    return uses[0].node


def helper_node(
    op_type: str, inputs: Sequence[onnx_ir.Value], *, name: str, **attributes: AttributeValue
) -> onnx_ir.Node:
    """A node that stands for none of the nodes as given; the caller names its one output."""
    import onnx_ir

    converted = [onnx_ir.convenience.convert_attribute(key, value) for key, value in attributes.items()]
    node = onnx_ir.Node("", op_type, inputs, converted, name=name)
    node.meta[ORIGINS] = ()
    return node
