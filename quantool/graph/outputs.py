"""Further outputs of a serialized model, without building a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


def with_outputs(model_bytes: bytes, names: Sequence[str], *, alone: bool = False) -> bytes:
    """The same model with tensors of its main graph as further outputs, after its own.

    Types are left out: ONNX Runtime infers them, also where onnx cannot. Parts of a message that follow each
    other merge by protobuf's own rules, so the outputs are appended and no weight is serialized again.
    alone: they are the only outputs, in their order, and nodes and constants that they do not need are left out.
    """
    import onnx

    wanted = list(dict.fromkeys(names))
    model = onnx.load_model_from_string(model_bytes)
    if alone:
        return _part(model, wanted)
    own = {output.name for output in model.graph.output}
    further = onnx.GraphProto(output=[onnx.ValueInfoProto(name=name) for name in wanted if name not in own])
    appended: bytes = onnx.ModelProto(graph=further).SerializeToString()
    return model_bytes + appended


def _part(model: onnx.ModelProto, wanted: Sequence[str]) -> bytes:
    """A model cut down, in place, to what makes the wanted tensors."""
    import onnx

    graph = model.graph
    needed = set(wanted)
    nodes = []
    for node in reversed(graph.node):  # in topological order, so that readers come first
        if not needed.isdisjoint(node.output):
            needed.update(_read(node))
            nodes.append(node)
    nodes.reverse()
    types = {output.name: output for output in graph.output}
    outputs = [types.get(name, onnx.ValueInfoProto(name=name)) for name in wanted]
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    for field, kept in ((graph.node, nodes), (graph.output, outputs), (graph.initializer, constants)):
        copies = [type(item).FromString(item.SerializeToString()) for item in kept]
        del field[:]
        field.extend(copies)
    data: bytes = model.SerializeToString()
    return data


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, and those that the graphs inside it may read of its scope."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (output.name for output in graph.output)
            for inner in graph.node:
                yield from _read(inner)
