"""Reading models without building a graph: one that a runtime's optimizer wrote, and the outline of any."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quantool.schema import AnyArray, NodeFact

if TYPE_CHECKING:
    import onnx


#: the attribute that says how far MatMulNBits rounds its activations
ACCURACY_LEVEL = "accuracy_level"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizedGraph:
    """An optimized model as facts; names are the runtime's, and tensors of different scopes may share one.

    nodes: all scopes, attributes left out but MatMulNBits' accuracy_level. dtypes: (scope, tensor) -> type of graph
    inputs and initializers, the only tensors whose type the file states, in lower case.
    """

    nodes: tuple[NodeFact, ...]
    dtypes: Mapping[tuple[str, str], str]


def read_optimized(path: Path) -> OptimizedGraph:
    """Read an optimized model without its external data."""
    import onnx

    model = onnx.load_model(str(path), load_external_data=False)
    scopes = list(_scopes(model.graph, ""))
    return OptimizedGraph(
        nodes=tuple(_fact(node, scope) for scope, graph in scopes for node in graph.node),
        dtypes={(scope, name): dtype for scope, graph in scopes for name, dtype in _typed(graph)},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The main graph of a serialized model. values: its constants of one element, as scales and zero points are."""

    nodes: tuple[NodeFact, ...]
    constants: frozenset[str]
    values: Mapping[str, AnyArray]


def outline(model: bytes | Path | onnx.ModelProto) -> Outline:
    """Read the main graph of any model, one that another tool wrote too, without its external data."""
    import onnx
    from onnx import numpy_helper

    if isinstance(model, bytes):
        model = onnx.load_model_from_string(model)
    elif isinstance(model, Path):
        model = onnx.load_model(str(model), load_external_data=False)
    graph = model.graph
    single = (t for t in graph.initializer if math.prod(t.dims) == 1 and t.data_location != t.EXTERNAL)
    return Outline(
        nodes=tuple(_fact(node, "") for node in graph.node),
        constants=frozenset(tensor.name for tensor in graph.initializer),
        values={tensor.name: numpy_helper.to_array(tensor) for tensor in single},
    )


def _scopes(graph: onnx.GraphProto, scope: str) -> Iterator[tuple[str, onnx.GraphProto]]:
    yield scope, graph
    for position, node in enumerate(graph.node):
        for attribute in node.attribute:
            if attribute.HasField("g"):
                inner = f"{node.name or position}/{attribute.name}"
                yield from _scopes(attribute.g, f"{scope}/{inner}" if scope else inner)


def _fact(node: onnx.NodeProto, scope: str) -> NodeFact:
    return NodeFact(
        name=node.name,
        op_type=node.op_type,
        domain="" if node.domain == "ai.onnx" else node.domain,
        scope=scope,
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attributes={a.name: a.i for a in node.attribute if a.name == ACCURACY_LEVEL},
        origins=(),
    )


def _typed(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    import onnx

    for value in graph.input:
        if value.type.HasField("tensor_type"):
            yield value.name, onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
    for tensor in graph.initializer:
        yield tensor.name, onnx.TensorProto.DataType.Name(tensor.data_type).lower()
