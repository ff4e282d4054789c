"""From a graph in ONNX text to the quantized model and what ONNX Runtime makes of it, stage by stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.parser

from calibrators.registry import STATISTICS
from quantool import graph, targets
from quantool.graph import edit
from quantool.graph.allocator import NameAllocator
from quantool.graph.normalize import normalize, other_floats, wants_hardswish
from quantool.graph.optimized import OptimizedGraph, read_optimized
from quantool.graph.outputs import with_outputs
from quantool.kernels.metrics import sqnr_db
from quantool.plan import examine, make_plan, resolve
from quantool.recipe import Recipe, from_options
from quantool.rewrite import rewrite
from quantool.runtime import Loadable, Optimization, Session, load_and_inspect, tap, tensor_types
from quantool.schema import AnyArray, Feed, GraphFacts, Mode, Parameters, Plan
from quantool.solve import solve, solve_ranges, statistic_kind
from quantool.verify import check_execution, execution, stand_ins

Constants = Mapping[str, AnyArray]

#: what 8 bits reach on samples that were not used for calibration, by the number of layers
STATIC_DB, SIX_LAYERS_DB, DYNAMIC_DB, WEIGHTS_DB, FOUR_BITS_DB = 28.0, 20.0, 25.0, 30.0, 16.0


def parse(text: str, constants: Constants | None = None, *, opset: int = 17) -> onnx.ModelProto:
    """A model from its signature and body in ONNX text; `constants` become initializers that it may read.

    Outputs without a shape in the text get the inferred one.
    """
    imports = f'"" : {opset}, "com.microsoft" : 1'
    proto = onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]> g {text}")
    for name, array in (constants or {}).items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    for output in proto.graph.output:
        if not output.type.tensor_type.shape.dim:
            output.type.tensor_type.ClearField("shape")
    outputs = onnx.shape_inference.infer_shapes(proto).graph.output
    del proto.graph.output[:]
    proto.graph.output.extend(outputs)
    return proto


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> AnyArray:
    """Normal float32 values."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def normal_feeds(count: int = 24, **shapes: Sequence[int]) -> list[dict[str, AnyArray]]:
    """Feeds of normal numbers for the inputs named."""
    rng = np.random.default_rng(7)
    return [
        {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(count)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A normalized graph and its first plan."""

    model: graph.Model
    facts: GraphFacts
    plan: Plan
    recipe: Recipe
    mode: Mode

    def codes(self) -> dict[str, str]:
        """Node -> the reason why it is kept, or what it becomes: its kernel, or the node that absorbs it."""
        return {
            name: d.reason.code if d.reason is not None else (f"into {d.into}" if d.into else d.kernel)
            for name, d in self.plan.decisions.items()
        }


def draft(proto: onnx.ModelProto, mode: str = "static", **options: object) -> Draft:
    """Prepare, normalize and plan, as far as no data is needed. mode "auto" is that without data."""
    recipe = from_options({"mode": mode, **options})
    target = targets.load(recipe.target)
    settings = resolve(recipe, target, Mode.DYNAMIC if mode == "auto" else Mode(mode))
    loaded = graph.read(proto)
    model = graph.prepare(loaded, opset=settings.opset)
    if wants_hardswish(model):
        model = graph.prepare(loaded, opset=max(settings.opset, 14))
    stays = other_floats(model) <= set(target.weight_only_floats) and mode == "weight-only"
    if stays and other_floats(model):
        model = graph.prepare(loaded, opset=max(settings.opset, 19))
    normalize(model, skip=("widen",) if stays else ())
    facts = _typed_facts(model)
    plan = make_plan(facts, recipe, target=target, mode=Mode(mode))
    return Draft(model=model, facts=facts, plan=plan, recipe=recipe, mode=Mode(mode))


def _typed_facts(model: graph.Model) -> GraphFacts:
    """The facts, with ONNX Runtime's types where ONNX knows none (contrib operators)."""
    facts = graph.facts(model)
    top = {name for node in facts.nodes if not node.scope for name in node.outputs}
    unknown = [name for name, tensor in facts.tensors.items() if tensor.dtype == "" and name in top]
    if not unknown:
        return facts
    data, folder = graph.serialize(model)
    types = tensor_types(Loadable(model=data, folder=folder, threads=1), unknown, with_outputs=with_outputs)
    return graph.facts(model, types)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A quantized model, and what it computes on held-out feeds, fully optimized and as written."""

    plan: Plan
    facts: GraphFacts
    parameters: Parameters
    data: bytes
    proto: onnx.ModelProto
    given: list[dict[str, AnyArray]]
    optimized: list[dict[str, AnyArray]]
    plain: list[dict[str, AnyArray]]
    graph: OptimizedGraph
    problems: tuple[str, ...]

    @property
    def runs(self) -> Counter[str]:
        """Operators of the optimized model."""
        return Counter(node.op_type for node in self.graph.nodes)

    @property
    def ops(self) -> Counter[str]:
        """Operators of the written model, all scopes."""
        return Counter(node.op_type for node in _nodes(self.proto.graph))

    def constant(self, name: str) -> AnyArray:
        """An initializer of the written model."""
        return next(onnx.numpy_helper.to_array(t) for t in self.proto.graph.initializer if t.name == name)

    def constants(self) -> dict[str, AnyArray]:
        return {t.name: onnx.numpy_helper.to_array(t) for t in self.proto.graph.initializer}

    def db(self, output: str | None = None) -> float:
        """SQNR of the worse of both optimization levels, over all outputs or one."""
        names = [output] if output else list(self.given[0])
        return min(_db(self.given, found, name) for found in (self.optimized, self.plain) for name in names)


def flow(
    proto: onnx.ModelProto, feeds: Sequence[Feed], mode: str = "static", *, strict: bool = True, **options: object
) -> Result:
    """Quantize a model; the last quarter of the feeds is held out. strict: it must run as planned."""
    held_out = feeds[-max(len(feeds) // 4, 1) :]
    start = draft(proto, mode, **options)
    model, facts, recipe = start.model, start.facts, start.recipe
    plan, ranges = start.plan, {}
    if start.mode is Mode.STATIC:
        stats = calibrate(start, feeds[: -len(held_out)] or feeds)
        ranges = solve_ranges(plan, facts, stats, recipe)
        findings = examine(plan, facts, ranges)
        plan = make_plan(facts, recipe, target=targets.load(recipe.target), mode=start.mode, findings=findings)
        ranges = solve_ranges(plan, facts, stats, recipe)
    parameters = solve(plan, ranges, load=graph.constant_loader(model), recipe=recipe)
    edit.apply(model, rewrite(facts, plan, parameters, fresh=NameAllocator(model).fresh))
    data, _ = graph.serialize(model)
    written = onnx.load_from_string(data)
    onnx.checker.check_model(written, full_check=True)
    _same_signature(proto, written)
    session, optimized = load_and_inspect(Loadable(model=data, threads=1), read_optimized)
    plain = Session(Loadable(model=data, threads=1, optimization=Optimization.DISABLED))
    given = Session(Loadable(model=proto.SerializeToString(), threads=1))
    found = execution(optimized, stand_ins(facts.nodes, graph.facts(model).nodes))
    problems = check_execution(plan, found, nodes=facts.by_name, strict=strict)
    return Result(
        plan=plan,
        facts=facts,
        parameters=parameters,
        data=data,
        proto=written,
        given=[given.run(feed) for feed in held_out],
        optimized=[session.run(feed) for feed in held_out],
        plain=[plain.run(feed) for feed in held_out],
        graph=optimized,
        problems=tuple(note.what for note in problems),
    )


def calibrate(start: Draft, feeds: Iterable[Feed]) -> dict[str, object]:
    """Statistics of every tensor that the plan, or a later one with fewer integers, may ask for."""
    names = sorted({name for spec in start.plan.activations.values() for name in (spec.name, spec.statistic)})
    empty = STATISTICS[statistic_kind(start.recipe)]()
    stats = dict.fromkeys(names, empty)
    if names:
        data, folder = graph.serialize(start.model)
        source = Loadable(model=data, folder=folder, threads=1)
        for _, arrays in tap(source, feeds, groups=[names], with_outputs=with_outputs):
            stats.update({name: stats[name].observe(array) for name, array in arrays.items()})
    return stats


def _db(given: list[dict[str, AnyArray]], found: list[dict[str, AnyArray]], name: str) -> float:
    exact = np.concatenate([run[name].ravel() for run in given])
    other = np.concatenate([run[name].ravel() for run in found])
    assert [r[name].shape for r in given] == [r[name].shape for r in found]
    assert exact.dtype == other.dtype
    return sqnr_db(exact, other)


def _same_signature(given: onnx.ModelProto, written: onnx.ModelProto) -> None:
    """Inputs and outputs keep names, order, types and symbolic dimensions."""
    constants = {tensor.name for tensor in given.graph.initializer}
    assert [v for v in given.graph.input if v.name not in constants] == list(written.graph.input)
    assert [v.name for v in given.graph.output] == [v.name for v in written.graph.output]
    kinds = [v.type.tensor_type.elem_type for v in given.graph.output]
    assert kinds == [v.type.tensor_type.elem_type for v in written.graph.output]


def _nodes(top: onnx.GraphProto) -> Iterable[onnx.NodeProto]:
    for node in top.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
