"""quantize: read, normalize, plan, calibrate, solve, rewrite, verify, publish - the order of the stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from calibrators.statistic import Statistic
from quantool import graph, targets
from quantool.errors import GateError, NothingQuantizedError, OptionError
from quantool.graph.destination import refuse_overwrite
from quantool.graph.save import Pending, check, model_proto, write_temporary
from quantool.graph.scopes import paused_collector
from quantool.pipeline.build import quantized_graph
from quantool.pipeline.choose import Judges, choose, spectral_nodes
from quantool.pipeline.draft import Draft
from quantool.pipeline.feeds import Samples, data_info, open_samples, ranges_info
from quantool.pipeline.judge import Evaluation, evaluate, judge_gates, load_quantized
from quantool.pipeline.refusals import refuse_unmeasured, refuse_unrunnable
from quantool.pipeline.resolved import resolved_recipe, settings_of
from quantool.pipeline.rows import coverage, node_rows, tensor_rows
from quantool.pipeline.source import (
    FloatModel,
    model_info,
    normalized_model,
    output_path,
    read_float,
    source_files,
)
from quantool.pipeline.statistics import gather, usable_stats, wanted_by
from quantool.pipeline.weight_error import weight_errors
from quantool.plan import Findings, examine, make_plan
from quantool.plan.reasons import REASONS
from quantool.plan.settings import KERNEL_TYPES
from quantool.recipe import OUTPUT_GATES, Calibrator, Recipe, option_flag
from quantool.report.model import LatencyInfo, OutputInfo, RuntimeInfo, Verification
from quantool.requests import QuantizeRequest, QuantizeResult
from quantool.runtime import Loadable
from quantool.schema import Feed, Mode, NodeFact, Parameters, Plan, Range
from quantool.solve import solve, solve_ranges
from quantool.stats import Stats
from quantool.targets import Target
from quantool.verify import Evidence, verdict
from quantool.version import __version__

if TYPE_CHECKING:
    from onnx import ModelProto


#: what the verdict of `auto` says where there was no data
WHAT_DATA_ADDS = "Data would let activations become integers too, and tell what that costs: give --data."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What one run works with, decided before any work on the model."""

    request: QuantizeRequest
    recipe: Recipe
    resolved: Recipe
    target: Target
    mode: Mode
    loaded: graph.Loaded
    samples: Samples | None
    output: Path | None


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
    with draft.attached():
        job = _prepare(request, draft)
        source = _normalize(job, draft)
        source, plan, parameters = _decide(job, source, draft)
        _refuse_nothing(plan, source, draft)
        result = quantized_graph(source, plan, parameters)
        weights_db = _judge_weights(job, source, parameters, draft)
        with _written(job, result) as (data, pending):
            written = _Written(data=data, nodes=graph.facts(result).nodes, weights_db=weights_db)
            _verify(job, source, plan, written, draft=draft)
            return _publish(job, data, pending, draft=draft)


def _prepare(request: QuantizeRequest, draft: Draft) -> _Job:
    """Refuse what cannot work before a byte of data is read."""
    recipe, target = request.recipe, targets.load(request.recipe.target)
    refuse_unmeasured(recipe)
    loaded = read_float(request.model)
    draft.model = model_info(loaded)
    samples = open_samples(request.data, request.verify_data, loaded, recipe=recipe, progress=request.progress)
    if samples is not None and samples.note is not None:
        draft.warnings.append(samples.note)
    mode = _mode(request, samples)
    resolved = resolved_recipe(recipe, target, mode)
    draft.recipe = resolved.to_dict()
    refuse_unrunnable(loaded, settings_of(recipe, target, mode))
    output = request.output
    if output is None and request.write:
        assert resolved.weights is not None
        output = output_path(loaded.source.path, resolved.weights)
    reads = source_files(loaded, samples, request.data, request.verify_data, recipe.ranges, request.reads)
    if output is not None:
        refuse_overwrite(output, reads=reads, force=request.force)
    for report in request.reports:
        refuse_overwrite(report, reads=reads, force=True)  # whether it may be replaced is the caller's matter
    return _Job(
        request=request,
        recipe=recipe,
        resolved=resolved,
        target=target,
        mode=mode,
        loaded=loaded,
        samples=samples,
        output=output,
    )


