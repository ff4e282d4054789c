"""sensitivity: what rounding each operator alone costs at the outputs, and which are better left in float."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

from quantool.errors import DataError, NothingQuantizedError, OptionError
from quantool.graph.destination import refuse_overwrite
from quantool.graph.temporary import publish
from quantool.pipeline.choice.candidate import Candidate
from quantool.pipeline.choice.decide import Calibrated, gather_evidence, starting_point
from quantool.pipeline.choice.keep import Keeper
from quantool.pipeline.choice.noise import Noise, is_measurable
from quantool.pipeline.choice.score import Judge
from quantool.pipeline.choice.units import fusion_groups
from quantool.pipeline.choice.work import work_of
from quantool.pipeline.draft import Draft
from quantool.pipeline.job import Job, prepare
from quantool.pipeline.quantize import normalized
from quantool.pipeline.source import FloatModel
from quantool.report.model import OutputInfo
from quantool.report.sensitivity import GroupNoise, Sensitivity
from quantool.requests import QuantizeRequest, SensitivityRequest
from quantool.runtime import watched
from quantool.schema import Mode


def sensitivity(request: SensitivityRequest) -> Sensitivity:
    """Measure every group of a static plan, and write the recipe where that is asked for.

    Raises:
        QuantoolError: with the report so far. DataError: there are no samples. NothingQuantizedError: no operator
            becomes integers.
    """
    draft = Draft(command="sensitivity", recipe=request.recipe.to_dict())
    with draft.attached():
        if request.output is not None:
            refuse_overwrite(request.output, reads=request.reads, force=request.force)
        job = prepare(
            QuantizeRequest(model=request.model, recipe=request.recipe, data=request.data, progress=request.progress),
            draft,
        )
        _refuse_unmeasurable(job)
        source = normalized(job, draft)
        evidence = gather_evidence(job, source, draft)
        found = _measured(job, source, evidence, draft)
        if request.output is None:
            return found
        return _written(found, request)


def _refuse_unmeasurable(job: Job) -> None:
    if job.samples is None:
        raise DataError(
            "no-data",
            "there are no samples to measure on",
            where="--data",
            fix="Give --data, or put NAME.calib.npz beside the model NAME.onnx.",
        )
    if job.mode is not Mode.STATIC:
        what, fix = f"sensitivity measures the static mode, not {job.mode}", "Leave --mode out."
        raise OptionError("not-static", what, where="--mode", fix=fix)


def _measured(job: Job, source: FloatModel, evidence: Calibrated | None, draft: Draft) -> Sensitivity:
    if evidence is None:
        raise NothingQuantizedError(
            "nothing-quantized",
            "no operator of the model becomes integers",
            where=str(source.loaded.source.path or "the model"),
            fix="See the reasons in `quantool explain`.",
        )
    candidate, in_float = starting_point(job, source, evidence)
    if not is_measurable(source, candidate.plan, memory=job.recipe.memory):
        raise OptionError(
            "not-measurable",
            "the model is too large to be held in float and rounded at once, or its types are not those of integers",
            where="the model",
            fix="Choose --activations of 8 or 16 bits, or measure a part of the model.",
        )
    judge = Judge(source, evidence.judges.judging, job.recipe)
    scores = {candidate.label: judge.score(candidate.source, candidate.plan, candidate.parameters)}
    keeper = Keeper(judge=judge, remade=in_float, scores=scores)
    return _ranked(job, candidate, keeper, draft)


def _ranked(job: Job, candidate: Candidate, keeper: Keeper, draft: Draft) -> Sensitivity:
    source, plan = candidate.source, candidate.plan
    groups = fusion_groups(source.facts, plan)
    noise = Noise(source, plan, candidate.parameters, groups, keeper.judge.feeds, runs=None)
    each = watched(range(len(groups)), "measuring", progress=job.request.progress, total=len(groups), unit="groups")
    shares = {number: noise.share((number,)) for number in each}
    best = keeper.without_worst(candidate, groups, {(number,): share for number, share in shares.items()})
    kept = {name for name, d in best.plan.decisions.items() if d.reason is not None and d.reason.code == "too-lossy"}
    macs, whole = work_of(source, groups, keeper.judge.feeds[0]).macs, sum(shares.values())
    assert draft.model is not None
    assert draft.data is not None
    return Sensitivity(
        model=draft.model,
        data=draft.data,
        score_db=keeper.scores[candidate.label],
        kept_score_db=keeper.scores[best.label] if kept else None,
        exclude=tuple(node.name for node in source.facts.nodes if node.name in kept),
        runs=noise.runs,
        groups=tuple(
            GroupNoise(
                name=groups[number].name,
                operators=tuple(source.facts.by_name[node].op_type for node in groups[number].nodes),
                nodes=groups[number].nodes,
                sqnr_db=-10.0 * math.log10(shares[number]),
                noise_share=shares[number] / whole,
                macs_share=macs[number],
                kept=not kept.isdisjoint(groups[number].nodes),
            )
            for number in sorted(shares, key=lambda i: (-shares[i], i))
        ),
        warnings=tuple(dict.fromkeys(draft.warnings)),
    )


def _written(found: Sensitivity, request: SensitivityRequest) -> Sensitivity:
    assert request.output is not None
    content = found.recipe.encode()
    publish(request.output, content, force=request.force)
    digest = hashlib.sha256(content).hexdigest()
    return replace(found, output=OutputInfo(path=str(request.output), sha256=digest, size_bytes=len(content)))
