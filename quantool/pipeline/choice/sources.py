"""Sources of noise, and the groups that silence most of it when they are left in float within a bound on the work.

Small errors add up at the outputs (Nagel et al., "A White Paper on Neural Network Quantization", 2021,
arXiv:2106.08295, section 3.6, ranks layers on that ground). What is rounded for one group may be needed by another,
so that a source is silent only where all groups that need it are in float: a knapsack whose items share parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from quantool.pipeline.choice.units import FusionGroup, integer_readers
from quantool.schema import GraphFacts, Plan

#: what leaving a group in float costs besides its work, as a share of all: calls of what converts its tensors
CONVERSION: Final = 0.005
#: a step that silences less than this share of the noise gains too little
LEAST_STEP: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is rounded: weights, or tensors of one scale. needed: the numbers of the groups that want it rounded."""

    part: FusionGroup
    needed: frozenset[int]


def noise_sources(facts: GraphFacts, plan: Plan, groups: Sequence[FusionGroup]) -> Iterator[Source]:
    """The weights of each group, and its tensors scale by scale with all who read them as integers."""
    home = {node: number for number, group in enumerate(groups) for node in group.nodes}
    for number, group in enumerate(groups):
        if group.weights:
            yield Source(part=replace(group, tensors=()), needed=frozenset({number}))
        scales: dict[str, list[str]] = {}
        for tensor in group.tensors:
            scales.setdefault(plan.activations[tensor].group, []).append(tensor)
        for tensors in scales.values():
            readers = {home[node] for tensor in tensors for node, _ in integer_readers(facts, plan, tensor)}
            part = replace(group, tensors=tuple(tensors), weights=())
            yield Source(part=part, needed=frozenset({number, *readers}))


def spared(
    sources: Sequence[Source],
    shares: Mapping[int, float],
    work: Sequence[float],
    *,
    budget: float,
    fixed: frozenset[int] = frozenset(),
) -> frozenset[int]:
    """The groups to leave in float: step by step those that silence most noise for what they cost.

    shares: the noise of each source, by number; work: what each group gives up in float, a share of the model; budget:
    what that and conversions may come to; fixed: groups that stay integers.
    """
    total = sum(shares.values())
    kept: frozenset[int] = frozenset()
    left = budget
    while True:
        steps = {source.needed - kept for source in sources if not source.needed <= kept and not source.needed & fixed}
        found = {step: _gain(sources, shares, kept, step) for step in steps if _cost(step, work) <= left}
        worthwhile = {step: gain for step, gain in found.items() if gain >= LEAST_STEP * total > 0}
        if not worthwhile:
            return kept
        best = max(worthwhile, key=lambda step: (worthwhile[step] / _cost(step, work), sorted(step)))
        kept, left = kept | best, left - _cost(best, work)


def _cost(step: frozenset[int], work: Sequence[float]) -> float:
    return sum(work[number] + CONVERSION for number in step)


def _gain(sources: Sequence[Source], shares: Mapping[int, float], kept: frozenset[int], step: frozenset[int]) -> float:
    """The noise that a step silences."""
    return sum(
        shares[number]
        for number, source in enumerate(sources)
        if source.needed <= kept | step and not source.needed <= kept
    )
