"""Constants of all scopes become initializers of the main graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantool.errors import ModelError
from quantool.graph.protos import DEFAULT_DOMAINS, graphs
from quantool.graph.structure import is_large, make_stub
from quantool.graph.wellformed import label

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

    from quantool.graph.names import UniqueNames


def lift(model: onnx.ModelProto, weights: dict[str, onnx.TensorProto], *, names: UniqueNames) -> list[str]:
    """Move Constant nodes and the initializers of inner graphs to the main graph, in place.

    Names must be unique over all scopes. Large tensors go to `weights`, with a stub in their place. Initializers
    leave the inputs of the main graph. Returns the names of the nodes that became constants. A constant that is
    the output of an inner graph leaves an Identity there, because a graph may not give back an outer value.
    """
    top = model.graph
    lifted: list[str] = []
    for graph in graphs(top):
        given_back = {value.name for value in graph.output} if graph is not top else set()
        head = _lift_initializers(graph, top, given_back=given_back, names=names) if graph is not top else []
        count = len(lifted)
        kept = [*head, *_lift_nodes(graph, top, given_back=given_back, names=names, lifted=lifted)]
        if head or len(lifted) > count:
            del graph.node[:]
            graph.node.extend(kept)
    constants = {tensor.name for tensor in top.initializer}
    inputs = [value for value in top.input if value.name not in constants]
    if len(inputs) < len(top.input):
        del top.input[:]
        top.input.extend(inputs)
    _hold_large(top, weights)
    return lifted


def _lift_nodes(
    graph: onnx.GraphProto, top: onnx.GraphProto, *, given_back: set[str], names: UniqueNames, lifted: list[str]
) -> list[onnx.NodeProto]:
    """Move the Constant nodes of a graph, add their names to `lifted`, and return the nodes that stay."""
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type != "Constant" or node.domain not in DEFAULT_DOMAINS:
            kept.append(node)
            continue
        tensor = top.initializer.add()
        tensor.CopyFrom(_value(node))
        tensor.name = node.output[0]
        lifted.append(node.name)
        if tensor.name in given_back:
            tensor.name = names.claim(f"{tensor.name}/constant")
            kept.append(_identity(tensor.name, node.output[0], name=node.name))
    return kept


def _lift_initializers(
    graph: onnx.GraphProto, top: onnx.GraphProto, *, given_back: set[str], names: UniqueNames
) -> list[onnx.NodeProto]:
    """Move the initializers of an inner graph, and return the nodes that must give back some of them."""
    formal = {value.name for value in graph.input}
    identities: list[onnx.NodeProto] = []
    for inner in graph.initializer:
        if inner.name in formal:
            continue  # the caller passes a value, so this default never counts
        tensor = top.initializer.add()
        tensor.CopyFrom(inner)
        if tensor.name in given_back:
            tensor.name = names.claim(f"{inner.name}/constant")
            identities.append(_identity(tensor.name, inner.name, name=names.claim(f"Identity:{inner.name}")))
    del graph.initializer[:]
    return identities


def _identity(source: str, target: str, *, name: str) -> onnx.NodeProto:
    import onnx

    return onnx.NodeProto(op_type="Identity", name=name, input=[source], output=[target])


def _hold_large(top: onnx.GraphProto, weights: dict[str, onnx.TensorProto]) -> None:
    if not any(is_large(tensor) for tensor in top.initializer):
        return
    initializers = list(top.initializer)
    del top.initializer[:]
    for tensor in initializers:
        target = top.initializer.add()
        if is_large(tensor):
            weights[tensor.name] = tensor
            make_stub(tensor, target)
        else:
            target.CopyFrom(tensor)


def _value(node: onnx.NodeProto) -> onnx.TensorProto:
    """The tensor that a Constant node gives."""
    attribute = next((item for item in node.attribute if item.name in _FORMS), None)
    if attribute is None:
        raise ModelError(
            "unsupported-constant",
            f"the Constant has none of {', '.join(_FORMS)} (a sparse value is not supported)",
            where=label(node),
            fix="Export the constant as a dense tensor.",
        )
    return _FORMS[attribute.name](attribute)


def _tensor(data_type: int, values: list[float] | list[int], dims: list[int]) -> onnx.TensorProto:
    from onnx import helper

    return helper.make_tensor("", data_type, dims, values)


def _text(values: list[bytes], dims: list[int]) -> onnx.TensorProto:
    import onnx

    return onnx.TensorProto(data_type=_STRING, dims=dims, string_data=values)


_FLOAT, _INT64, _STRING = 1, 7, 8  # onnx.TensorProto.DataType
_FORMS: Mapping[str, Callable[[onnx.AttributeProto], onnx.TensorProto]] = {
    "value": lambda attribute: attribute.t,
    "value_float": lambda attribute: _tensor(_FLOAT, [attribute.f], []),
    "value_floats": lambda attribute: _tensor(_FLOAT, list(attribute.floats), [len(attribute.floats)]),
    "value_int": lambda attribute: _tensor(_INT64, [attribute.i], []),
    "value_ints": lambda attribute: _tensor(_INT64, list(attribute.ints), [len(attribute.ints)]),
    "value_string": lambda attribute: _text([attribute.s], []),
    "value_strings": lambda attribute: _text(list(attribute.strings), [len(attribute.strings)]),
}
