"""quantize: read, normalize, plan, calibrate, solve, rewrite, verify, publish - the order of the stages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from quantool import graph
from quantool.errors import GateError, NothingQuantizedError, VerificationError
from quantool.graph.save import Pending, check, model_proto, write_temporary
from quantool.graph.scopes import paused_collector
from quantool.graph.stubs import with_mapped_weights
from quantool.metrics import find
from quantool.pipeline.build import quantized_graph
from quantool.pipeline.choice.decide import Calibrated, decide, gather_evidence
from quantool.pipeline.choice.target_size import refuse_oversize, size_words
from quantool.pipeline.detail.add import Tested, add_detail
from quantool.pipeline.draft import Draft
from quantool.pipeline.job import Job, prepare
from quantool.pipeline.judge import Evaluation, Loaded, evaluate, judge_gates, load_quantized, unresolved
from quantool.pipeline.resolved import kept_floats, resolved_recipe, settings_of
from quantool.pipeline.rows import float_convolutions, node_rows, tensor_rows
from quantool.pipeline.source import (
    FloatModel,
    normalized_model,
)
from quantool.pipeline.weight_error import WeightErrors
from quantool.plan.reasons import REASONS, reason
from quantool.recipe import option_flag
from quantool.report.model import LatencyInfo, MetricInfo, OutputInfo, RuntimeInfo, Verification
from quantool.requests import QuantizeRequest, QuantizeResult
from quantool.runtime import Loadable, Thrift, return_freed_blocks
from quantool.schema import Mode, NodeFact, Plan, Reason
from quantool.verify import Evidence, other_ways, verdict
from quantool.version import __version__

if TYPE_CHECKING:
    from onnx import ModelProto


T = TypeVar("T")

#: how often nodes that the runtime does not fuse are given up before the run's own check fails
SETTLING_ROUNDS = 3
#: what the verdict says of sessions that save memory
NOT_TIMED = "Speed was not measured, to save memory."
#: what the verdict of `auto` says where there was no data
WHAT_DATA_ADDS = "Data would let activations become integers too, and tell what that costs: give --data."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The result as it will be published. nodes: all nodes of its graph; weights_db: SQNR of the worst weight."""

    data: Loadable
    nodes: Sequence[NodeFact]
    weights_db: float | None


def quantize(request: QuantizeRequest) -> QuantizeResult:
    """Quantize a model, verify the result, and publish it where every gate holds.

    Raises:
        QuantoolError: with the report so far. GateError: a gate does not hold (published only with ``keep``).
            NothingQuantizedError: no node could be quantized. VerificationError: the result failed its check.
    """
    draft = Draft(command="quantize", recipe=request.recipe.to_dict())
    with draft.attached(), draft.memory.watching(request.recipe.memory):
        job = prepare(request, draft)
        if job.thrift is Thrift.WEIGHTS:
            return_freed_blocks()
        source = normalized(job, draft)
        evidence = gather_evidence(job, source, draft)
        return settled(lambda kept: _attempt(job, source, evidence, kept, draft=draft))


def settled(attempt: Callable[[Mapping[str, Reason]], T]) -> T:
    """What an attempt gives once it is told of the nodes that the runtime turned out to run in float."""
    kept: dict[str, Reason] = {}
    for _ in range(SETTLING_ROUNDS):
        try:
            return attempt(kept)
        except VerificationError as error:
            if not set(error.nodes) - kept.keys():
                raise
            kept.update(dict.fromkeys(error.nodes, reason("not-fused")))
    return attempt(kept)


def _attempt(
    job: Job, source: FloatModel, evidence: Calibrated | None, kept: Mapping[str, Reason], *, draft: Draft
) -> QuantizeResult:
    """Decide, write, verify and publish once. kept: what the runtime turned out to run in float."""
    made = decide(job, source, evidence, kept, draft=draft)
    source, plan, parameters = made.source, made.plan, made.parameters
    refuse_nothing(plan, source, draft)
    # Without outputs to compare, nothing else tells the cost.
    alone = job.samples is None and job.recipe.verify
    errors = WeightErrors(constant=source.constant) if alone or job.request.detailed else None
    result = quantized_graph(source, plan, parameters if errors is None else errors.noting(parameters))
    with _written(job, result) as (data, pending):
        found = {} if errors is None else errors.complete(parameters)
        draft.tensors = tensor_rows(parameters, found)
        weights_db = min(found.values(), default=None) if alone else None
        written = _Written(data=data, nodes=graph.facts(result).nodes, weights_db=weights_db)
        loaded = _verify(job, source, plan, written, draft=draft)
        if job.request.detailed:
            add_detail(job, made, evidence, Tested(data=data, loaded=loaded, weights=found), draft=draft)
        return _publish(job, data, pending, draft=draft)