def _mode(request: QuantizeRequest, samples: Samples | None) -> Mode:
    """What `auto` means here: static with data or ranges; AUTO stands for the mixed plan without."""
    recipe = request.recipe
    has_ranges = recipe.ranges is not None or request.stats is not None
    if samples is None and any(getattr(recipe, gate) is not None for gate in OUTPUT_GATES):
        raise OptionError(
            "gate-without-data",
            "a gate on outputs or time needs samples to run",
            where="--data",
            fix="Give --data or --verify-data, or drop the gate.",
        )
    if recipe.mode is Mode.AUTO:
        if (samples is not None and samples.calibrates) or has_ranges:
            return Mode.STATIC
        return Mode.AUTO if recipe.weights is None or recipe.weights in KERNEL_TYPES else Mode.WEIGHT_ONLY
    if recipe.mode is Mode.STATIC and not has_ranges and (samples is None or not samples.calibrates):
        raise OptionError(
            "static-without-data",
            "static mode needs calibration data or ranges",
            where="--data",
            fix="Give --data, or --ranges FILE.qcal, or use --mode dynamic.",
        )
    return recipe.mode


def _normalize(job: _Job, draft: Draft) -> FloatModel:
    opset = settings_of(job.recipe, job.target, job.mode).opset
    with paused_collector():
        source = normalized_model(job.loaded, job.samples, opset=opset, recipe=job.recipe)
    draft.warnings.extend(source.notes)
    return source


def _decide(job: _Job, source: FloatModel, draft: Draft) -> tuple[FloatModel, Plan, Parameters]:
    """Plan, and for a static model calibrate, choose and plan again with what the ranges taught."""
    recipe = job.recipe
    plan = _plan(job, source, Findings())
    if plan.activations:
        stats, hardest = _stats(job, source, plan, draft)
        judges = Judges(judging=(), fitting=(), held_out=False)
        if job.samples is not None:
            judges = Judges(
                judging=(*job.samples.kept, *hardest),
                fitting=(*job.samples.fitting, *hardest),
                held_out=bool(job.samples.held_out),
            )
        with paused_collector():
            chosen, draft.trials = choose(source, stats.tensors, partial(_planned, job), judges, recipe=recipe)
        source, plan, parameters = chosen.source, chosen.plan, chosen.parameters
        draft.recipe = replace(job.resolved, calibrator=Calibrator(chosen.calibrator)).to_dict()
    else:
        if job.samples is not None:
            job.samples.drain()
            draft.data = data_info(job.samples)
        parameters = solve(plan, {}, load=source.constant, recipe=recipe)
    draft.warnings.extend((*plan.notes, *parameters.notes))
    draft.nodes = node_rows(source.facts, plan, None)
    draft.tensors = tensor_rows(parameters)
    draft.coverage = coverage(source.facts, plan, graph.macs(source.facts))
    return source, plan, parameters


def _plan(job: _Job, source: FloatModel, findings: Findings) -> Plan:
    return make_plan(source.facts, job.recipe, target=job.target, mode=job.mode, findings=findings)


def _planned(
    job: _Job, source: FloatModel, stats: Mapping[str, Statistic], calibrator: str, allowed: frozenset[str]
) -> tuple[Plan, Mapping[str, Range]]:
    """The plan that the ranges of a calibrator lead to, and those ranges."""
    facts, recipe = source.facts, job.recipe
    known = Findings(allow=allowed)
    plan = _plan(job, source, known)
    ranges = solve_ranges(plan, facts, stats, recipe, default=calibrator)
    findings = replace(examine(plan, facts, ranges), allow=allowed)
    if findings == known:
        return plan, ranges
    again = _plan(job, source, findings)
    return again, solve_ranges(again, facts, stats, recipe, default=calibrator)


def _stats(job: _Job, source: FloatModel, plan: Plan, draft: Draft) -> tuple[Stats, tuple[Feed, ...]]:
    """Statistics that were given, else gathered, and the hardest feeds; it is known afterwards what verifies."""
    given = usable_stats(job.request.stats, job.recipe, source)
    if given is None:
        assert job.samples is not None, "a static plan without ranges has samples"
        wanted = wanted_by(plan) | wanted_by(_plan(job, source, Findings(allow=spectral_nodes(plan))))
        gathered = gather(source, wanted, job.samples, recipe=job.recipe, progress=job.request.progress)
        draft.data = data_info(job.samples)
        return gathered
    if job.samples is not None:
        job.samples.drain(held_out=None)
    draft.data = ranges_info(given, job.recipe.ranges, job.samples)
    return given, ()


