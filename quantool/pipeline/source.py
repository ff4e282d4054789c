"""From the model as given to a normalized float graph that was checked against it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from quantool import graph
from quantool.data import files_read
from quantool.errors import ModelError, QuantoolError
from quantool.graph.normalize import PASSES, normalize, other_floats, wants_hardswish
from quantool.graph.outputs import with_outputs
from quantool.pipeline.feeds import Samples, random_probe
from quantool.pipeline.memory import refuse_large_file, thrift_of
from quantool.recipe import Recipe
from quantool.report.model import ModelInfo
from quantool.requests import ModelSource
from quantool.runtime import Loadable, Optimization, Session, Thrift, tap, tensor_types
from quantool.schema import AnyArray, Feed, GraphFacts, Note
from quantool.verify import relative_differences, same

Outputs: TypeAlias = Mapping[str, AnyArray]

#: the least opset that has HardSwish
HARDSWISH_OPSET = 14
#: the least opset whose DequantizeLinear has scales in 16 bits
NARROW_SCALES_OPSET = 19
#: the rewrite that computes a model of another float type in float32
_WIDEN = ("widen",)
#: float graphs that compute the same differ by rounding: this much of the output's largest value at most
SAME_FLOAT = 1e-3
#: ill-conditioned inputs make the runtime's own optimization levels differ: this many times as much is allowed
RUNTIME_FLOOR = 4.0
#: half-precision models computed in float32 differ from themselves by their own rounding
SAME_HALF = 3e-2


@dataclass(slots=True, kw_only=True)
class FloatModel:
    """A model ready to be planned; nothing changes it, edits apply to a copy.

    given: how to load the model as it came; normalized: the graph that is quantized; changed: the rewrites
    that took effect; constant: the value of an initializer of the normalized graph, also after edits.
    """

    loaded: graph.Loaded
    model: graph.Model
    facts: GraphFacts
    given: Loadable
    normalized: Loadable
    changed: tuple[str, ...]
    constant: Callable[[str], AnyArray]
    notes: list[Note] = field(default_factory=list)


def read_float(source: ModelSource, *, memory: int | None = None) -> graph.Loaded:
    """Read a model and refuse what is quantized already, and a file too large for a bound in bytes."""
    refuse_large_file(source, memory)
    loaded = graph.read(source)
    found = graph.already_quantized(loaded.proto)
    if found:
        raise ModelError(
            "already-quantized",
            f"the model holds quantized operators: {', '.join(found[:3])}",
            where=str(loaded.source.path or "the model"),
            fix="Quantize the float model that it was made from.",
        )
    return loaded


def model_info(loaded: graph.Loaded) -> ModelInfo:
    """What a report says of the model as given."""
    source = loaded.source
    path = None if source.path is None else str(source.path)
    return ModelInfo(path=path, sha256=source.sha256, opset=source.opset, size_bytes=source.size_bytes)


def source_files(loaded: graph.Loaded, samples: Samples | None, *others: object) -> tuple[Path, ...]:
    """Every file that a run reads: the model with its external data, the data beside it, and others."""
    external = () if loaded.external is None else tuple(loaded.external.files.values())
    beside = None if samples is None else samples.beside
    return files_read(loaded.source.path, external, beside, *others)


def given_loadable(loaded: graph.Loaded, *, threads: int = 0, thrift: Thrift = Thrift.NONE) -> Loadable:
    """How ONNX Runtime loads the model as given."""
    model = graph.given_bytes(loaded) if graph.is_outlined(loaded) else loaded.source.path
    model = model or loaded.proto.SerializeToString()
    return Loadable(model=model, folder=loaded.source.folder, threads=threads, thrift=thrift, label="the float model")


def normalized_model(
    loaded: graph.Loaded,
    samples: Samples | None,
    *,
    opset: int | None,
    recipe: Recipe,
    floats: Collection[str] = ("float32",),
) -> FloatModel:
    """Prepare and normalize, and hold the result against the model as given on the first samples.

    Without samples, on random inputs of the declared shapes; a model that does not take those is not compared.
    opset: what the chosen form needs; raised to 14 where a spelled-out HardSwish can become the operator. A
    rewrite that changes the outputs is left out, with a warning; where none is to blame, the operator whose
    meaning the opset change altered is named. floats: types that may stay; a model with others is computed in float32.
    Raises ModelError.
    """
    threads = recipe.threads or 0
    thrift = thrift_of(loaded, recipe.memory, has_data=samples is not None)
    given = given_loadable(loaded, threads=threads, thrift=thrift)
    probes, reference, notes = _reference(given, loaded, samples, seed=recipe.seed)
    model = graph.prepare(loaded, opset=opset)
    kept = other_floats(model) <= set(floats)
    least = _least_opset(model, opset, kept=kept)
    if opset is not None and max(opset, loaded.source.opset) < least:
        opset = least
        model = graph.prepare(loaded, opset=opset)
    changed = normalize(model, skip=_WIDEN if kept else ())
    result = finished(loaded, model, given, changed=changed, threads=threads)
    result.notes.extend(notes)
    if reference is None or _agrees(reference, result, probes):
        return result
    return _repaired(result, opset, reference, probes, skipped=_WIDEN if kept else ())


def _least_opset(model: graph.Model, opset: int | None, *, kept: bool) -> int:
    """The least opset of what normalizing and quantizing write into this model beside the chosen types."""
    half = NARROW_SCALES_OPSET if kept and other_floats(model) else 0
    return max(half, HARDSWISH_OPSET if opset is not None and wants_hardswish(model) else 0)


def plain_facts(loaded: graph.Loaded, *, opset: int | None) -> GraphFacts:
    """The facts of the normalized model, without running it: types of contrib operators may be unknown."""
    model = graph.prepare(loaded, opset=opset)
    normalize(model)
    return graph.facts(model)


def _reference(
    given: Loadable, loaded: graph.Loaded, samples: Samples | None, *, seed: int
) -> tuple[Sequence[Feed], list[Outputs] | None, list[Note]]:
    """Probes, and what the model as given makes of them; None where it cannot be run."""
    try:
        session = Session(given)
    except ModelError as error:
        return (), None, [_not_compared(error)]
    if samples is not None:
        probes = samples.probes()
        return probes, [session.run(feed, sample=i) for i, feed in enumerate(probes)], []
    try:
        probes = random_probe(loaded, seed=seed)
        return probes, [session.run(feed) for feed in probes], []
    except QuantoolError as error:
        return (), None, [_not_compared(error)]


def _not_compared(error: QuantoolError) -> Note:
    return Note(
        code="float-not-compared",
        what=f"the normalized form was not compared with the model as given: {error.what}",
        where=error.where,
        fix="Give samples that the model takes with --data.",
    )


def finished(
    loaded: graph.Loaded, model: graph.Model, given: Loadable, *, changed: tuple[str, ...], threads: int
) -> FloatModel:
    """A graph under work with everything that planning needs to know of it."""
    data, folder = graph.serialize(model)
    normalized = Loadable(model=data, folder=folder, threads=threads, thrift=given.thrift, label="the normalized model")
    facts = graph.facts(model)
    unknown = [t.name for t in facts.tensors.values() if t.dtype == "" and _at_top(facts, t.name)]
    notes = list(model.notes)
    if unknown:
        facts, more = _typed(model, facts, normalized, unknown)
        notes.extend(more)
    return FloatModel(
        loaded=loaded,
        model=model,
        facts=facts,
        given=given,
        normalized=normalized,
        changed=changed,
        constant=graph.constant_loader(model),
        notes=notes,
    )


def _at_top(facts: GraphFacts, tensor: str) -> bool:
    producer = facts.producer(tensor)
    return producer is not None and producer.scope == ""


def _typed(
    model: graph.Model, facts: GraphFacts, normalized: Loadable, unknown: Sequence[str]
) -> tuple[GraphFacts, list[Note]]:
    """Let ONNX Runtime tell the types that onnx inference could not."""
    try:
        types = tensor_types(normalized, unknown, with_outputs=with_outputs)
    except QuantoolError as error:
        note = Note(
            code="types-unknown",
            what=f"the types of {len(unknown)} tensors stay unknown: {error.what}",
            where=unknown[0],
            fix="Run shape inference on the model.",
        )
        return facts, [note]
    return graph.facts(model, types={n: (d if "(" not in d else "", s) for n, (d, s) in types.items()}), []


def _agrees(reference: Sequence[Outputs], candidate: FloatModel, probes: Sequence[Feed]) -> bool:
    """Whether both forms give the same outputs, up to what the runtime's own optimizer changes in the given one."""
    rtol = SAME_HALF if "widen" in candidate.changed or other_floats(candidate.model) else SAME_FLOAT
    outputs = run_all(candidate.normalized, probes)
    if all(same(a, b, rtol=rtol) for a, b in zip(reference, outputs, strict=True)):
        return True
    plain = run_all(replace(candidate.given, optimization=Optimization.DISABLED), probes)
    return all(
        all(difference <= max(rtol, RUNTIME_FLOOR * floor) for difference, floor in _pairs(a, b, c))
        for a, b, c in zip(reference, outputs, plain, strict=True)
    )


