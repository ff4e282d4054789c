"""One source of new names for a model: unique over every scope, and the same in every run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantool.graph.scopes import graphs

if TYPE_CHECKING:
    from quantool.graph.model import Model


class NameAllocator:
    """Gives names that no node, value or initializer of any scope has, nor any name given before.

    Nodes and values share one name space here, so that a report can address either by a plain string.
    A base is counted up on its own (``w_q``, ``w_q_1``, ``w_q_2``), so that naming n things takes O(n).
    """

    def __init__(self, model: Model) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}
        for graph in graphs(model.ir.graph):
            for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
                self._taken.add(value.name or "")
            for node in graph:
                self._taken.add(node.name or "")
                self._taken.update(output.name or "" for output in node.outputs)

    def fresh(self, base: str) -> str:
        """A name that is `base` itself where it is free, else `base` with the next free number."""
        count = self._next.get(base, 0)
        name = base if count == 0 else f"{base}_{count}"
        while name in self._taken or not name:
            count += 1
            name = f"{base}_{count}"
        self._next[base] = count + 1
        self._taken.add(name)
        return name