def _refuse_nothing(plan: Plan, source: FloatModel, draft: Draft) -> None:
    if any(decision.quantized and decision.kernel for decision in plan.decisions.values()):
        return
    codes = sorted({d.reason.code for d in plan.decisions.values() if d.reason is not None})
    draft.verdict = "Nothing was quantized: the report lists the reason of every node."
    raise NothingQuantizedError(
        "nothing-quantized",
        f"no node could be quantized; reasons: {', '.join(codes)}",
        where=str(source.loaded.source.path or "the model"),
        fix=" ".join(dict.fromkeys(REASONS[code][1] for code in codes[:3])),
    )


def _judge_weights(job: _Job, source: FloatModel, parameters: Parameters, draft: Draft) -> float | None:
    """The worst weight's SQNR in dB where no outputs will be compared, since then nothing else tells the cost."""
    if job.samples is not None or not job.recipe.verify:
        return None
    errors = weight_errors(parameters, source.constant)
    draft.tensors = tensor_rows(parameters, errors)
    return min(errors.values(), default=None)


@contextmanager
def _written(job: _Job, result: graph.Model) -> Iterator[tuple[Loadable, Pending | None]]:
    """The result as something to load: a file without a name beside the output, or bytes in memory."""
    provenance = {
        "quantool.version": __version__,
        "quantool.target": job.target.name,
        "quantool.source_sha256": job.loaded.source.sha256,
    }
    label, threads = "the quantized model", job.recipe.threads or 0
    if job.output is None:
        proto = model_proto(result, provenance=provenance)
        yield Loadable(model=proto.SerializeToString(deterministic=True), threads=threads, label=label), None
        return
    with write_temporary(result, job.output, force=job.request.force, provenance=provenance) as pending:
        yield (
            Loadable(model=pending.read(), external=pending.external, threads=threads, label=label),
            pending,
        )


def _verify(job: _Job, source: FloatModel, plan: Plan, written: _Written, *, draft: Draft) -> None:
    """Checker, load, optimized graph, outputs, time; writes what it finds into the draft."""
    data = written.data
    assert isinstance(data.model, bytes)
    size = len(data.model) + sum(len(part) for part in data.external.values())
    evaluation = Evaluation()
    if job.recipe.verify:
        check(data.model, job.loaded.checker_error, has_external=bool(data.external))
        loaded = load_quantized(data, plan, source.facts, written=written.nodes, strict=_strict(job))
        draft.warnings.extend(loaded.notes)
        if loaded.runs_as is not None:
            draft.runtime = RuntimeInfo(fused=loaded.runs_as.fused, left=loaded.runs_as.left)
            draft.nodes = node_rows(source.facts, plan, loaded.runs_as.integer)
        if job.samples is not None:
            evaluation = evaluate(source, loaded, job.samples)
            draft.verification = Verification(samples=evaluation.samples, outputs=evaluation.outputs)
            draft.latency = None if evaluation.latency is None else LatencyInfo.of(evaluation.latency)
            draft.warnings.extend(evaluation.notes)
    assert draft.coverage is not None
    draft.gates = judge_gates(
        job.recipe,
        evaluation=evaluation,
        size_ratio=size / job.loaded.source.size_bytes,
        coverage=draft.coverage,
    )
    draft.verdict = verdict(
        Evidence(
            mode=plan.mode,
            float_bytes=job.loaded.source.size_bytes,
            quantized_bytes=size,
            latency=evaluation.latency,
            outputs=evaluation.outputs,
            not_compared="no data" if job.recipe.verify else "--no-verify",
            weights_db=written.weights_db,
            samples=evaluation.samples,
            held_out=draft.data.held_out if draft.data is not None and plan.activations else None,
            coverage=draft.coverage.macs,
        )
    )
    if job.mode is Mode.AUTO:
        draft.verdict += " " + WHAT_DATA_ADDS


def _strict(job: _Job) -> bool | None:
    """How hard a difference from the plan counts: None where the target is another machine."""
    if not job.target.runs_here:
        return None
    recipe = job.recipe
    open_recipe = replace(recipe, weights=None, activations=None, granularity=None, formula=None)
    default = resolved_recipe(open_recipe, job.target, job.mode) == job.resolved
    return default and not recipe.include and not recipe.include_op


def _publish(job: _Job, data: Loadable, pending: Pending | None, *, draft: Draft) -> QuantizeResult:
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
