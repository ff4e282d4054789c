"""What planning may know of a graph, as plain data."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from quantool.graph.model import ORIGINS, TRANSPOSE_OF
from quantool.graph.names import inner_scope
from quantool.schema import GraphFacts, NodeFact, TensorFact, Use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import onnx_ir

    from quantool.graph.model import Model
    from quantool.schema import AnyArray, AttributeValue

    Shape = tuple[int | str | None, ...]
    Types = Mapping[str, tuple[str, Shape | None]]

MAX_VALUES = 4096


def facts(model: Model, types: Types | None = None) -> GraphFacts:
    """Describe the graph as it is now, all scopes.

    types: dtype and shape of tensors as ONNX Runtime says; they win over what the graph says, which may be
    stale. An inner graph's inputs are not `inputs` of the facts, but TensorFact.is_input is True for them as
    is_output for its outputs: such a tensor must keep its name.
    """
    collector = _Collector(types or {})
    collector.visit(model.ir.graph)
    return GraphFacts(
        nodes=tuple(collector.nodes),
        tensors=MappingProxyType(collector.facts()),
        inputs=tuple(value.name or "" for value in model.ir.graph.inputs),
        outputs=tuple(value.name or "" for value in model.ir.graph.outputs),
        values=MappingProxyType(_small_values(model.ir.graph)),
        opset=model.ir.opset_imports.get("", 0),
        given=model.given,
        absorbed=MappingProxyType(dict(model.absorbed)),
    )


def constant(model: Model, name: str) -> AnyArray:
    """The value of an initializer, memory-mapped where it is external.

    Raises:
        KeyError: there is no such initializer.
    """
    tensor = model.ir.graph.initializers[name].const_value
    if tensor is None:
        raise KeyError(name)
    array: AnyArray = tensor.numpy()
    return array


def constant_loader(model: Model) -> Callable[[str], AnyArray]:
    """The initializers as they are now, loaded one at a time on demand, also after the graph was edited.

    The function raises KeyError for a name that is no initializer now.
    """
    tensors = {name: value.const_value for name, value in model.ir.graph.initializers.items()}

    def load(name: str) -> AnyArray:
        tensor = tensors[name]
        if tensor is None:
            raise KeyError(name)
        array: AnyArray = tensor.numpy()
        return array

    return load


class _Collector:
    """Walks the graphs once, outer before inner."""

    def __init__(self, types: Types) -> None:
        self.nodes: list[NodeFact] = []
        self._types = types
        self._values: dict[str, onnx_ir.Value] = {}
        self._producer: dict[str, str] = {}
        self._readers: dict[str, list[Use]] = {}
        self._entering: set[str] = set()
        self._leaving: set[str] = set()
        self._constant: set[str] = set()

    def visit(self, top: onnx_ir.Graph) -> None:
        pending = [("", top)]
        while pending:
            scope, graph = pending.pop()
            self._visit_boundary(graph)
            inner = [found for node in graph for found in self._visit_node(node, scope)]
            pending.extend(reversed(inner))

    def _visit_boundary(self, graph: onnx_ir.Graph) -> None:
        for name, value in graph.initializers.items():
            self._values[name] = value
            self._constant.add(name)
        for value in graph.inputs:
            self._values[value.name or ""] = value
            self._entering.add(value.name or "")
        for value in graph.outputs:
            self._values.setdefault(value.name or "", value)
            self._leaving.add(value.name or "")

    def _visit_node(self, node: onnx_ir.Node, scope: str) -> Iterator[tuple[str, onnx_ir.Graph]]:
        name = node.name or ""
        inputs = tuple("" if value is None else value.name or "" for value in node.inputs)
        outputs = tuple(value.name or "" for value in node.outputs)
        for index, read in enumerate(inputs):
            if read:
                self._readers.setdefault(read, []).append(Use(name, index))
        for written, value in zip(outputs, node.outputs, strict=True):
            if written:
                self._values[written] = value
                self._producer[written] = name
        attributes: dict[str, AttributeValue] = {}
        for key, attribute in node.attributes.items():
            found = _plain(attribute)
            if found is not None:
                attributes[key] = found
            else:
                yield from ((inner_scope(scope, name, label), graph) for label, graph in _inner(attribute))
        self.nodes.append(
            NodeFact(
                name=name,
                op_type=node.op_type,
                domain=node.domain,
                scope=scope,
                inputs=inputs,
                outputs=outputs,
                attributes=MappingProxyType(attributes),
                origins=node.meta[ORIGINS],
            )
        )

    def facts(self) -> dict[str, TensorFact]:
        found: dict[str, TensorFact] = {}
        for name, value in self._values.items():
            dtype, shape = value_type(value)
            if name in self._types:
                known, dims = self._types[name]
                dtype, shape = known or dtype, shape if dims is None else dims
            found[name] = TensorFact(
                name=name,
                dtype=dtype,
                shape=shape,
                producer=self._producer.get(name),
                readers=tuple(self._readers.get(name, ())),
                is_input=name in self._entering,
                is_output=name in self._leaving,
                is_constant=name in self._constant,
                transpose_of=value.meta.get(TRANSPOSE_OF, ""),
            )
        return found


def value_type(value: onnx_ir.Value) -> tuple[str, Shape | None]:
    """The dtype and shape of a value; "" and None where unknown or no tensor."""
    import onnx_ir

    tensor = value.const_value
    if tensor is not None:
        return dtype_name(tensor.dtype), tuple(tensor.shape.numpy())
    if not isinstance(value.type, onnx_ir.TensorType):
        return "", None
    dims = None if value.shape is None else tuple(map(dimension, value.shape))
    return dtype_name(value.type.dtype), dims


def dimension(dim: int | onnx_ir.SymbolicDim) -> int | str | None:
    """A dimension as a number, a symbol, or None; some exporters write -1 or ? for unknown."""
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return None if dim.value in (None, "", "?") else dim.value


def dtype_name(dtype: onnx_ir.DataType) -> str:
    """The ml_dtypes or NumPy name of an element type: ``float32``, ``float8_e4m3fn``; ``string``; "" if unknown."""
    import onnx_ir

    if dtype == onnx_ir.DataType.UNDEFINED:
        return ""
    return "string" if dtype == onnx_ir.DataType.STRING else str(dtype.numpy())


def _plain(attribute: onnx_ir.Attr) -> AttributeValue | None:
    """The value of an attribute that is a number, a text, or a list of them; None for all others."""
    import onnx_ir

    kinds = onnx_ir.AttributeType
    if attribute.type in (kinds.INT, kinds.FLOAT, kinds.STRING):
        single: AttributeValue = attribute.value
        return single
    if attribute.type in (kinds.INTS, kinds.FLOATS, kinds.STRINGS):
        return tuple(attribute.value)
    return None


def _inner(attribute: onnx_ir.Attr) -> list[tuple[str, onnx_ir.Graph]]:
    import onnx_ir

    if attribute.type == onnx_ir.AttributeType.GRAPH:
        return [(attribute.name, attribute.as_graph())]
    if attribute.type == onnx_ir.AttributeType.GRAPHS:
        return [(f"{attribute.name}_{i}", graph) for i, graph in enumerate(attribute.as_graphs())]
    return []


def _small_values(graph: onnx_ir.Graph) -> dict[str, AnyArray]:
    tensors = ((name, value.const_value) for name, value in graph.initializers.items())
    return {name: tensor.numpy() for name, tensor in tensors if tensor is not None and tensor.size <= MAX_VALUES}
