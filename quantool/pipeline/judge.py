"""Running the float and the quantized model side by side: what it cost, what it saves, which gates hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from quantool.data import labels_of
from quantool.errors import ModelError
from quantool.graph.optimized import read_optimized
from quantool.graph.reference import ReferenceSession
from quantool.measured import Latency, OutputComparison, RunsAs
from quantool.metrics import Measured, Metric, Paired, Sample
from quantool.pipeline.decoding import Decoding
from quantool.pipeline.feeds import Judging, Samples
from quantool.pipeline.source import FloatModel
from quantool.recipe import Recipe
from quantool.report.model import Coverage, Gate
from quantool.runtime import Loadable, Optimization, Session, interleaved, load_and_inspect
from quantool.schema import Feed, GraphFacts, Mode, NodeFact, Note, Plan
from quantool.verify import Comparator, accuracy_levels, check_execution, execution, stand_ins

#: above this many nodes the runtime's own session creation takes minutes on graphs full of Q and DQ
LARGE_GRAPH = 5000
#: from here on the report says what normalizing alone gained
NOTABLE_GAIN = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A quantized model loaded in the runtime.

    runs_as: None where the optimized graph was not held against the plan; accuracy_levels: those of its MatMulNBits.
    """

    session: Session | ReferenceSession
    runs_as: RunsAs | None
    notes: tuple[Note, ...]
    timed: bool = True
    accuracy_levels: tuple[int, ...] = ()


def load_quantized(
    source: Loadable, plan: Plan, facts: GraphFacts, *, written: Sequence[NodeFact], strict: bool | None
) -> Loaded:
    """Load the result and hold the plan against the optimized graph.

    written: all nodes of the quantized graph. strict: True ends the run on a difference, False warns, None skips
    the check (the target is another machine). Raises ModelError or VerificationError.
    """
    if plan.reference:
        assert isinstance(source.model, bytes)
        session = ReferenceSession(source.model, source.external, label=source.label)
        return Loaded(session=session, runs_as=None, notes=(BY_REFERENCE,), timed=False)
    plain = replace(source, optimization=Optimization.DISABLED)
    if len(written) > LARGE_GRAPH:
        return Loaded(session=Session(plain), runs_as=None, notes=(_large_note(len(written)),), timed=False)
    inspected = strict is not None or plan.mode is Mode.WEIGHT_ONLY
    try:
        if not inspected:
            return Loaded(session=Session(source), runs_as=None, notes=())
        loaded, optimized = load_and_inspect(source, read_optimized)
    except ModelError:
        if not source.mapped:
            raise
        # An optimizer asked for the values of a weight that stays mapped, to make another one of it.
        return Loaded(session=Session(plain), runs_as=None, notes=(NOT_FUSED,), timed=False)
    levels = accuracy_levels(optimized)
    if strict is None:
        return Loaded(session=loaded, runs_as=None, notes=(), accuracy_levels=levels)
    found = execution(optimized, stand_ins(facts.nodes, written))
    notes = check_execution(plan, found, nodes=facts.by_name, strict=strict)
    return Loaded(session=loaded, runs_as=found.runs_as, notes=notes, accuracy_levels=levels)


#: the warning of a result that ONNX Runtime cannot run
BY_REFERENCE = Note(
    code="reference-evaluator",
    what="ONNX Runtime cannot run the result's types: the onnx reference evaluator verified it, untimed",
    where="verification",
    fix="Run the model where its types have kernels, or choose types that ONNX Runtime runs.",
)


#: the warning of a result whose integers stay mapped
NOT_FUSED = Note(
    code="weights-not-fused",
    what="ONNX Runtime would copy weights to optimize the result: to save memory, it was loaded as it is written",
    where="verification",
    fix="Give --data or a larger --memory, to see what ONNX Runtime makes of the result.",
)


