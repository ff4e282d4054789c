"""Trying recipes out: each is quantized from one calibration, in memory, and judged on the same samples."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from quantool import graph
from quantool.errors import OptionError
from quantool.graph.save import model_proto
from quantool.metrics import Metric
from quantool.pipeline.build import quantized_graph
from quantool.pipeline.calibration.statistics import wanted_by
from quantool.pipeline.choice.decide import Calibrated, decide, gather_evidence
from quantool.pipeline.draft import Draft
from quantool.pipeline.feeds import Judging
from quantool.pipeline.job import Job
from quantool.pipeline.judge import Evaluation, evaluate, judge_gates, load_quantized
from quantool.pipeline.quantize import refuse_nothing, settled, strictness
from quantool.pipeline.refusals import refuse_impossible_rules, refuse_unrunnable
from quantool.pipeline.resolved import kept_floats, resolved_recipe, settings_of
from quantool.pipeline.source import FloatModel, normalized_model
from quantool.plan import make_plan
from quantool.recipe import Recipe
from quantool.report.model import Gate
from quantool.runtime import Loadable
from quantool.schema import Format, GraphFacts, Mode, Plan, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a recipe came to. gates: those of the target."""

    plan: Plan
    facts: GraphFacts
    size_bytes: int
    evaluation: Evaluation
    gates: tuple[Gate, ...]

    @property
    def meets(self) -> bool:
        """Whether every target holds."""
        return all(gate.passed for gate in self.gates)


@dataclass(slots=True, kw_only=True)
class Bench:
    """Tries recipes of one job. judging: the samples that all are judged on; target: the recipe whose gates count."""

    job: Job
    judging: Judging
    metric: Metric | None
    evidence: Calibrated
    target: Recipe
    _sources: dict[tuple[int, tuple[str, ...]], FloatModel] = field(default_factory=dict)

    def tried(self, recipe: Recipe, *, timed: bool = True) -> Figures:
        """Quantize by a recipe, run the result, and time it. Raises QuantoolError where that is impossible."""
        target, mode = self.job.target, recipe.mode
        settings = settings_of(recipe, target, mode)
        refuse_unrunnable(self.job.loaded, settings)
        refuse_impossible_rules(self.job.loaded, recipe, target, mode=mode, opset=settings.opset)
        resolved = resolved_recipe(recipe, target, mode)
        job = replace(self.job, recipe=recipe, resolved=resolved, mode=mode, output=None)
        source = self._source(recipe, settings.opset, kept_floats(target, mode))
        return settled(lambda kept: self._attempt(job, source, kept, timed=timed))

    def _source(self, recipe: Recipe, opset: int, floats: tuple[str, ...]) -> FloatModel:
        if (opset, floats) not in self._sources:
            self._sources[opset, floats] = normalized_model(
                self.job.loaded, self.job.samples, opset=opset, recipe=recipe, floats=floats
            )
        return self._sources[opset, floats]

    def _attempt(self, job: Job, source: FloatModel, kept: Mapping[str, Reason], *, timed: bool) -> Figures:
        draft = Draft(command="tune")
        evidence = self.evidence if job.mode is Mode.STATIC else None
        made = decide(job, source, evidence, kept, draft=draft)
        source, plan, parameters = made.source, made.plan, made.parameters
        refuse_nothing(plan, source, draft)
        result = quantized_graph(source, plan, parameters)
        data = model_proto(result, provenance={}).SerializeToString(deterministic=True)
        model = Loadable(model=data, threads=job.recipe.threads or 0, label="the quantized model")
        written = graph.facts(result).nodes
        loaded = load_quantized(model, plan, source.facts, written=written, strict=strictness(job))
        loaded = replace(loaded, timed=loaded.timed and timed)
        evaluation = evaluate(source, loaded, self.judging, self.metric)
        assert draft.coverage is not None
        ratio = len(data) / job.loaded.source.size_bytes
        gates = judge_gates(self.target, evaluation=evaluation, size_ratio=ratio, coverage=draft.coverage)
        return Figures(plan=plan, facts=source.facts, size_bytes=len(data), evaluation=evaluation, gates=gates)


def calibrated(job: Job, draft: Draft) -> tuple[FloatModel, Calibrated]:
    """The normalized model, and statistics of whatever a static plan of it may ask for, in one pass."""
    opset = settings_of(job.recipe, job.target, job.mode).opset
    source = normalized_model(job.loaded, job.samples, opset=opset, recipe=job.recipe)
    plans = list(_plans(job, source))
    # A tensor that shares another's statistic in one plan may need its own in another.
    wanted = frozenset().union(*(wanted_by(plan) | plan.activations.keys() for plan in plans))
    evidence = gather_evidence(job, source, draft, also=wanted)
    if evidence is None:
        refuse_nothing(plans[0], source, draft)
    assert evidence is not None, "a static plan that quantizes something needs ranges"
    return source, evidence


def _plans(job: Job, source: FloatModel) -> Iterator[Plan]:
    """The plan in each format that the recipe allows."""
    for form in Format:
        with contextlib.suppress(OptionError):  # 16-bit types have no QOperator form
            recipe = replace(job.recipe, format=form)
            yield make_plan(source.facts, recipe, target=job.target, mode=job.mode)
