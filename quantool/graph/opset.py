"""Raise a model's opset with onnx's converter, which must not touch what it would get wrong.

The converter keeps names of nodes and tensors, but loses metadata and inputs that are no tensors, so everything
but the nodes comes from the model before. Operators that it does not know, and those that it gets silently
wrong, are held in a domain of their own meanwhile; quantool.graph.repairs does their conversion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantool.errors import ModelError
from quantool.graph.load import opset_of
from quantool.graph.names import UniqueNames
from quantool.graph.protos import DEFAULT_DOMAINS, graphs, subgraphs
from quantool.graph.repairs import HELD_OPERATORS, Repair, repair_after, repair_before
from quantool.graph.wellformed import label, node_title
from quantool.schema import Note

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import onnx

_HELD = "quantool.held"


def least_ir_version(model: onnx.ModelProto) -> int:
    """The least ir_version for a model's opsets; 4 at least, from where initializers need not be inputs."""
    from onnx import helper

    known = [
        item for item in model.opset_import if (item.domain or "ai.onnx", item.version) in helper.OP_SET_ID_VERSION_MAP
    ]
    return max(4, helper.find_min_ir_version_for(known, ignore_unknown=True))


def raise_opset(model: onnx.ModelProto, opset: int) -> tuple[dict[str, str], list[Note]]:
    """Convert a model to a higher opset, in place; its nodes must have unique names.

    Shapes must have been inferred before. Returns the nodes that the conversion added, each with the node that
    it belongs to, and warnings.

    Raises:
        ModelError: onnx cannot convert an operator, or would change its meaning.
    """
    before = opset_of(model)
    if before == 0:  # no operator of ai.onnx: there is nothing to convert
        model.opset_import.add(domain="", version=opset)
        model.ir_version = max(model.ir_version, least_ir_version(model))
        return {}, []
    original = {node.name: type(node).FromString(node.SerializeToString()) for node in _nodes(model)}
    repair = Repair(model, before, opset)
    repair_before(repair)
    unknown = _unknown_operators(model, before)
    held = unknown | {name for name, versions in HELD_OPERATORS.items() if before < versions <= opset}
    converted = _convert(_hold(model, held), opset)
    _release(converted)
    added = _name_added(converted, original)
    _take_over(model, converted, original)
    for item in model.opset_import:
        if item.domain in DEFAULT_DOMAINS:
            item.version = opset
    model.ir_version = max(model.ir_version, least_ir_version(model))
    repair_after(repair)
    return added, [_unknown_note(name, opset) for name in sorted(unknown)]


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for graph in graphs(model.graph) for node in graph.node]


def _unknown_operators(model: onnx.ModelProto, opset: int) -> set[str]:
    """Operators of the default domain that onnx does not define at this opset; ONNX Runtime has some."""
    used = {node.op_type for node in _nodes(model) if node.domain in DEFAULT_DOMAINS}
    return {name for name in used if not _defined(name, opset)}


def _defined(name: str, opset: int) -> bool:
    from onnx.defs import SchemaError, get_schema

    try:
        get_schema(name, opset, "")
    except SchemaError:
        return False
    return True


def _hold(model: onnx.ModelProto, operators: Iterable[str]) -> onnx.ModelProto:
    """A copy in which some operators stand in a domain that the converter leaves alone."""
    copy: onnx.ModelProto = type(model).FromString(model.SerializeToString())
    held = set(operators)
    for node in _nodes(copy):
        if node.domain in DEFAULT_DOMAINS and node.op_type in held:
            node.domain = _HELD
    copy.opset_import.add(domain=_HELD, version=1)
    return copy


def _release(model: onnx.ModelProto) -> None:
    for node in _nodes(model):
        if node.domain == _HELD:
            node.domain = ""


def _convert(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    try:
        return _convert_once(model, opset)
    except (RuntimeError, ValueError) as err:
        node, reason = _culprit(model, opset) or (None, str(err))
        where = "the model" if node is None else label(node)
        raise ModelError(
            "opset-not-raised",
            f"onnx cannot convert {where} to opset {opset}: {reason.strip().splitlines()[0]}",
            where=where,
            fix=f"Export the model again with opset {opset} or higher.",
        ) from err


def _convert_once(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    from onnx import shape_inference, version_converter

    try:
        converted: onnx.ModelProto = version_converter.convert_version(model, opset)
    except shape_inference.InferenceError as err:
        raise ValueError(str(err)) from err
    return converted


def _culprit(model: onnx.ModelProto, opset: int) -> tuple[onnx.NodeProto, str] | None:
    """The first operator that cannot be converted although all others are held."""
    first: dict[str, onnx.NodeProto] = {}
    for node in _nodes(model):
        first.setdefault(node.op_type, node)
    for name, node in first.items():
        try:
            _convert_once(_hold(model, first.keys() - {name}), opset)
        except (RuntimeError, ValueError) as err:
            return node, str(err)
    return None


def _name_added(converted: onnx.ModelProto, original: Mapping[str, onnx.NodeProto]) -> dict[str, str]:
    """Name the nodes that the conversion added, and say which given node each belongs to.

    Such a node writes an output of the node it was made for, or stands before that node.
    """
    writer = {output: name for name, node in original.items() for output in node.output if output}
    names = UniqueNames(original)
    added: dict[str, str] = {}
    for graph in graphs(converted.graph):
        near = ""
        for node in reversed(graph.node):
            if node.name in original:
                near = node.name
                continue
            near = next((writer[output] for output in node.output if output in writer), near)
            node.name = names.claim(node_title(node))
            added[node.name] = near
    return added


def _take_over(model: onnx.ModelProto, converted: onnx.ModelProto, original: Mapping[str, onnx.NodeProto]) -> None:
    """Take the converted nodes and the constants they need into the model, which keeps everything else."""
    for node in _nodes(converted):
        if known := original.get(node.name):
            del node.metadata_props[:]
            node.metadata_props.extend(known.metadata_props)
            _keep_inner_types(node, known)
    known_constants = {tensor.name for tensor in model.graph.initializer}
    model.graph.initializer.extend(
        tensor for tensor in converted.graph.initializer if tensor.name not in known_constants
    )
    del model.graph.node[:]
    model.graph.node.extend(converted.graph.node)


def _keep_inner_types(node: onnx.NodeProto, known: onnx.NodeProto) -> None:
    """Give inner graphs their inputs and outputs back, whose types the converter loses unless they are tensors."""
    before = dict(subgraphs(known))
    for name, graph in subgraphs(node):
        if name in before and [item.name for item in before[name].input] == [item.name for item in graph.input]:
            for field in ("input", "output"):
                target = getattr(graph, field)
                del target[:]
                target.extend(getattr(before[name], field))


def _unknown_note(operator: str, opset: int) -> Note:
    return Note(
        code="operator-unknown-to-onnx",
        what=f"onnx does not define the operator {operator} at the model's opset; "
        f"it was kept as it is while the model was raised to opset {opset}",
        where=f"operator {operator}",
        fix="Nothing, where the comparison with the model as given is good.",
    )