def _large_note(nodes: int) -> Note:
    return Note(
        code="optimizations-off",
        what=f"the result has {nodes} nodes: it was verified with the runtime's optimizations off, untimed",
        where="verification",
        fix="Time the model in your own application.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What running both models showed; empty where nothing was run. accuracy_levels: of the result's MatMulNBits."""

    outputs: Mapping[str, OutputComparison] = field(default_factory=lambda: MappingProxyType({}))
    samples: int = 0
    latency: Latency | None = None
    measured: Measured | None = None
    notes: tuple[Note, ...] = ()
    accuracy_levels: tuple[int, ...] = ()


def evaluate(
    source: FloatModel, loaded: Loaded, samples: Samples | Judging, metric: Metric | None = None
) -> Evaluation:
    """Compare the model as given with the result on the verification feeds, then time both in turn.

    Where ONNX Runtime refuses the model as given, its normalized form stands for it. The report's latency is that
    of the model as given; a note tells what normalizing alone gains.
    """
    reference = float_session(source)
    paired = None if metric is None else Paired(metric)
    found = compare_outputs(reference, loaded.session, samples.verification(), paired)
    found = replace(found, notes=(*samples.overlap(), *found.notes))
    if not (loaded.timed and samples.kept and isinstance(loaded.session, Session)):
        return found
    latency = interleaved(reference, loaded.session, feeds=samples.kept)
    notes = (*found.notes, *_normalized_gain(source, samples.kept, latency))
    return replace(found, latency=latency, notes=notes)


def float_session(source: FloatModel) -> Session:
    """The model as given, or its normalized form where ONNX Runtime refuses it."""
    try:
        return Session(source.given)
    except ModelError:
        return Session(source.normalized)


def compare_outputs(
    reference: Session, test: Session | ReferenceSession, feeds: Iterable[Feed], paired: Paired | None = None
) -> Evaluation:
    """Both models on every feed, one feed in memory at a time, and of language models on the step that follows it.

    paired: collects a metric on the way.
    """
    comparator, decoding = Comparator(), Decoding(reference, test)
    for number, feed in enumerate(feeds):
        exact, found = reference.run(feed, sample=number), test.run(feed, sample=number)
        comparator.add(exact, found, feed)
        if paired is not None:
            sample = Sample(feed=feed, labels=labels_of(feed), outputs=exact, reference=exact)
            paired.add(sample, replace(sample, outputs=found))
        decoding.follow(feed, exact, sample=number)
    return Evaluation(
        outputs={**comparator.result(), **decoding.outputs()},
        samples=comparator.samples,
        measured=None if paired is None else paired.result(),
        notes=decoding.notes(),
    )


def _normalized_gain(source: FloatModel, feeds: Sequence[Feed], latency: Latency) -> tuple[Note, ...]:
    """A note where rewriting the float graph alone made it faster: quantization must not take that credit."""
    if "hardswish" not in source.changed:
        return ()
    gain = interleaved(Session(source.given), Session(source.normalized), feeds=feeds, budget_s=0.5).speedup
    if gain < NOTABLE_GAIN:
        return ()
    return (
        Note(
            code="float-gains-too",
            what=f"writing HardSwish as one operator alone makes the float model {gain:.2f} times faster; "
            f"against that form the result is {latency.speedup / gain:.2f} times as fast",
            where="latency",
            fix="Compare with the float model exported at opset 14 or newer.",
        ),
    )


def judge_gates(recipe: Recipe, *, evaluation: Evaluation, size_ratio: float, coverage: Coverage) -> tuple[Gate, ...]:
    """Every gate that the user set, against what was measured; the worst output counts."""
    latency = evaluation.latency
    values = {
        "min_sqnr": worst_sqnr(evaluation.outputs),
        "min_agreement": _worst_agreement(evaluation.outputs),
        "min_speedup": None if latency is None else latency.speedup,
        "max_size_ratio": size_ratio,
        "min_coverage": coverage.macs,
        "max_drop": None if evaluation.measured is None else evaluation.measured.drop,
    }
    gates = []
    for name, value in values.items():
        limit = getattr(recipe, name)
        if limit is None:
            continue
        holds = value is not None and (value <= limit if name.startswith("max") else value >= limit)
        gates.append(Gate(name=name, limit=limit, value=value, passed=holds))
    return tuple(gates)


def unresolved(evaluation: Evaluation, limit: float | None) -> tuple[Note, ...]:
    """A warning where the samples cannot tell on which side of its limit a drop is."""
    found = evaluation.measured
    if found is None or found.drop is None or limit is None or found.tells(limit):
        return ()
    interval = "unknown" if found.interval is None else "{:.4g} to {:.4g}".format(*found.interval)
    return (
        Note(
            code="unresolved-drop",
            what=f"{found.rows} rows cannot tell whether {found.name} drops by more than {limit:g}: the drop of "
            f"{found.drop:.4g} has a 95 % interval of {interval}",
            where="--max-drop",
            fix="Give more labelled samples, or a larger limit.",
        ),
    )


def worst_sqnr(outputs: Mapping[str, OutputComparison]) -> float | None:
    """In dB; infinite where all outputs are equal, None without any."""
    if not outputs:
        return None
    found = [o.sqnr_db for o in outputs.values() if o.sqnr_db is not None]
    return min(found) if found else float("inf")


def _worst_agreement(outputs: Mapping[str, OutputComparison]) -> float | None:
    found = [o.top1_agreement for o in outputs.values() if o.top1_agreement is not None]
    if found:
        return min(found)
    return 1.0 if outputs and all(o.exact for o in outputs.values()) else None
