"""One source of new names for a model: unique over every scope, and the same in every run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantool.graph.names import UniqueNames
from quantool.graph.scopes import graphs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quantool.graph.model import Model


class NameAllocator:
    """Gives names that no node, value or initializer of any scope has, nor any name given before.

    Nodes and values share one name space here, so that a report can address either by a plain string.
    """

    def __init__(self, model: Model) -> None:
        self._names = UniqueNames(_names(model))

    def fresh(self, base: str) -> str:
        """A name that is `base` itself where it is free, else `base` with a number."""
        return self._names.claim(base)


def _names(model: Model) -> Iterator[str]:
    """The names of all scopes, and "", which means an absent tensor."""
    yield ""
    for graph in graphs(model.ir.graph):
        yield from (value.name or "" for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()))
        for node in graph:
            yield node.name or ""
            yield from (output.name or "" for output in node.outputs)
