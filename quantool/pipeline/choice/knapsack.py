"""Which groups of nodes to spare: those whose error is dear for what their multiply-adds save."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from quantool import graph
from quantool.pipeline.choice.units import fusion_groups
from quantool.schema import GraphFacts, Plan

#: groups that are measured, one model each
MOST_GROUPS: Final = 24
#: the grid that errors are counted on
LEVELS: Final = 1000
#: shares of the budget, tried one after the other where errors add up to more than their sum
FRACTIONS: Final = (1.0, 0.5, 0.25, 0.125)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Nodes that become integers together, the first named for all; macs: what they multiply."""

    nodes: tuple[str, ...]
    macs: int


def groups_of(facts: GraphFacts, plan: Plan) -> tuple[Group, ...]:
    """The fusion groups of a plan in the main graph, in order; neighbours together where they are many."""
    macs = graph.macs(facts)
    quantized = {name for name, decision in plan.decisions.items() if decision.quantized}
    inside = {node.name for node in facts.nodes if not node.scope} & quantized
    units = [nodes for unit in fusion_groups(facts, plan) if (nodes := [n for n in unit.nodes if n in inside])]
    size = max(1, -(-len(units) // MOST_GROUPS))
    chunks = [[name for unit in units[i : i + size] for name in unit] for i in range(0, len(units), size)]
    return tuple(Group(nodes=tuple(nodes), macs=sum(macs.get(name, 0) for name in nodes)) for nodes in chunks)


def spare(errors: Sequence[float], savings: Sequence[int], budget: float) -> frozenset[int]:
    """The groups to spare, so that the others save most while their errors add up to the budget at most."""
    costs = [min(math.ceil(max(error, 0.0) / budget * LEVELS), LEVELS + 1) for error in errors]
    best: list[tuple[int, frozenset[int]]] = [(0, frozenset())] * (LEVELS + 1)
    # Of groups that save as much, those that err less come first.
    for item in sorted(range(len(costs)), key=lambda item: (costs[item], item)):
        cost, saving = costs[item], savings[item]
        for level in range(LEVELS, cost - 1, -1):
            worth, chosen = best[level - cost]
            if worth + saving + 1 > best[level][0]:
                best[level] = (worth + saving + 1, chosen | {item})
    return frozenset(range(len(errors))) - best[LEVELS][1]


def proposals(errors: Sequence[float], groups: Sequence[Group], *, budget: float, whole: float) -> list[frozenset[int]]:
    """Sets of groups to spare, the cheapest first. whole: the error of all together, whatever single ones add up to."""
    total = sum(max(error, 0.0) for error in errors)
    scale = max(1.0, whole / total) if total else 1.0
    scaled = [error * scale for error in errors]
    sets = [spare(scaled, [group.macs for group in groups], budget * fraction) for fraction in FRACTIONS]
    return [found for found in dict.fromkeys(sets) if found and len(found) < len(groups)]
