"""How much of a model's work each group is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from quantool import graph
from quantool.graph.outputs import with_outputs
from quantool.pipeline.choice.units import FusionGroup
from quantool.pipeline.source import FloatModel
from quantool.runtime import tap
from quantool.schema import Feed, GraphFacts

#: what an element takes that is written and read as float instead of a byte, in multiply-adds of bytes: of these a
#: core does some 64 in the time that it moves eight floats
ELEMENT: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Shares of the model for each group.

    macs: of its multiply-adds; time: of these and of the elements it writes; size: of the weights that become integers.
    """

    macs: tuple[float, ...]
    time: tuple[float, ...]
    size: tuple[float, ...]

    @property
    def price(self) -> tuple[float, ...]:
        """What a group gives up in float, of speed or of size, whichever is more."""
        return tuple(max(pair) for pair in zip(self.time, self.size, strict=True))


def work_of(source: FloatModel, groups: Sequence[FusionGroup], feed: Feed) -> Work:
    """The work of groups on a sample, since shapes may be unknown before."""
    facts = source.facts
    nodes = [facts.by_name[name] for name in graph.macs(facts) if not facts.by_name[name].scope]
    read = [name for node in nodes for name in (*node.inputs, node.outputs[0]) if name]
    rounded = [name for group in groups for name in group.tensors]
    seen = _seen(source, feed, dict.fromkeys((*read, *rounded)))
    macs = graph.macs(seen)
    whole = max(sum(macs.values()), 1)
    multiplied = [sum(macs.get(node, 0) for node in group.nodes) for group in groups]
    moved = [sum(_size(seen, name) for name in group.tensors) for group in groups]
    spent = [a + ELEMENT * b for a, b in zip(multiplied, moved, strict=True)]
    all_spent = max(whole + ELEMENT * sum(moved), 1)
    stored = [sum(_size(facts, facts.by_name[node].inputs[index]) for node, index in g.weights) for g in groups]
    return Work(
        macs=tuple(m / whole for m in multiplied),
        time=tuple(s / all_spent for s in spent),
        size=tuple(s / max(sum(stored), 1) for s in stored),
    )


def _seen(source: FloatModel, feed: Feed, names: Iterable[str]) -> GraphFacts:
    """The facts with the shapes that these tensors have on a sample."""
    facts = source.facts
    computed = [name for name in names if facts.producer(name) is not None]
    stream = tap(source.normalized, [feed], groups=[computed], with_outputs=with_outputs)
    arrays = {**feed, **next(stream, (0, {}))[1]}
    shapes = {name: array.shape for name in names if isinstance(array := arrays.get(name), np.ndarray)}
    found = {name: replace(facts.tensors[name], shape=shape) for name, shape in shapes.items()}
    return replace(facts, tensors={**facts.tensors, **found})


def _size(facts: GraphFacts, tensor: str) -> int:
    shape = facts.tensors[tensor].shape or ()
    return int(np.prod([dim for dim in shape if isinstance(dim, int)], dtype=np.int64))
