"""Walking an onnx.ModelProto: its graphs, outer before inner, its nodes and its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

DEFAULT_DOMAINS = ("", "ai.onnx")
GRAPH, GRAPHS, TENSOR, TENSORS = 5, 10, 4, 9  # onnx.AttributeProto.AttributeType, without importing onnx


def subgraphs(node: onnx.NodeProto) -> list[tuple[str, onnx.GraphProto]]:
    """The graphs that a node holds, each with the label that a scope shows: ``then_branch``, ``body``."""
    found: list[tuple[str, onnx.GraphProto]] = []
    for attribute in node.attribute:
        if attribute.type == GRAPH:
            found.append((attribute.name, attribute.g))
        elif attribute.type == GRAPHS:
            found.extend((f"{attribute.name}_{i}", graph) for i, graph in enumerate(attribute.graphs))
    return found


def graphs(top: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and every graph inside its nodes, outer before inner, in the order of the nodes."""
    pending = [top]
    while pending:
        graph = pending.pop()
        yield graph
        inner = [inside for node in graph.node if node.attribute for _, inside in subgraphs(node)]
        pending.extend(reversed(inner))


def nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of a model: of its graphs, and of its local functions with what is inside them."""
    for graph in graphs(model.graph):
        yield from graph.node
    for function in model.functions:
        for node in function.node:
            yield node
            for _, inside in subgraphs(node):
                for graph in graphs(inside):
                    yield from graph.node


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model: initializers of all scopes, and tensors in attributes."""
    for graph in graphs(model.graph):
        yield from graph.initializer
    for node in nodes(model):
        for attribute in node.attribute:
            if attribute.type == TENSOR:
                yield attribute.t
            elif attribute.type == TENSORS:
                yield from attribute.tensors
            elif model.functions and attribute.type in (GRAPH, GRAPHS):
                # Initializers of graphs inside functions; those inside the main graph came above.
                for inside in (attribute.g, *attribute.graphs):
                    yield from inside.initializer


def nbytes(tensor: onnx.TensorProto) -> int:
    """The size of a tensor's elements as raw data; 0 for strings and unknown types."""
    return (count(tensor) * bits_of(tensor) + 7) // 8


def bits_of(tensor: onnx.TensorProto) -> int:
    """The bits that one element takes as raw data; 0 for strings and unknown types."""
    return _BITS.get(tensor.data_type, 0)


def count(tensor: onnx.TensorProto) -> int:
    """The number of elements that the dimensions declare."""
    total = 1
    for dim in tensor.dims:
        total *= dim
    return total


# Bits of an element by onnx.TensorProto.DataType; strings (8) have no fixed size.
_BITS = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128,
    16: 16, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2, 27: 6, 28: 6,
}  # fmt: skip