def normalized(job: Job, draft: Draft) -> FloatModel:
    """The float model of a run, ready to be planned; its notes go to the draft."""
    opset = settings_of(job.recipe, job.target, job.mode).opset
    floats = kept_floats(job.target, job.mode)
    with paused_collector():
        source = normalized_model(job.loaded, job.samples, opset=opset, recipe=job.recipe, floats=floats)
    draft.warnings.extend(source.notes)
    return source


def refuse_nothing(plan: Plan, source: FloatModel, draft: Draft) -> None:
    """Raise NothingQuantizedError with the reasons where a plan quantizes no node."""
    if any(decision.quantized and decision.kernel for decision in plan.decisions.values()):
        return
    # Without a node left, all were folded into constants.
    codes = sorted({d.reason.code for d in plan.decisions.values() if d.reason is not None}) or ["folded"]
    draft.verdict = "Nothing was quantized: the report lists the reason of every node."
    raise NothingQuantizedError(
        "nothing-quantized",
        f"no node could be quantized; reasons: {', '.join(codes)}",
        where=str(source.loaded.source.path or "the model"),
        fix=" ".join(dict.fromkeys(REASONS[code][1] for code in codes[:3])),
    )


@contextmanager
def _written(job: Job, result: graph.Model) -> Iterator[tuple[Loadable, Pending | None]]:
    """The result as something to load: a file without a name beside the output, or bytes in memory."""
    provenance = {
        "quantool.version": __version__,
        "quantool.target": job.target.name,
        "quantool.source_sha256": job.loaded.source.sha256,
    }
    label, threads, thrift = "the quantized model", job.recipe.threads or 0, job.thrift
    if job.output is None:
        proto = model_proto(result, provenance=provenance)
        data = proto.SerializeToString(deterministic=True)
        yield Loadable(model=data, threads=threads, thrift=thrift, label=label), None
        return
    with write_temporary(
        result,
        job.output,
        force=job.request.force,
        provenance=provenance,
        external=True if thrift is Thrift.WEIGHTS else None,  # inside a message they would be held three times
        shard_bytes=job.recipe.shard_size,
        threads=threads or os.cpu_count() or 1,
    ) as pending:
        yield (
            Loadable(model=pending.read(), external=pending.external, threads=threads, thrift=thrift, label=label),
            pending,
        )


def _mapped(data: Loadable) -> Loadable:
    """The result with its large weights as arrays on mapped files, where sessions must not copy them."""
    if data.thrift is not Thrift.WEIGHTS or not data.external:
        return data
    assert isinstance(data.model, bytes)
    model, mapped = with_mapped_weights(data.model, data.external)
    return replace(data, model=model, external={}, mapped=mapped)


