"""Names of a model as given: every node and every value gets one that is unique over all scopes."""

from __future__ import annotations

from collections import ChainMap
from typing import TYPE_CHECKING

from quantool.graph.protos import graphs, subgraphs
from quantool.graph.wellformed import node_title
from quantool.schema import GivenNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import onnx


class UniqueNames:
    """Hands out names that were not handed out before; n of them cost O(n)."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._taken = set(reserved)
        self._next: dict[str, int] = {}

    def claim(self, name: str) -> str:
        """`name` itself where it is free, else `name_1`, `name_2` ..."""
        number, unique = self._next.get(name, 1), name
        while unique in self._taken:
            unique, number = f"{name}_{number}", number + 1
        self._next[name] = number
        self._taken.add(unique)
        return unique

    def reserve(self, names: Iterable[str]) -> None:
        """Take names that exist already."""
        self._taken.update(names)


def name_nodes(graph: onnx.GraphProto) -> tuple[GivenNode, ...]:
    """Give every node of all scopes a unique name, in place, and list the nodes as given.

    An unnamed node is called ``OpType:first_output``. Of several nodes with one name the first keeps it, those
    of outer scopes before those of inner ones. Rows come in the order of the model, a node before what is inside.
    """
    scopes = list(graphs(graph))
    names = UniqueNames()
    repeated: list[onnx.NodeProto] = []
    seen: set[str] = set()
    for scope in scopes:
        for node in scope.node:
            if node.name and node.name not in seen:
                seen.add(node.name)
            else:
                repeated.append(node)
    names.reserve(seen)
    for node in repeated:
        node.name = names.claim(node.name or node_title(node))
    return tuple(_rows(graph, ""))


def _rows(graph: onnx.GraphProto, scope: str) -> Iterator[GivenNode]:
    for node in graph.node:
        yield GivenNode(name=node.name, op_type=node.op_type, scope=scope)
        for label, inner in subgraphs(node):
            yield from _rows(inner, inner_scope(scope, node.name, label))


def inner_scope(scope: str, node: str, label: str) -> str:
    """The scope of a graph inside a node, such as ``if_1/then_branch`` or ``loop/body/if_1/then_branch``."""
    return f"{scope}/{node}/{label}" if scope else f"{node}/{label}"


def name_values(graph: onnx.GraphProto) -> UniqueNames:
    """Rename values of inner scopes so that no name is used in two scopes; in place.

    Sibling branches may reuse names, and an inner name may hide an outer one. The main graph keeps its names.
    Returns the source of further names.
    """
    names = UniqueNames(_written(graph))
    for node in graph.node:
        for _, inner in subgraphs(node):
            _rename(inner, {}, names)
    return names


def _rename(graph: onnx.GraphProto, outer: Mapping[str, str], names: UniqueNames) -> None:
    local = {name: names.claim(name) for name in _written(graph)}
    known = ChainMap(local, dict(outer))
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = known.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [known.get(name, name) for name in node.input]
        node.output[:] = [local.get(name, name) for name in node.output]
        for _, inner in subgraphs(node):
            _rename(inner, known, names)


def _written(graph: onnx.GraphProto) -> Mapping[str, None]:
    """The names that a graph itself defines, in order, each once."""
    names = dict.fromkeys(value.name for value in (*graph.input, *graph.initializer))
    for node in graph.node:
        names.update(dict.fromkeys(filter(None, node.output)))
    return names
