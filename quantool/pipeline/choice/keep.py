"""Which units stay in float: those whose error costs more than their multiplications as integers save.

Groups are measured by switching their rounding on alone; what looks worth keeping is then tried as a real quantized
model, and dropped again group by group where the result is no worse for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from quantool import graph
from quantool.graph.outputs import with_outputs
from quantool.pipeline.choice.candidate import Candidate, InFloat
from quantool.pipeline.choice.noise import Noise, largest_shares
from quantool.pipeline.choice.score import Judge
from quantool.pipeline.choice.units import FusionGroup, fusion_groups
from quantool.pipeline.source import FloatModel
from quantool.plan.reasons import reason
from quantool.report.wording import percent
from quantool.runtime import tap
from quantool.schema import Feed, GraphFacts, Plan, Reason

#: a result that reads this many dB is good enough: nothing more is given up for accuracy
ENOUGH_DB: Final = 40.0
#: each group that stays in float must gain this much
GROUP_DB: Final = 1.0
#: and all of the multiplications that are integers would have to gain this much, a share of them that share of it
FLOAT_DB: Final = 60.0
#: a group with less of the noise gains too little
LEAST_SHARE: Final = 0.1
#: groups that are tried together, with as many of those that read them
MOST_GROUPS: Final = 4


@dataclass(slots=True, kw_only=True)
class Keeper:
    """Tries models with some groups in float.

    scores: of what was tried, by label; fixed: nodes that the user wants as integers.
    """

    judge: Judge
    remade: InFloat
    scores: dict[str, float]
    fixed: frozenset[str] = frozenset()

    def best(self, candidate: Candidate, *, runs: int) -> Candidate:
        """The candidate, or what is better with groups in float. runs: how often the model may run to measure them."""
        if self.scores[candidate.label] >= ENOUGH_DB:
            return candidate
        groups = fusion_groups(candidate.source.facts, candidate.plan)
        feeds = self.judge.feeds
        noise = Noise(candidate.source, candidate.plan, candidate.parameters, groups, feeds, runs=runs - 1)
        alone = list(likely_culprits(candidate.source.facts, groups))[: noise.trials // 2]
        shares = largest_shares(noise, len(groups), alone=alone, least=LEAST_SHARE)
        return self.without_worst(candidate, groups, {s[0]: share for s, share in shares.items() if len(s) == 1})

    def without_worst(
        self, candidate: Candidate, groups: Sequence[FusionGroup], shares: Mapping[int, float]
    ) -> Candidate:
        """The candidate, or what is better with groups in float. shares: the noise of groups alone."""
        least = LEAST_SHARE * 10 ** (-self.scores[candidate.label] / 10)
        found = [number for number, share in shares.items() if share >= least]
        worst = sorted(found, key=lambda number: (-shares[number], number))[:MOST_GROUPS]
        readers = {node for number in worst for node in groups[number].readers}
        reading = [number for number, group in enumerate(groups) if not readers.isdisjoint(group.nodes)]
        free = (number for number in (*worst, *reading[:MOST_GROUPS]) if self.fixed.isdisjoint(groups[number].nodes))
        trials = _Trials(self, candidate, groups, group_macs(candidate.source, groups, self.judge.feeds[0]))
        kept = trials.pruned(frozenset(free))
        return trials.explained(kept) if trials.worth(kept) > trials.worth(frozenset()) else candidate


@dataclass(slots=True)
class _Trials:
    """Sets of groups in float, tried as models. Each is tried once. macs: the share of multiply-adds in each group."""

    keeper: Keeper
    base: Candidate
    groups: Sequence[FusionGroup]
    macs: Sequence[float]
    _tried: dict[frozenset[int], tuple[Candidate, float]] = field(default_factory=dict)

    def worth(self, kept: frozenset[int]) -> float:
        """The score, as far as it matters, less what staying in float must gain."""
        return min(self._result(kept)[1], ENOUGH_DB) - self._price(kept)

    def pruned(self, kept: frozenset[int]) -> frozenset[int]:
        """The set without what no score could pay for, and what it does as well without, the dearest first."""
        for number in sorted(kept, key=lambda i: (-self.macs[i], i)):
            fewer = kept - {number}
            hopeless = ENOUGH_DB - self._price(kept) <= self.worth(frozenset())
            if hopeless or self.worth(fewer) >= self.worth(kept):
                kept = fewer
        return kept

    def explained(self, kept: frozenset[int]) -> Candidate:
        """The model with these groups in float, and why each of them is."""
        candidate, score = self._result(kept)
        reasons: dict[str, Reason] = {}
        for number in kept:
            loss = score - self._result(kept - {number})[1]
            detail = f"Quantizing it costs {loss:.1f} dB and saves {percent(self.macs[number])} of the multiply-adds."
            reasons.update(dict.fromkeys(self.groups[number].nodes, reason("too-lossy", detail)))
        return replace(candidate, plan=_with_reasons(candidate.plan, reasons))

    def _price(self, kept: frozenset[int]) -> float:
        return GROUP_DB * len(kept) + FLOAT_DB * sum(self.macs[number] for number in kept) / max(sum(self.macs), 1e-9)

    def _result(self, kept: frozenset[int]) -> tuple[Candidate, float]:
        if not kept:
            return self.base, self.keeper.scores[self.base.label]
        if kept not in self._tried:
            nodes = frozenset(node for number in kept for node in self.groups[number].nodes)
            made = self.keeper.remade(self.base, nodes)
            made = replace(made, label=f"{self.base.label}, in float: {self._named(kept)}")
            score = self.keeper.judge.score(made.source, made.plan, made.parameters)
            self.keeper.scores[made.label] = score
            self._tried[kept] = made, score
        return self._tried[kept]

    def _named(self, kept: frozenset[int]) -> str:
        names = ", ".join(self.groups[number].name for number in sorted(kept))
        return f"{names} ({percent(sum(self.macs[number] for number in kept))} of multiply-adds)"


def group_macs(source: FloatModel, groups: Sequence[FusionGroup], feed: Feed) -> list[float]:
    """The share of the model's multiply-adds in each group, on a sample, since shapes may be unknown before."""
    facts = source.facts
    nodes = [facts.by_name[name] for name in graph.macs(facts) if not facts.by_name[name].scope]
    read = dict.fromkeys(name for node in nodes for name in (*node.inputs, node.outputs[0]) if name)
    computed = [name for name in read if facts.producer(name) is not None]
    stream = tap(source.normalized, [feed], groups=[computed], with_outputs=with_outputs)
    arrays = {**feed, **next(stream, (0, {}))[1]}
    shapes = {name: arrays[name].shape for name in read if isinstance(arrays.get(name), np.ndarray)}
    seen = {name: replace(facts.tensors[name], shape=shape) for name, shape in shapes.items()}
    macs = graph.macs(replace(facts, tensors={**facts.tensors, **seen}))
    whole = max(sum(macs.values()), 1)
    return [sum(macs.get(node, 0) for node in group.nodes) / whole for group in groups]


def likely_culprits(facts: GraphFacts, groups: Sequence[FusionGroup]) -> Iterator[int]:
    """The groups that ruin an output most often: the last ones before it, and Concats."""
    inside = {node: number for number, group in enumerate(groups) for node in group.nodes}
    last: set[int] = set()
    pending, seen = list(facts.outputs), set(facts.outputs)
    while pending:
        node = facts.producer(pending.pop())
        if node is not None and node.name in inside:
            last.add(inside[node.name])
        elif node is not None:
            fresh = [tensor for tensor in node.inputs if tensor and tensor not in seen]
            seen.update(fresh)
            pending.extend(fresh)
    yield from sorted(last, reverse=True)
    for number, group in enumerate(groups):
        if number not in last and any(facts.by_name[node].op_type == "Concat" for node in group.nodes):
            yield number


def _with_reasons(plan: Plan, reasons: Mapping[str, Reason]) -> Plan:
    decisions = {
        name: replace(decision, reason=reasons[name]) if name in reasons and not decision.quantized else decision
        for name, decision in plan.decisions.items()
    }
    return replace(plan, decisions=decisions)
