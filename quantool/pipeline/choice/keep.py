"""Which units stay in float: those whose error costs more than their multiplications as integers save.

Groups are measured by switching their rounding on alone; what looks worth keeping is then tried as a real quantized
model, and dropped again group by group where the result is no worse for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from quantool.pipeline.choice.candidate import Candidate, InFloat
from quantool.pipeline.choice.noise import Noise, largest_shares
from quantool.pipeline.choice.score import Judge
from quantool.pipeline.choice.sources import noise_sources, spared
from quantool.pipeline.choice.units import FusionGroup, fusion_groups
from quantool.pipeline.choice.work import work_of
from quantool.plan.reasons import reason
from quantool.report.wording import percent
from quantool.schema import GraphFacts, Plan, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What speed is given up for.

    enough_db: a result that reads this many dB is good enough; group_db: each group that stays in float must gain this
    much; float_db: and all of the multiplications that are integers would have to gain this much, a share of them that
    share of it.
    """

    enough_db: float
    group_db: float
    float_db: float


#: the default's: speed comes first
FRUGAL: Final = Terms(enough_db=40.0, group_db=1.0, float_db=60.0)
#: the highest effort's: accuracy comes first, within the budgets below
GENEROUS: Final = Terms(enough_db=60.0, group_db=0.1, float_db=10.0)
#: shares of the model's work, and of its weights, that the highest effort may leave in float; integers save at most
#: three quarters of the time and size of what they replace, so that the largest costs 30 % of either where they do
BUDGETS: Final = (0.1, 0.05, 0.025)
#: at the highest effort, measuring may run the model this many times as often as calibration did
MOST_RUNS: Final = 8
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
    terms: Terms = FRUGAL

    def best(self, candidate: Candidate, *, runs: int) -> Candidate:
        """The candidate, or what is better with groups in float. runs: how often the model may run to measure them."""
        if self.scores[candidate.label] >= self.terms.enough_db:
            return candidate
        groups = fusion_groups(candidate.source.facts, candidate.plan)
        feeds = self.judge.feeds
        noise = Noise(candidate.source, candidate.plan, candidate.parameters, groups, feeds, runs=runs - 1)
        alone = list(likely_culprits(candidate.source.facts, groups))[: noise.trials // 2]
        shares = largest_shares(noise, len(groups), alone=alone, least=LEAST_SHARE)
        return self.without_worst(candidate, groups, shares)

    def without_worst(
        self, candidate: Candidate, groups: Sequence[FusionGroup], shares: Mapping[tuple[int, ...], float]
    ) -> Candidate:
        """The candidate, or what is better with groups in float. shares: the noise of sets of groups, all in one set.

        A lost task lowers the score and not the noise, which is then what the sets add up to.
        """
        least = LEAST_SHARE * min(10 ** (-self.scores[candidate.label] / 10), sum(shares.values()))
        alone = {members[0]: share for members, share in shares.items() if len(members) == 1 and share >= least}
        worst = sorted(alone, key=lambda number: (-alone[number], number))[:MOST_GROUPS]
        readers = {node for number in worst for node in groups[number].readers}
        reading = [number for number, group in enumerate(groups) if not readers.isdisjoint(group.nodes)]
        free = (number for number in (*worst, *reading[:MOST_GROUPS]) if self.fixed.isdisjoint(groups[number].nodes))
        macs = work_of(candidate.source, groups, self.judge.feeds[0]).macs
        trials = _Trials(self, candidate, groups, macs=macs, work=macs)
        kept = trials.pruned(frozenset(free))
        return trials.explained(kept) if trials.worth(kept) > trials.worth(frozenset()) else candidate

    def best_within(self, candidate: Candidate, *, runs: int, gain_db: float) -> Candidate:
        """The candidate, or one that gains this much with a bounded share of its work in float.

        runs: of the calibration.
        """
        if self.scores[candidate.label] >= self.terms.enough_db:
            return candidate
        facts, feeds = candidate.source.facts, self.judge.feeds
        groups = fusion_groups(facts, candidate.plan)
        sources = list(noise_sources(facts, candidate.plan, groups))
        parts, most = [source.part for source in sources], MOST_RUNS * runs
        if len(sources) >= most:
            return self.best(candidate, runs=most)
        noise = Noise(
            candidate.source, candidate.plan, candidate.parameters, parts, feeds, runs=most, fewest=len(sources)
        )
        shares = {number: noise.share((number,)) for number in range(len(sources))}
        work = work_of(candidate.source, groups, feeds[0])
        fixed = frozenset(i for i, group in enumerate(groups) if not self.fixed.isdisjoint(group.nodes))
        trials = _Trials(self, candidate, groups, macs=work.macs, work=work.price)
        sets = [spared(sources, shares, work.price, budget=budget, fixed=fixed) for budget in BUDGETS]
        nothing: frozenset[int] = frozenset()
        clear = [kept for kept in dict.fromkeys(sets) if trials.score(kept) >= trials.score(nothing) + gain_db]
        best = max((nothing, *clear), key=trials.worth)
        return trials.explained(best) if best else candidate


@dataclass(slots=True)
class _Trials:
    """Sets of groups in float, tried as models. Each is tried once.

    macs: the share of multiply-adds in each group, as it is told; work: what is given up with it.
    """

    keeper: Keeper
    base: Candidate
    groups: Sequence[FusionGroup]
    macs: Sequence[float]
    work: Sequence[float]
    _tried: dict[frozenset[int], tuple[Candidate, float]] = field(default_factory=dict)

    def worth(self, kept: frozenset[int]) -> float:
        """The score, as far as it matters, less what staying in float must gain."""
        return min(self.score(kept), self.keeper.terms.enough_db) - self._price(kept)

    def score(self, kept: frozenset[int]) -> float:
        """The score of the model with these groups in float."""
        return self._result(kept)[1]

    def pruned(self, kept: frozenset[int]) -> frozenset[int]:
        """The set without what no score could pay for, and what it does as well without, the dearest first."""
        for number in sorted(kept, key=lambda i: (-self.work[i], i)):
            fewer = kept - {number}
            hopeless = self.keeper.terms.enough_db - self._price(kept) <= self.worth(frozenset())
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
        terms, share = self.keeper.terms, sum(self.work[number] for number in kept) / max(sum(self.work), 1e-9)
        return terms.group_db * len(kept) + terms.float_db * share

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
