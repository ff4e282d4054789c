"""Deciding: statistics, the plan they lead to, and the choice that the samples judge best."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from calibrators.statistic import Statistic
from quantool import graph
from quantool.graph.scopes import paused_collector
from quantool.pipeline.calibration.statistics import (
    collect_request,
    gather,
    new_to,
    taps_of,
    usable_stats,
    wanted_by,
    with_channels,
    with_grams,
)
from quantool.pipeline.choice.candidate import Candidate, InFloat
from quantool.pipeline.choice.choose import LARGEST_TRIAL_BYTES, Judges, beginning, choose, spectral_nodes
from quantool.pipeline.choice.equalize import not_equalized
from quantool.pipeline.choice.forced import Ruling
from quantool.pipeline.choice.noise import is_measurable
from quantool.pipeline.choice.round_weights import MOST_INPUTS
from quantool.pipeline.choice.target_size import fitted_to_size
from quantool.pipeline.choice.weight_layers import Grams, gram_bound
from quantool.pipeline.choice.weight_only import choose_weights, is_too_large, wants_data
from quantool.pipeline.draft import Draft
from quantool.pipeline.feeds import data_info, ranges_info
from quantool.pipeline.job import Job
from quantool.pipeline.rows import coverage, node_rows, tensor_rows
from quantool.pipeline.source import FloatModel
from quantool.plan import Findings, examine, make_plan
from quantool.plan.reasons import reason
from quantool.recipe import Calibrator, Effort
from quantool.runtime import Thrift
from quantool.schema import Feed, Mode, Note, Parameters, Plan, Range, Reason
from quantool.solve import solve, solve_ranges
from quantool.stats import Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What calibration came to: statistics, and the samples that judge and fit."""

    stats: Stats
    judges: Judges


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What is to be written. stats: statistics of the source's tensors; calibrator: of ranges that no rule speaks of.

    Both are empty where no range was needed.
    """

    source: FloatModel
    plan: Plan
    parameters: Parameters
    stats: Mapping[str, Statistic] = field(default_factory=lambda: MappingProxyType({}))
    calibrator: str = ""


def gather_evidence(job: Job, source: FloatModel, draft: Draft, *, also: Set[str] = frozenset()) -> Calibrated | None:
    """Statistics of what a static plan needs, and of other tensors; None for plans that need neither nor samples."""
    plan = _plan(job, source, Findings())
    if not plan.activations:
        return _samples_alone(job, source, draft)
    stats, hardest = _stats(job, source, plan, draft, also=also)
    if job.samples is None:
        return Calibrated(stats=stats, judges=Judges(judging=(), fitting=(), held_out=False))
    judges = Judges(
        judging=(*job.samples.kept, *hardest),
        fitting=(*job.samples.fitting, *hardest),
        held_out=bool(job.samples.held_out),
    )
    return Calibrated(stats=stats, judges=judges)


def _samples_alone(job: Job, source: FloatModel, draft: Draft) -> Calibrated | None:
    """Samples that weights alone are fitted to and judged on; None where they only verify."""
    samples, found = job.samples, None
    if samples is None:
        return None
    wanted = job.mode is Mode.WEIGHT_ONLY and samples.calibrates and wants_data(job.recipe)
    if wanted and is_too_large(source):
        fix = "Give more memory, or --effort fast." if job.recipe.memory else "Use --effort fast to say so."
        draft.warnings.append(_weights_not_tried("the model is too large to be tried out", fix))
    elif wanted:
        for _ in samples.calibration():
            pass
        judges = Judges(judging=samples.kept, fitting=samples.fitting, held_out=bool(samples.held_out))
        if len(judges.fitting) < 2 and not judges.held_out:
            fix = "Give two samples or more, better a hundred, or --effort fast."
            draft.warnings.append(_weights_not_tried("one sample cannot both fit and judge", fix))
        found = Calibrated(stats=Stats(), judges=judges)
    if found is None:
        samples.drain()
    draft.data = data_info(samples)
    return found


def decide(
    job: Job, source: FloatModel, evidence: Calibrated | None, kept: Mapping[str, Reason], *, draft: Draft
) -> Decided:
    """Plan, choose by measurement where samples judge, and solve."""
    stats: Mapping[str, Statistic] = {}
    calibrator = ""
    if job.mode is Mode.WEIGHT_ONLY:
        source, plan, parameters = _decide_weights(job, source, evidence, kept, draft=draft)
    elif evidence is not None:
        with paused_collector():
            planner = _Planner(job, kept)
            chosen, draft.trials, notes = choose(source, evidence.stats, planner, evidence.judges, recipe=job.recipe)
        draft.warnings.extend(notes)
        ruling = Ruling.of(source.facts, job.recipe)
        draft.warnings.extend(ruling.without_effect(source, chosen.source, chosen.parameters))
        source, plan, parameters = chosen.source, chosen.plan, chosen.parameters
        stats, calibrator = chosen.stats, chosen.calibrator
        tried = job.recipe.effort is not Effort.FAST and evidence.judges.held_out
        if tried and not is_measurable(source, plan, memory=job.recipe.memory):
            draft.warnings.append(_groups_not_measured())
        draft.recipe = replace(job.resolved, calibrator=Calibrator(chosen.calibrator)).to_dict()
    else:
        plan = _plan(job, source, Findings(keep=kept))
        parameters = solve(plan, {}, load=source.constant, recipe=job.recipe)
    draft.warnings.extend((*plan.notes, *parameters.notes))
    draft.nodes = node_rows(source.facts, plan, None)
    draft.tensors = tensor_rows(parameters)
    draft.coverage = coverage(source.facts, plan, graph.macs(source.facts))
    return Decided(source=source, plan=plan, parameters=parameters, stats=stats, calibrator=calibrator)


def _decide_weights(
    job: Job, source: FloatModel, evidence: Calibrated | None, kept: Mapping[str, Reason], *, draft: Draft
) -> tuple[FloatModel, Plan, Parameters]:
    """The plan of a weight-only model, and how its weights are quantized."""
    samples = None if evidence is None else evidence.judges
    if job.recipe.target_size is not None:
        grams = None
        if samples is not None and samples.fitting:
            grams = Grams(source=source, feeds=samples.fitting, bound=gram_bound(job.recipe.memory))
        findings = Findings(keep=kept)
        recipe = fitted_to_size(
            source, job.recipe, lambda model, recipe: _plan(replace(job, recipe=recipe), model, findings), grams=grams
        )
        job = replace(job, recipe=recipe)
    with paused_collector():
        chosen, draft.trials, notes = choose_weights(
            source, lambda model: _plan(job, model, Findings(keep=kept)), samples, recipe=job.recipe
        )
    draft.warnings.extend(notes)
    return chosen.source, chosen.plan, chosen.parameters


def starting_point(job: Job, source: FloatModel, evidence: Calibrated) -> tuple[Candidate, InFloat]:
    """The candidate that a choice begins with, and what leaves nodes of one in float."""
    return beginning(source, evidence.stats, _Planner(job, {}), evidence.judges, recipe=job.recipe)


def _plan(job: Job, source: FloatModel, findings: Findings) -> Plan:
    return make_plan(source.facts, job.recipe, target=job.target, mode=job.mode, findings=findings)


@dataclass(frozen=True, slots=True)
class _Planner:
    """The plan that the ranges of a calibrator lead to, and those ranges; kept: nodes to leave in float."""

    job: Job
    kept: Mapping[str, Reason]

    def __call__(
        self,
        source: FloatModel,
        stats: Mapping[str, Statistic],
        calibrator: str,
        allowed: frozenset[str],
        lossy: frozenset[str],
    ) -> tuple[Plan, Mapping[str, Range]]:
        facts, recipe = source.facts, self.job.recipe
        kept = {**dict.fromkeys(sorted(lossy), reason("too-lossy")), **self.kept}
        plan = _plan(self.job, source, Findings(keep=kept, allow=allowed))
        ranges = solve_ranges(plan, facts, stats, recipe, default=calibrator)
        taught = examine(plan, facts, ranges)
        if taught == Findings():
            return plan, ranges
        findings = Findings(keep={**kept, **taught.keep}, unify=taught.unify, allow=allowed)
        again = _plan(self.job, source, findings)
        return again, solve_ranges(again, facts, stats, recipe, default=calibrator)


def _stats(job: Job, source: FloatModel, plan: Plan, draft: Draft, *, also: Set[str]) -> tuple[Stats, tuple[Feed, ...]]:
    """Statistics that were given, else gathered, and the hardest feeds; it is known afterwards what verifies."""
    given = usable_stats(job.request.stats, job.recipe, source)
    if given is None:
        assert job.samples is not None, "a static plan without ranges has samples"
        wanted = wanted_by(plan) | wanted_by(_plan(job, source, Findings(allow=spectral_nodes(plan)))) | also
        request = collect_request(source, wanted, job.recipe)
        if job.recipe.effort is Effort.MAX and source.loaded.source.size_bytes <= LARGEST_TRIAL_BYTES:
            request = with_grams(with_channels(request, source), source, largest=MOST_INPUTS)
        taps = taps_of(source, request, job.samples, recipe=job.recipe, meter=draft.memory)
        gathered = gather(request, job.samples, taps=taps, recipe=job.recipe, progress=job.request.progress)
        if taps.model.thrift is Thrift.WEIGHTS and job.recipe.effort is not Effort.FAST:
            fix = "Give more memory, or --effort fast."
            draft.warnings.append(_not_tried("each would hold all weights again", "--memory", fix))
        draft.warnings.extend(job.samples.notes(gathered[0], job.recipe, source.facts))
        draft.data = data_info(job.samples)
        return gathered
    if job.samples is not None:
        job.samples.drain(held_out=None)
        job.samples.held_out = new_to(given, job.samples.kept)
        draft.warnings.extend(job.samples.notes(given, job.recipe, source.facts))
    draft.data = ranges_info(given, job.recipe.ranges, job.samples)
    if job.recipe.effort is not Effort.FAST:
        draft.warnings.extend(not_equalized(source, plan, given.channels, job.recipe))
    if job.recipe.effort is not Effort.FAST and (job.samples is None or not job.samples.held_out):
        fix = "Give --verify-data with samples that did not calibrate, or --effort fast."
        draft.warnings.append(_not_tried("no samples are known to be new to the calibration", "--ranges", fix))
    return given, ()


def _weights_not_tried(why: str, fix: str) -> Note:
    return Note(
        code="not-tried",
        what=f"the weights are quantized by themselves: AWQ and GPTQ were not tried, because {why}",
        where="--data",
        fix=fix,
    )


def _groups_not_measured() -> Note:
    return Note(
        code="groups-not-measured",
        what="what each operator's rounding costs was not measured, so that none stays in float for its error: the "
        "model is too large (for --memory, if that is given) to be held in float and rounded at once, or its types "
        "are not those of integers",
        where="the model",
        fix="Look at the figures of the outputs, and try --exclude on the last operators before one that lost much.",
    )


def _not_tried(why: str, where: str, fix: str) -> Note:
    return Note(
        code="not-tried",
        what="the ranges are taken as they are: GPTQ, bias correction, equalization, smoothing and other ranges were "
        f"not tried, because {why}",
        where=where,
        fix=fix,
    )
