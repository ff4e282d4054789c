"""Walking a model: all its graphs, outer before inner, and what a change costs while it is made."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir


def graphs(top: onnx_ir.Graph) -> Iterator[onnx_ir.Graph]:
    """A graph and the graphs inside its nodes, each before those inside it, in the order of the nodes."""
    pending = [top]
    while pending:
        graph = pending.pop()
        yield graph
        pending.extend(reversed([inner for node in graph for inner in subgraphs(node)]))


def subgraphs(node: onnx_ir.Node) -> list[onnx_ir.Graph]:
    """The graphs that a node holds as attributes: branches, bodies."""
    import onnx_ir

    found: list[onnx_ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == onnx_ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type == onnx_ir.AttributeType.GRAPHS:
            found.extend(attribute.as_graphs())
    return found


@contextmanager
def paused_collector() -> Iterator[None]:
    """Keep the cyclic garbage collector from scanning the growing graph, which doubles the time of edits."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
