"""compare: any float model against any quantized one of it, whoever made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from quantool import graph
from quantool.errors import DataError, ModelError
from quantool.graph.optimized import outline, read_optimized
from quantool.graph.reference import ReferenceSession
from quantool.measured import RunsAs
from quantool.metrics import Paired, find
from quantool.pipeline.detail.layers import measure_layers
from quantool.pipeline.draft import Draft
from quantool.pipeline.feeds import Samples, open_samples
from quantool.pipeline.judge import BY_REFERENCE, Evaluation, compare_outputs, judge_gates, unresolved
from quantool.pipeline.quantize import raise_failed_gates
from quantool.pipeline.refusals import refuse_unlabelled, refuse_unmeasured
from quantool.pipeline.source import given_loadable, model_info
from quantool.report.model import (
    Coverage,
    DataInfo,
    LatencyInfo,
    MetricInfo,
    OutputInfo,
    Report,
    RuntimeInfo,
    Verification,
)
from quantool.requests import CompareRequest
from quantool.runtime import Loadable, Session, interleaved, load_and_inspect
from quantool.schema import Mode
from quantool.verify import Evidence, StandIns, execution, stand_ins, verdict


def compare(request: CompareRequest) -> Report:
    """Run both models on the same feeds.

    The first row of figures is the outputs', then time in interleaved runs, then the operators that run as
    integers. Raises ModelError, DataError, and GateError where a gate does not hold.
    """
    draft = Draft(command="compare", recipe=request.recipe.to_dict())
    with draft.attached():
        refuse_unmeasured(request.recipe)
        reference, other = graph.read(request.float_model), graph.read(request.quantized_model)
        draft.model = model_info(reference)
        where = None if other.source.path is None else str(other.source.path)
        size = other.source.size_bytes
        draft.output = OutputInfo(path=where, sha256=other.source.sha256, size_bytes=size)
        evaluation = _evaluate(request, reference, other, draft)
        draft.warnings.extend(unresolved(evaluation, request.recipe.max_drop))
        draft.gates = judge_gates(
            request.recipe,
            evaluation=evaluation,
            size_ratio=size / reference.source.size_bytes,
            coverage=Coverage(nodes=None, macs=None, weight_bytes=None),
        )
        draft.verdict = verdict(
            Evidence(
                mode=Mode.STATIC,
                float_bytes=reference.source.size_bytes,
                quantized_bytes=size,
                latency=evaluation.latency,
                outputs=evaluation.outputs,
                samples=evaluation.samples,
            )
        )
        raise_failed_gates(draft)
        return draft.report()


def _evaluate(request: CompareRequest, reference: graph.Loaded, other: graph.Loaded, draft: Draft) -> Evaluation:
    """Run both models on the data, then time them; writes what it finds into the draft."""
    recipe = request.recipe
    samples = open_samples(request.data, None, reference, recipe=recipe, progress=request.progress)
    if samples is None:
        raise DataError(
            "no-data",
            "there is no data to compare the models on",
            where="--data",
            fix="Give --data, or put NAME.calib.npz beside the float model NAME.onnx.",
        )
    refuse_unlabelled(recipe, samples)
    threads = recipe.threads or 0
    given = given_loadable(reference, threads=threads)
    float_session = Session(given)
    source = replace(given_loadable(other, threads=threads), label="the quantized model")
    session, found = _loaded(reference, other, source)
    _refuse_other_interface(float_session, session)
    paired = None if recipe.metric is None else Paired(find(recipe.metric))
    found_outputs = compare_outputs(float_session, session, samples.everything(), paired)
    outputs, count, measured = found_outputs.outputs, found_outputs.samples, found_outputs.measured
    draft.warnings.extend(found_outputs.notes)
    draft.metric = None if measured is None else MetricInfo.of(measured)
    latency = None
    if isinstance(session, Session):
        latency = interleaved(float_session, session, feeds=samples.kept)
    else:
        draft.warnings.append(BY_REFERENCE)
    draft.data = DataInfo(source=samples.description, samples=count, held_out=False)
    draft.verification = Verification(samples=count, outputs=outputs)
    draft.latency = None if latency is None else LatencyInfo.of(latency)
    draft.runtime = None if found is None else RuntimeInfo.of(found)
    if request.detailed and isinstance(session, Session):
        _layers(given, source, samples, found=found, draft=draft)
    return Evaluation(outputs=outputs, samples=count, latency=latency, measured=measured)


def _loaded(
    reference: graph.Loaded, other: graph.Loaded, source: Loadable
) -> tuple[Session | ReferenceSession, RunsAs | None]:
    """The quantized model and how it runs; in the onnx reference evaluator where ONNX Runtime lacks a kernel."""
    try:
        session, optimized = load_and_inspect(source, read_optimized)
    except ModelError as refused:
        if other.external is not None:
            raise
        try:
            return ReferenceSession(other.proto.SerializeToString(), {}, label=source.label), None
        except ModelError:
            raise refused from None
    return session, execution(optimized, _stand_ins(reference, other)).runs_as


def _stand_ins(reference: graph.Loaded, other: graph.Loaded) -> Mapping[str, StandIns]:
    """What stands for the float model's nodes in the other one; nodes without a name are not looked for."""
    nodes, others = (outline(loaded.proto).nodes for loaded in (reference, other))
    return stand_ins((node for node in nodes if node.name), others)


def _layers(
    float_model: Loadable, quantized: Loadable, samples: Samples, *, found: RunsAs | None, draft: Draft
) -> None:
    """SQNR along the graph, into the draft."""
    integer = {} if found is None else found.integer
    assert draft.model is not None
    draft.layers, notes = measure_layers(
        float_model,
        quantized,
        samples.kept,
        size_bytes=draft.model.size_bytes or 0,
        runs_as={name: "integer" if is_integer else "float" for name, is_integer in integer.items()},
    )
    draft.warnings.extend(notes)


def _refuse_other_interface(float_session: Session, session: Session | ReferenceSession) -> None:
    missing = [name for name in session.inputs if name not in float_session.inputs]
    lost = [name for name in float_session.outputs if name not in session.outputs]
    for names, kind in ((missing, "input"), (lost, "output")):
        if names:
            raise ModelError(
                "other-model",
                f"the two models differ in the {kind} '{names[0]}'",
                where=names[0],
                fix="Give the quantized form of the same model.",
            )
