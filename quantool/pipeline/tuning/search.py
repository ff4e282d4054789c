"""The search of `tune`: up the ladder until a candidate meets the target."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from quantool import graph
from quantool.errors import DataError, QuantoolError
from quantool.pipeline.choice.knapsack import Group, groups_of, proposals
from quantool.pipeline.judge import worst_sqnr
from quantool.pipeline.tuning.bench import Bench, Figures
from quantool.pipeline.tuning.ladder import (
    Step,
    at_run_time,
    fewer_operators,
    first_recipe,
    forms,
    recovered,
    spared,
    weights_alone,
)
from quantool.recipe import Recipe
from quantool.report.model import ResponsibleRow
from quantool.report.wording import listing
from quantool.schema import Mode

#: what the noise of groups adds to their drops, as a share of the budget: few samples drop alike
NOISE_PART = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A step that was tried: its figures, or why it is impossible. spared: the groups it spares, by number."""

    step: Step
    figures: Figures | None
    error: str | None = None
    spared: frozenset[int] = frozenset()

    @property
    def meets(self) -> bool:
        """Whether every target holds."""
        return self.figures is not None and self.figures.meets


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """What quantizing one group alone costs: drop of the metric, and noise over signal."""

    group: Group
    drop: float | None
    share: float


@dataclass(slots=True, kw_only=True)
class Search:
    """Climbs the ladder. given: the user's recipe; told: hears of each candidate; deadline: none starts after it."""

    bench: Bench
    given: Recipe
    told: Callable[[Tried], None]
    deadline: float | None = None
    tried: list[Tried] = field(default_factory=list)
    blames: list[Blame] = field(default_factory=list)

    @property
    def in_time(self) -> bool:
        """Whether another candidate may start."""
        return self.deadline is None or not self.tried or time.monotonic() < self.deadline

    def climb(self) -> None:
        """Try rung after rung, and stop at the first that meets the target."""
        first = first_recipe(self.given)
        if self._forms(first):
            return
        base = self._best()
        if base is not None and base.figures is not None:
            facts = base.figures.facts
            if any(self._rung([step]) for step in recovered(base.step, facts, graph.macs(facts))):
                return
            if self._spare(self._best() or base):
                return
        self._rung(weights_alone(self.given, first))

    def _forms(self, first: Recipe) -> bool:
        """The first rung: formats, types and operator sets by the cheapest recipe."""
        step, *steps = forms(self.given, first)
        plain = self._try(step)
        if plain.figures is not None:
            facts = plain.figures.facts
            steps += fewer_operators(step, facts, plain.figures.plan)
            steps += at_run_time(self.given, first, facts, graph.macs(facts))
        return self._rung(steps) or plain.meets

    def loss(self, figures: Figures) -> float:
        """How far from the float model: the drop of the metric, or the worst output's noise in dB."""
        measured = figures.evaluation.measured
        if self.given.max_drop is not None and measured is not None and measured.drop is not None:
            return measured.drop
        return -(worst_sqnr(figures.evaluation.outputs) or 0.0)

    def winners(self) -> Sequence[Tried]:
        """Those that meet the target, the fastest first; where none does, the one that comes nearest to float."""
        meeting = sorted((t for t in self.tried if t.meets), key=_speed, reverse=True)
        return meeting or sorted((t for t in self.tried if t.figures is not None), key=self._loss_of)[:1]

    def responsible(self, chosen: Tried) -> tuple[ResponsibleRow, ...]:
        """The groups that the chosen candidate spares, the dearest first."""
        kept_in = "float" if chosen.step.rung == "float" else "16 bits"
        blames = [self.blames[number] for number in chosen.spared]
        blames.sort(key=lambda b: (-(b.drop or 0.0), -b.share))
        return tuple(
            ResponsibleRow(nodes=b.group.nodes, kept_in=kept_in, drop=b.drop, sqnr_db=_decibel(b.share)) for b in blames
        )

    def _rung(self, steps: Iterable[Step], spared: frozenset[int] = frozenset()) -> bool:
        """Try all steps of a rung; whether one meets the target."""
        found = [self._try(step, spared) for step in steps if self.in_time]
        return any(t.meets for t in found)

    def _try(self, step: Step, spared: frozenset[int] = frozenset()) -> Tried:
        try:
            tried = Tried(step=step, figures=self.bench.tried(step.recipe), spared=spared)
        except DataError:
            raise
        except QuantoolError as error:
            tried = Tried(step=step, figures=None, error=error.what, spared=spared)
        self.tried.append(tried)
        self.told(tried)
        return tried

    def _best(self) -> Tried | None:
        """The static candidate that is nearest to float."""
        static = [t for t in self.tried if t.figures is not None and t.step.recipe.mode is Mode.STATIC]
        return min(static, key=self._loss_of, default=None)

    def _loss_of(self, tried: Tried) -> float:
        assert tried.figures is not None
        return self.loss(tried.figures)

    def _spare(self, base: Tried) -> bool:
        """Spare the groups whose error is dear, found by quantizing each alone; whether that meets the target."""
        assert base.figures is not None
        groups = groups_of(base.figures.facts, base.figures.plan)
        if len(groups) < 2:
            return False
        self.blames = list(self._alone(base.step, groups))
        errors, budget, whole = self._errors(base.figures)
        for chosen in proposals(errors, groups[: len(errors)], budget=budget, whole=whole):
            nodes = tuple(name for number in sorted(chosen) for name in groups[number].nodes)
            shown = listing([groups[number].nodes[0] for number in sorted(chosen)], most=3)
            if self._rung(spared(base.step, nodes, shown), chosen):
                return True
        return False

    def _alone(self, step: Step, groups: tuple[Group, ...]) -> Iterator[Blame]:
        """What each group costs, all others in float; groups that no time is left for are not among them."""
        for group in groups:
            if not self.in_time:
                return
            others = tuple(name for other in groups if other is not group for name in other.nodes)
            recipe = replace(step.recipe, exclude=(*step.recipe.exclude, *others))
            try:
                figures = self.bench.tried(recipe, timed=False)
            except DataError:
                raise
            except QuantoolError:  # alone it does not become integers: it costs nothing alone
                yield Blame(group=group, drop=None, share=0.0)
                continue
            measured = figures.evaluation.measured
            drop = None if measured is None else measured.drop
            yield Blame(group=group, drop=drop, share=_share(figures))

    def _errors(self, whole: Figures) -> tuple[list[float], float, float]:
        """The error of each group, what may remain, and the error of all together, in one unit."""
        if self.given.max_drop is None:
            limit = self.given.min_sqnr if self.given.min_sqnr is not None else 0.0
            return [b.share for b in self.blames], 10 ** (-limit / 10), _share(whole)
        budget = max(self.given.max_drop, 1e-9)
        total = sum(b.share for b in self.blames) or 1.0
        errors = [max(b.drop or 0.0, 0.0) + NOISE_PART * budget * b.share / total for b in self.blames]
        return errors, budget, max(self.loss(whole), 0.0)


def _speed(tried: Tried) -> tuple[float, int]:
    """How fast, then how small."""
    assert tried.figures is not None
    latency = tried.figures.evaluation.latency
    return (0.0 if latency is None else latency.speedup, -tried.figures.size_bytes)


def _decibel(share: float) -> float | None:
    return None if share <= 0.0 else -10.0 * math.log10(share)


def _share(figures: Figures) -> float:
    """Noise over signal of the worst output."""
    found = worst_sqnr(figures.evaluation.outputs)
    return 0.0 if found is None else float(10 ** (-found / 10))
