"""Whether a graph hangs together: every name read is written once, and the nodes have an order."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from quantool.errors import ModelError
from quantool.graph.protos import DEFAULT_DOMAINS, graphs, nodes, subgraphs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import onnx

# Domains that ONNX Runtime adds by itself where a model does not import them.
RUNTIME_DOMAINS = ("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc", "ai.onnx.ml")


def check(model: onnx.ModelProto) -> None:
    """Check the main graph with all scopes inside it, the local functions, and the opset imports.

    Raises:
        ModelError: a name that nothing writes or that two write, a cycle, or a domain without import.
    """
    for name, reader in _free(model.graph.node, _inputs(model.graph), model.graph.output).items():
        raise ModelError(
            "undefined-name",
            f"tensor '{name}' is read but nothing writes it",
            where=reader,
            fix="Export the model again; the graph is incomplete.",
        )
    for function in model.functions:
        for name, reader in _free(function.node, function.input, ()).items():
            raise ModelError(
                "undefined-name",
                f"tensor '{name}' is read but nothing writes it",
                where=f"{reader} of function '{function.name}'",
                fix="Export the model again; the function is incomplete.",
            )
    _check_imports(model)


def complete_imports(model: onnx.ModelProto) -> None:
    """Import the domains that ONNX Runtime adds by itself, and write ai.onnx as ""; in place."""
    versions: dict[str, int] = {}
    for item in model.opset_import:
        domain = "" if item.domain in DEFAULT_DOMAINS else item.domain
        versions[domain] = max(item.version, versions.get(domain, 0))
    for node in nodes(model):
        if node.domain in DEFAULT_DOMAINS:
            if node.domain:
                node.domain = ""
        elif node.domain in RUNTIME_DOMAINS:
            versions.setdefault(node.domain, 1)
    del model.opset_import[:]
    for domain, version in versions.items():
        model.opset_import.add(domain=domain, version=version)


def sort(graph: onnx.GraphProto) -> None:
    """Bring the nodes of all scopes into an order where each comes after what it reads; in place, stable."""
    for scope in graphs(graph):
        order = _order(scope.node, [_reads(node) for node in scope.node])
        if order != list(range(len(order))):
            ordered = [scope.node[i] for i in order]
            copies = [type(node).FromString(node.SerializeToString()) for node in ordered]
            del scope.node[:]
            scope.node.extend(copies)


def label(node: onnx.NodeProto) -> str:
    """How a message names a node that may have no name."""
    return f"node '{node.name or node_title(node)}' ({node.op_type})"


def node_title(node: onnx.NodeProto) -> str:
    """What an unnamed node is called: its operator and its first output."""
    return f"{node.op_type}:{next((name for name in node.output if name), '')}"


def _inputs(graph: onnx.GraphProto) -> list[str]:
    """What a graph has before its first node; an initializer may also be listed as an input."""
    inputs = [value.name for value in graph.input]
    constants = [tensor.name for tensor in graph.initializer]
    for names, where in ((inputs, "the graph's inputs"), (constants, "the graph's initializers")):
        if len(set(names)) != len(names):
            raise _written_twice(names, where)
    return [*inputs, *constants]


def _free(
    scope: Sequence[onnx.NodeProto], inputs: Iterable[str], outputs: Iterable[onnx.ValueInfoProto]
) -> Mapping[str, str]:
    """Names that nodes read and nobody here writes -> who reads them. Checks writers and cycles on the way."""
    written = set(inputs)
    for node in scope:
        for name in filter(None, node.output):
            if name in written:
                raise _written_twice([name, name], label(node))
            written.add(name)
    reads = [_reads(node) for node in scope]
    _order(scope, reads)
    free = {
        name: label(node) for node, names in zip(scope, reads, strict=True) for name in names if name not in written
    }
    free.update({value.name: "the graph's outputs" for value in outputs if value.name not in written})
    return free


def _reads(node: onnx.NodeProto) -> Mapping[str, None]:
    """What a node reads, captured names included, each once."""
    names = dict.fromkeys(filter(None, node.input))
    if node.attribute:
        for _, graph in subgraphs(node):
            names.update(dict.fromkeys(_free(graph.node, _inputs(graph), graph.output)))
    return names


def _order(scope: Sequence[onnx.NodeProto], reads: Sequence[Mapping[str, None]]) -> list[int]:
    """A topological order of the nodes that changes nothing where the given one is good."""
    writer = {name: i for i, node in enumerate(scope) for name in node.output if name}
    needs = [{writer[name] for name in names if name in writer} for names in reads]
    if all(not needed or max(needed) < i for i, needed in enumerate(needs)):
        return list(range(len(needs)))
    readers: list[list[int]] = [[] for _ in needs]
    for i, needed in enumerate(needs):
        for j in needed:
            readers[j].append(i)
    ready = [i for i, needed in enumerate(needs) if not needed]
    order: list[int] = []
    while ready:
        order.append(i := heapq.heappop(ready))
        for reader in readers[i]:
            needs[reader].discard(i)
            if not needs[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(needs):
        raise _cycle([label(scope[i]) for i, needed in enumerate(needs) if needed])
    return order


def _cycle(stuck: Sequence[str]) -> ModelError:
    return ModelError(
        "cycle",
        f"{len(stuck)} nodes wait for one another, among them {', '.join(stuck[:3])}",
        where=stuck[0],
        fix="A graph must have no cycle: export the model again.",
    )


def _written_twice(names: Sequence[str], where: str) -> ModelError:
    twice = next(name for i, name in enumerate(names) if name in names[:i])
    return ModelError(
        "written-twice",
        f"tensor '{twice}' is written more than once",
        where=where,
        fix="Every tensor of a graph needs a name of its own: export the model again.",
    )


def _check_imports(model: onnx.ModelProto) -> None:
    known = {item.domain or "ai.onnx" for item in model.opset_import}
    known.update(RUNTIME_DOMAINS)
    known.update(function.domain for function in model.functions)
    if "ai.onnx" in known:
        known.update(DEFAULT_DOMAINS)
    for node in nodes(model):
        if node.domain not in known:
            raise ModelError(
                "no-opset-import",
                f"the model imports no opset for the domain '{node.domain or 'ai.onnx'}'",
                where=label(node),
                fix="Add the domain and its version to opset_import, or export the model again.",
            )
