"""Local functions are inlined, and every node that comes out of a call knows which call it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantool.errors import ModelError
from quantool.graph.names import UniqueNames
from quantool.graph.protos import graphs, subgraphs
from quantool.graph.wellformed import label, node_title

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import onnx

_CALL, _NAME = "quantool.call", "quantool.name"
Key = tuple[str, str, str]


def inline(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Inline all local functions; the nodes of the main graph must have unique names.

    Returns the new model and, for each node that came out of a call, the name of the call. Such a node is named
    ``call/node``. onnx's inliner loses the default values of a function's attributes, so they are
    written into the calls first.

    Raises:
        ModelError: a function calls itself, or cannot be inlined.
    """
    from onnx import inliner

    functions = {_key(function): function for function in model.functions}
    if not functions:
        return model, {}
    _refuse_recursion(functions)
    for function in model.functions:
        _fill_defaults(_nodes(function.node), functions)
    for graph in graphs(model.graph):
        _fill_defaults(graph.node, functions)
    _give_calls_their_own(model, functions)
    model = inliner.inline_local_functions(model, convert_version=True)
    if model.functions:
        raise _not_inlined(model.functions[0])
    return model, _name_inlined(model.graph)


def _key(item: onnx.FunctionProto | onnx.NodeProto) -> Key:
    name = item.op_type if hasattr(item, "op_type") else item.name
    return (item.domain, name, item.overload)


def _nodes(scope: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in scope:
        yield node
        for _, inner in subgraphs(node):
            for graph in graphs(inner):
                yield from graph.node


def _fill_defaults(scope: Iterable[onnx.NodeProto], functions: Mapping[Key, onnx.FunctionProto]) -> None:
    for node in scope:
        if function := functions.get(_key(node)):
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(item for item in function.attribute_proto if item.name not in given)


def _give_calls_their_own(model: onnx.ModelProto, functions: Mapping[Key, onnx.FunctionProto]) -> None:
    """Copy functions so that each call of the main graph has its own, whose nodes carry the call's name."""
    copies: list[onnx.FunctionProto] = []
    for graph in graphs(model.graph):
        for node in graph.node:
            if function := functions.get(_key(node)):
                suffix = f"@{len(copies)}"
                copies += _copies(function, functions, call=node.name, suffix=suffix)
                node.op_type += suffix
    del model.functions[:]
    model.functions.extend(copies)


def _copies(
    function: onnx.FunctionProto, functions: Mapping[Key, onnx.FunctionProto], *, call: str, suffix: str
) -> list[onnx.FunctionProto]:
    """A copy of a function and of all functions below it, for one call."""
    pending, seen = [_key(function)], {_key(function)}
    copies: list[onnx.FunctionProto] = []
    while pending:
        original = functions[pending.pop()]
        copy = type(original).FromString(original.SerializeToString())
        copy.name += suffix
        copies.append(copy)
        for node in _nodes(copy.node):
            key = _key(node)
            node.metadata_props.add(key=_CALL, value=call)
            node.metadata_props.add(key=_NAME, value=node.name or node_title(node))
            if key in functions:
                node.op_type += suffix
                if key not in seen:
                    seen.add(key)
                    pending.append(key)
    return copies


def _name_inlined(graph: onnx.GraphProto) -> dict[str, str]:
    """Name the nodes that came out of calls and take their marks away again."""
    scopes = list(graphs(graph))
    marked = [(node, {item.key: item.value for item in node.metadata_props}) for g in scopes for node in g.node]
    names = UniqueNames(node.name for node, marks in marked if _CALL not in marks)
    calls: dict[str, str] = {}
    for node, marks in marked:
        if _CALL in marks:
            node.name = names.claim(f"{marks[_CALL]}/{marks[_NAME]}")
            calls[node.name] = marks[_CALL]
            kept = [item for item in node.metadata_props if item.key not in (_CALL, _NAME)]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
    return calls


def _refuse_recursion(functions: Mapping[Key, onnx.FunctionProto]) -> None:
    """Raise if functions call one another in a circle; calls are followed depth first."""
    done: set[Key] = set()
    for start in functions:
        path: dict[Key, Iterator[Key]] = {}
        _enter(start, path, functions)
        while path:
            current = next(reversed(path))
            below = next((key for key in path[current] if key not in done), None)
            if below in path:
                raise ModelError(
                    "recursive-function",
                    f"the function '{below[1] if below else ''}' calls itself",
                    where=f"function '{current[1]}'",
                    fix="ONNX functions must not be recursive: export the model again.",
                )
            if below is None:
                done.add(current)
                del path[current]
            else:
                _enter(below, path, functions)


def _enter(key: Key, path: dict[Key, Iterator[Key]], functions: Mapping[Key, onnx.FunctionProto]) -> None:
    calls = dict.fromkeys(_key(node) for node in _nodes(functions[key].node))
    path[key] = iter([call for call in calls if call in functions])


def _not_inlined(function: onnx.FunctionProto) -> ModelError:
    caller = function.name.split("@")[0]
    return ModelError(
        "function-not-inlined",
        f"the local function '{caller}' of domain '{function.domain}' cannot be inlined",
        where=label(function.node[0]) if function.node else f"function '{caller}'",
        fix="Export the model with the opset of the function, or without local functions.",
    )