def _verify(job: Job, source: FloatModel, plan: Plan, written: _Written, *, draft: Draft) -> Loaded | None:
    """Checker, load, optimized graph, outputs, time; writes what it finds into the draft. None without verification."""
    data, loaded = written.data, None
    assert isinstance(data.model, bytes)
    size = len(data.model) + sum(len(part) for part in data.external.values())
    refuse_oversize(source, job.recipe, size)
    evaluation = Evaluation()
    if job.recipe.verify:
        check(data.model, job.loaded.checker_error, has_external=bool(data.external))
        runnable = data if plan.reference else _mapped(data)
        loaded = load_quantized(runnable, plan, source.facts, written=written.nodes, strict=strictness(job))
        loaded = replace(loaded, timed=loaded.timed and job.timed)
        draft.warnings.extend(loaded.notes)
        if loaded.runs_as is not None:
            draft.runtime = RuntimeInfo.of(loaded.runs_as)
            draft.nodes = node_rows(source.facts, plan, loaded.runs_as.integer)
        if job.samples is not None:
            metric = None if job.recipe.metric is None else find(job.recipe.metric)
            evaluation = evaluate(source, loaded, job.samples, metric)
            draft.verification = Verification(samples=evaluation.samples, outputs=evaluation.outputs)
            draft.latency = None if evaluation.latency is None else LatencyInfo.of(evaluation.latency)
            draft.metric = None if evaluation.measured is None else MetricInfo.of(evaluation.measured)
            draft.warnings.extend((*evaluation.notes, *unresolved(evaluation, job.recipe.max_drop)))
        evaluation = replace(evaluation, accuracy_levels=loaded.accuracy_levels)
    assert draft.coverage is not None
    draft.gates = judge_gates(
        job.recipe,
        evaluation=evaluation,
        size_ratio=size / job.loaded.source.size_bytes,
        coverage=draft.coverage,
    )
    draft.verdict = _verdict(job, source, plan, written, evaluation, size=size, draft=draft)
    return loaded


def _verdict(
    job: Job, source: FloatModel, plan: Plan, written: _Written, evaluation: Evaluation, *, size: int, draft: Draft
) -> str:
    """The sentence, and what else to try or to know. size: of the result, in bytes."""
    evidence = Evidence(
        mode=plan.mode,
        float_bytes=job.loaded.source.size_bytes,
        quantized_bytes=size,
        latency=evaluation.latency,
        outputs=evaluation.outputs,
        not_compared="no data" if job.recipe.verify else "--no-verify",
        weights_db=written.weights_db,
        samples=evaluation.samples,
        held_out=draft.data.held_out if draft.data is not None and (plan.activations or draft.trials) else None,
        coverage=None if draft.coverage is None else draft.coverage.macs,
        float_convolutions=float_convolutions(source.facts, plan),
        accuracy_levels=evaluation.accuracy_levels,
        elsewhere=None if job.target.runs_here else job.target.name,
    )
    remarks = (
        other_ways(evidence) if job.target.runs_here else "",
        WHAT_DATA_ADDS if job.mode is Mode.AUTO and not (job.samples and job.samples.calibrates) else "",
        size_words(source, plan, size) if job.recipe.target_size is not None else "",
        NOT_TIMED if not job.timed and job.samples is not None else "",
    )
    return " ".join((verdict(evidence), *filter(None, remarks)))


def strictness(job: Job) -> bool | None:
    """How hard a difference from the plan counts: None where the target is another machine."""
    if not job.target.runs_here:
        return None
    recipe = job.recipe
    open_recipe = replace(recipe, weights=None, activations=None, granularity=None, formula=None)
    default = resolved_recipe(open_recipe, job.target, job.mode) == job.resolved
    named = recipe.include or recipe.include_op or any(rule.sets_types for rule in recipe.rules)
    return default and not named


def _publish(job: Job, data: Loadable, pending: Pending | None, *, draft: Draft) -> QuantizeResult:
    """Put the result in place, unless a gate failed and the user did not ask to keep it."""
    holds = all(gate.passed for gate in draft.gates)
    if pending is not None and (holds or job.recipe.keep):
        path = pending.commit()
        draft.output = OutputInfo(path=str(path), sha256=pending.sha256, size_bytes=pending.size_bytes)
    raise_failed_gates(draft)
    return QuantizeResult(model=_proto(data), output=None if pending is None else pending.path, report=draft.report())


def raise_failed_gates(draft: Draft) -> None:
    """End the run with a GateError that lists every gate that does not hold."""
    failed = [gate for gate in draft.gates if not gate.passed]
    if not failed:
        return
    listed = ", ".join(
        f"{option_flag(g.name)} is {'unknown' if g.value is None else format(g.value, '.4g')}, the limit {g.limit:g}"
        for g in failed
    )
    raise GateError(
        "gate-failed",
        f"{len(failed)} of {len(draft.gates)} gates failed: {listed}",
        where=", ".join(option_flag(g.name) for g in failed),
        fix="Relax the limit, exclude the nodes that lose most, or use --keep to look at the result.",
    )


def _proto(data: Loadable) -> ModelProto:
    assert isinstance(data.model, bytes)
    return graph.deserialize(data.model)
