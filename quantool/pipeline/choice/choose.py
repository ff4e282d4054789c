"""Choosing by measurement: ranges, GPTQ, bias correction, smoothing, and what stays in float, on the kept feeds.

A trial is a quantized model run beside the float one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from calibrators.statistic import Statistic
from quantool import graph
from quantool.algorithms.smoothing import LEAST_SAVED
from quantool.pipeline.choice.candidate import Candidate, InFloat, Planner
from quantool.pipeline.choice.channels import Group
from quantool.pipeline.choice.correct import corrections
from quantool.pipeline.choice.equalize import EQUALIZED, equalized
from quantool.pipeline.choice.forced import Ruling
from quantool.pipeline.choice.keep import FRUGAL, GENEROUS, Keeper
from quantool.pipeline.choice.noise import is_measurable
from quantool.pipeline.choice.rescale import Origin, Rescaled
from quantool.pipeline.choice.round_weights import Rounding, rounded, with_codes
from quantool.pipeline.choice.score import Judge
from quantool.pipeline.choice.sequential import sequential_corrections
from quantool.pipeline.choice.smooth import SMOOTHED, smoothed
from quantool.pipeline.source import FloatModel
from quantool.recipe import Algorithm, Effort, Recipe
from quantool.report.model import Trial
from quantool.report.wording import plural
from quantool.runtime import Thrift
from quantool.schema import Feed, Note, Plan
from quantool.solve import NO_CORRECTIONS, Corrections, default_calibrator, solve
from quantool.stats import Stats

#: a choice must gain this much: what sixteen samples say is not surer than that
LEAST_GAIN_DB = 1.0
#: and all multiplications as integers may cost this much, a share of them that share of it
MOST_LOSS_DB = 3.0
#: models larger than this are not tried out: every trial quantizes all weights again
LARGEST_TRIAL_BYTES = 1_000_000_000
#: how labels name bias correction
CORRECTED = ", bias correction"
#: changes of the float graph, as labels name them
_CHANGES = {EQUALIZED: "equalized", SMOOTHED: "smoothed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judges:
    """Samples in memory. judging: what scores are measured on; fitting: what algorithms are fitted to.

    held_out: feeds judge that did not calibrate.
    """

    judging: Sequence[Feed]
    fitting: Sequence[Feed]
    held_out: bool


def choose(
    source: FloatModel, stats: Stats, planner: Planner, samples: Judges, *, recipe: Recipe
) -> tuple[Candidate, tuple[Trial, ...], Sequence[Note]]:
    """The best candidate by score, what was tried, and what could not be.

    Without held-out feeds or effort, the first one and nothing.
    """
    maker, first = _begun(source, stats, planner, samples, recipe)
    too_large = source.loaded.source.size_bytes > LARGEST_TRIAL_BYTES or first.plan.reference
    too_large = too_large or source.normalized.thrift is Thrift.WEIGHTS
    blind = not samples.judging or not samples.held_out
    if blind or recipe.effort is Effort.FAST or too_large or not first.plan.activations:
        return first, (), maker.notes
    judge = Judge(source, samples.judging, recipe)
    scores = {first.label: judge.score(first.source, first.plan, first.parameters)}
    best = first
    for proposal in maker.proposals(first):
        candidate = proposal(best)
        if candidate is None:
            continue
        scores[candidate.label] = judge.score(candidate.source, candidate.plan, candidate.parameters)
        if scores[candidate.label] >= scores[best.label] + _needed_gain(candidate, best):
            best = candidate
    asked = recipe.include or recipe.include_op
    if not asked and is_measurable(best.source, best.plan, memory=recipe.memory):
        most = recipe.effort is Effort.MAX
        terms, fixed = GENEROUS if most else FRUGAL, maker.ruling.named
        keeper = Keeper(judge=judge, remade=maker.in_float, scores=scores, fixed=fixed, terms=terms)
        runs = stats.samples
        best = keeper.best_within(best, runs=runs, gain_db=LEAST_GAIN_DB) if most else keeper.best(best, runs=runs)
    trials = tuple(Trial(name=n, score_db=v, chosen=n == best.label) for n, v in scores.items())
    return best, trials, maker.notes


def beginning(
    source: FloatModel, stats: Stats, planner: Planner, samples: Judges, *, recipe: Recipe
) -> tuple[Candidate, InFloat]:
    """The candidate that a choice begins with, and what leaves nodes of one in float."""
    maker, first = _begun(source, stats, planner, samples, recipe)
    return first, maker.in_float


def _begun(
    source: FloatModel, stats: Stats, planner: Planner, samples: Judges, recipe: Recipe
) -> tuple[_Maker, Candidate]:
    ruling = Ruling.of(source.facts, recipe)
    maker = _Maker(planner=planner, recipe=recipe, fitting=samples.fitting, known=stats, ruling=ruling)
    calibrator = str(recipe.calibrator or default_calibrator(recipe.activations))
    return maker, maker.first(source, stats.tensors, calibrator)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """Makes candidates. fitting: the feeds that algorithms are fitted to; known: what they may use instead.

    ruling: what rules force, which every candidate has, and what they forbid; notes: what could not be done.
    """

    planner: Planner
    recipe: Recipe
    fitting: Sequence[Feed]
    known: Stats
    ruling: Ruling
    notes: list[Note] = field(default_factory=list)

    def first(self, source: FloatModel, stats: Mapping[str, Statistic], calibrator: str) -> Candidate:
        """The candidate that all others are held against: equalized and smoothed where rules want it."""
        found = self.made(source, stats, calibrator)
        if self.ruling.forced(Algorithm.EQUALIZATION):
            found = self._equalized(found, self.ruling.is_forced_group, balanced_too=True) or found
        nodes = self.ruling.forced(Algorithm.SMOOTHING)
        if not nodes:
            return found
        for convolutions in (False, True):
            forced = self._smoothed(
                found,
                lambda group: nodes.issuperset(group.readers),
                convolutions=convolutions,
                least_saved=-math.inf,
            )
            found = found if forced is None else self.made_from(forced, calibrator)
        return found

    def made(
        self,
        source: FloatModel,
        stats: Mapping[str, Statistic],
        calibrator: str,
        *,
        allowed: frozenset[str] = frozenset(),
        origins: Mapping[str, Origin] = MappingProxyType({}),
    ) -> Candidate:
        """Weights rounded to nearest, ranges by a calibrator."""
        plan, ranges = self.planner(source, stats, calibrator, allowed, frozenset())
        spectra = f", {plural(len(allowed), 'node')} before a Log too" if allowed else ""
        changes = "".join(f", {said}" for change, said in _CHANGES.items() if change in source.changed)
        candidate = Candidate(
            label=f"{calibrator} ranges{changes}{spectra}",
            allowed=allowed,
            source=source,
            stats=stats,
            origins=origins,
            calibrator=calibrator,
            plan=plan,
            ranges=ranges,
            parameters=solve(plan, ranges, load=source.constant, recipe=self.recipe),
        )
        return self._forced(candidate)

    def made_from(self, found: Rescaled, calibrator: str, allowed: frozenset[str] = frozenset()) -> Candidate:
        """The same of a model that was rescaled."""
        return self.made(found.source, found.stats, calibrator, allowed=allowed, origins=found.origins)

    def proposals(self, first: Candidate) -> Iterator[Callable[[Candidate], Candidate | None]]:
        """What may be better than the best so far, one after the other; None where it would change nothing."""
        recipe = self.recipe
        yield self.equalized
        if recipe.calibrator is None and default_calibrator(recipe.activations) != "minmax":
            yield lambda best: self.made(best.source, best.stats, "minmax", origins=best.origins)
        yield partial(self.spectral, first)
        everywhere = recipe.effort is Effort.MAX
        for convolutions in (False, True) if everywhere else ():
            yield partial(self.smoothed, convolutions=convolutions)
        yield partial(self.rounded, everywhere=everywhere)
        yield self.corrected
        if everywhere:
            yield self.corrected_in_turn

    def spectral(self, first: Candidate, best: Candidate) -> Candidate | None:
        """The best so far with the nodes before a Log, Sqrt, Sin or Cos as integers: faster, if it is no worse."""
        nodes = spectral_nodes(first.plan)
        if not nodes:
            return None
        return self.made(best.source, best.stats, best.calibrator, allowed=nodes, origins=best.origins)

    def equalized(self, best: Candidate) -> Candidate | None:
        """The same on a model whose channels are balanced."""
        found = self._equalized(best, self.ruling.is_open_group)
        forced = EQUALIZED in best.source.changed
        return replace(found, label=f"{found.label} elsewhere too") if found is not None and forced else found

    def _equalized(
        self, best: Candidate, among: Callable[[Group], bool], *, balanced_too: bool = False
    ) -> Candidate | None:
        found = equalized(
            best.source,
            best.plan,
            best.stats,
            self.fitting,
            recipe=self.recipe,
            among=among,
            balanced_too=balanced_too,
            origins=best.origins,
        )
        if isinstance(found, Note):
            self.notes.append(found)
        return self.made_from(found, best.calibrator) if isinstance(found, Rescaled) else None

    def smoothed(self, best: Candidate, *, convolutions: bool) -> Candidate | None:
        """The best so far with smoothed inputs, of matrix products or of convolutions."""
        found = self._smoothed(best, self.ruling.is_open_group, convolutions=convolutions)
        if found is None:
            return None
        candidate = self.made_from(found, best.calibrator, best.allowed)
        where = " in convolutions" if convolutions else ""
        also = " too" if SMOOTHED in best.source.changed else ""
        return replace(candidate, label=f"{candidate.label}{where}{also}")

    def _smoothed(
        self,
        best: Candidate,
        among: Callable[[Group], bool],
        *,
        convolutions: bool,
        least_saved: float = LEAST_SAVED,
    ) -> Rescaled | None:
        found = smoothed(
            best.source,
            best.plan,
            best.stats,
            self.fitting,
            recipe=self.recipe,
            known=self.known.channels,
            origins=best.origins,
            among=among,
            convolutions=convolutions,
            least_saved=least_saved,
        )
        if isinstance(found, Note):
            self.notes.append(found)
        return found if isinstance(found, Rescaled) else None

    def rounded(self, best: Candidate, *, everywhere: bool) -> Candidate | None:
        """The same with GPTQ, everywhere or where the weights' noise dominates."""
        found = self._roundings(best, everywhere=everywhere, at=self.ruling.is_open)
        if not found:
            return None
        label = f"{best.label}, GPTQ in {plural(len(found), 'layer')}"
        return self._corrected_by_force(self.solved(replace(best, label=label, roundings={**best.roundings, **found})))

    def corrected(self, best: Candidate) -> Candidate | None:
        """The same with bias correction."""
        forced = self.ruling.forced(Algorithm.BIAS_CORRECTION)
        shifts = self._shifts(best, at=lambda node: self.ruling.is_open(node) or node in forced)
        if not shifts.keys() - forced:
            return None
        return self.solved(replace(best, label=f"{best.label}{CORRECTED}"), shifts)

    def corrected_in_turn(self, best: Candidate) -> Candidate | None:
        """The same with bias correction layer by layer, from what each one reads in the quantized model."""
        forced = self.ruling.forced(Algorithm.BIAS_CORRECTION)
        start = self._shifts(best, at=lambda node: self.ruling.is_open(node) or node in forced)
        if not start.keys() - forced or not self.fitting:
            return None
        label = f"{best.label.removesuffix(CORRECTED)}{CORRECTED} layer by layer"
        shifts = sequential_corrections(
            best,
            start,
            self.fitting,
            solved=lambda corrections: self.solved(best, corrections).parameters,
            threads=self.recipe.threads or 0,
        )
        return self.solved(replace(best, label=label), shifts)

    def solved(self, candidate: Candidate, shifts: Corrections = NO_CORRECTIONS) -> Candidate:
        """A candidate's parameters from its roundings and what leaves its biases."""
        scales = {node: found.scale for node, found in candidate.roundings.items() if found.scale is not None}
        parameters = solve(
            candidate.plan,
            candidate.ranges,
            load=candidate.source.constant,
            recipe=self.recipe,
            corrections=shifts,
            scales=scales,
        )
        return replace(candidate, parameters=with_codes(parameters, candidate.roundings))

    def in_float(self, best: Candidate, nodes: frozenset[str]) -> Candidate:
        """The same with these nodes in float."""
        plan, ranges = self.planner(best.source, best.stats, best.calibrator, best.allowed, nodes)
        standing = {spec.node for spec in plan.weights}
        shifts = {node: error for node, error in best.parameters.corrections.items() if node in standing}
        roundings = {node: found for node, found in best.roundings.items() if node in standing}
        return self.solved(replace(best, plan=plan, ranges=ranges, roundings=roundings), shifts)

    def _forced(self, candidate: Candidate) -> Candidate:
        """The same with the rounding and the bias correction that rules want."""
        nodes = self.ruling.forced(Algorithm.GPTQ)
        if nodes:
            found = self._roundings(candidate, everywhere=True, at=nodes.__contains__)
            candidate = self.solved(replace(candidate, roundings=found))
        return self._corrected_by_force(candidate)

    def _corrected_by_force(self, candidate: Candidate) -> Candidate:
        """The same with the bias correction that rules want, which follows from all that was decided before."""
        nodes = self.ruling.forced(Algorithm.BIAS_CORRECTION)
        return self.solved(candidate, self._shifts(candidate, at=nodes.__contains__)) if nodes else candidate

    def _roundings(self, best: Candidate, *, everywhere: bool, at: Callable[[str], bool]) -> Mapping[str, Rounding]:
        return rounded(
            best.source,
            best.plan,
            best.parameters,
            self.fitting,
            known=self.known.grams,
            origins=best.origins,
            everywhere=everywhere,
            at=at,
        )

    def _shifts(self, best: Candidate, *, at: Callable[[str], bool]) -> Corrections:
        known = self.known.channels
        return corrections(best.source, best.plan, best.parameters, self.fitting, known=known, at=at)


def _needed_gain(candidate: Candidate, best: Candidate) -> float:
    """How many dB better a candidate must be: fewer than none where it runs more multiplications as integers."""
    more = candidate.allowed - best.allowed
    if not more:
        return LEAST_GAIN_DB
    macs = graph.macs(candidate.source.facts)
    return -MOST_LOSS_DB * sum(macs.get(node, 0) for node in more) / max(sum(macs.values()), 1)


def spectral_nodes(plan: Plan) -> frozenset[str]:
    """The nodes that a plan keeps in float only because they feed a Log or its kin."""
    kept = (d for d in plan.decisions.values() if d.reason is not None)
    return frozenset(d.node for d in kept if d.reason is not None and d.reason.code == "before-log")