def run_all(source: Loadable, probes: Sequence[Feed]) -> list[Outputs]:
    """The outputs of a model for each feed."""
    session = Session(source)
    return [session.run(feed, sample=i) for i, feed in enumerate(probes)]


def _pairs(reference: Outputs, candidate: Outputs, plain: Outputs) -> Iterator[tuple[float, float]]:
    """For each output, how far the candidate is from the reference, and how far the runtime is from itself."""
    differences, floors = relative_differences(reference, candidate), relative_differences(reference, plain)
    return ((differences[name], floors[name]) for name in reference)


def _repaired(
    wrong: FloatModel,
    opset: int | None,
    reference: Sequence[Outputs],
    probes: Sequence[Feed],
    *,
    skipped: tuple[str, ...],
) -> FloatModel:
    """Leave out the rewrite that changes the outputs, beside those skipped; refuse where the opset change does."""
    for skip in (*((name,) for name in wrong.changed), tuple(PASSES)):
        model = graph.prepare(wrong.loaded, opset=opset)
        changed = normalize(model, skip=(*skip, *skipped))
        candidate = finished(wrong.loaded, model, wrong.given, changed=changed, threads=wrong.given.threads)
        if _agrees(reference, candidate, probes):
            candidate.notes.append(
                Note(
                    code="rewrite-left-out",
                    what=f"the rewrite {', '.join(skip)} changes the outputs of this model and was left out",
                    where=str(wrong.loaded.source.path or "the model"),
                    fix="Nothing to do; please report the model.",
                )
            )
            return candidate
    raise ModelError(
        "opset-changes-meaning",
        f"raising the opset to {opset} changes the result, first at {_first_difference(candidate, probes)}",
        where=str(wrong.loaded.source.path or "the model"),
        fix="Export the model again at a newer opset.",
    )


def _first_difference(candidate: FloatModel, probes: Sequence[Feed]) -> str:
    """The first node whose output differs between the model as given and the prepared one."""
    names = [o for n in candidate.facts.nodes if not n.scope for o in n.outputs if o]
    known = {o for n in candidate.loaded.proto.graph.node for o in n.output}
    shared = [n for n in names if n in known and candidate.facts.tensors[n].is_float]
    given = _tapped_outputs(candidate.given, shared, probes[0])
    prepared = _tapped_outputs(candidate.normalized, shared, probes[0])
    differences = relative_differences(given, prepared)
    for name in shared:
        node = candidate.facts.producer(name)
        if differences[name] > SAME_FLOAT and node is not None:
            return f"{node.op_type} '{node.name}'"
    return "an operator inside a subgraph"


def _tapped_outputs(source: Loadable, names: Sequence[str], feed: Feed) -> Outputs:
    _, arrays = next(tap(source, [feed], groups=[names], with_outputs=with_outputs))
    return arrays


def output_path(source: Path | None, weights: str) -> Path:
    """Where a result goes by default: beside the model, ``NAME.int8.onnx`` and the like."""
    base = source if source is not None else Path("model.onnx")
    return base.with_name(f"{base.stem}.{weights}.onnx")
