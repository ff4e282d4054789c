"""Where inputs can be smoothed, and what takes the factors up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from quantool.pipeline.choice.channels import Group, Layout, is_own
from quantool.pipeline.choice.equalize import planned_groups
from quantool.pipeline.choice.noise import EXACT, ROUNDED
from quantool.pipeline.source import FloatModel
from quantool.recipe import Recipe
from quantool.schema import GraphFacts, NodeFact, Plan, Use, WeightSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothUnit:
    """Tensors that take the same factors. inserted: whether a Mul applies them, or constants in front take them up.

    rounded: those that become integers, of one scale the first; read: one that layers multiply; weights: of these.
    """

    group: Group
    inserted: bool
    rounded: tuple[str, ...]
    read: str
    weights: tuple[WeightSpec, ...]

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """Of every tensor that must be measured."""
        return {name: self.group.tensors[name] for name in (*self.rounded, self.read, *self.group.bounds)}


def smooth_units(source: FloatModel, plan: Plan, recipe: Recipe, *, convolutions: bool) -> Iterator[SmoothUnit]:
    """The units of a plan. convolutions: those that such layers read, else those of matrix products alone."""
    weights = {spec.node: spec for spec in plan.weights if spec.index == 1}
    between = planned_groups(source, plan, recipe)
    inside = {name for group in between for name in group.tensors}
    inserted = {name: readers for name, readers in smoothable(source, plan).items() if name not in inside}
    for group in between:
        convolved = any(source.facts.by_name[node].op_type == "Conv" for node in group.readers)
        shared = any(weights[node].axis is None for node in group.writers if node in weights)
        unit = _unit(source.facts, plan, group, weights, inserted=False)
        if unit is not None and not shared and convolved == convolutions:
            yield unit
    for name, readers in () if convolutions else inserted.items():
        width = source.facts.tensors[readers[0].inputs[1]].shape
        rank = len(source.facts.tensors[name].shape or ())
        count = width[_input_axis(readers[0])] if width else None
        if not isinstance(count, int):
            continue
        operands = _absorbing(source.facts, plan, name, count)
        group = Group(
            tensors={name: Layout(count=count, axis=rank - 1)},
            bounds={},
            writers=(),
            readers=tuple(node.name for node in readers),
            operands=operands,
        )
        unit = _unit(source.facts, plan, group, weights, inserted=not operands)
        if unit is not None:
            yield unit


def _unit(
    facts: GraphFacts, plan: Plan, group: Group, weights: Mapping[str, WeightSpec], *, inserted: bool
) -> SmoothUnit | None:
    """A group as a unit, if evenly spaced codes are all that it is rounded to."""
    specs = {name: plan.activations[name] for name in group.tensors if name in plan.activations}
    first = {spec.group: name for name, spec in reversed(specs.items())}
    found = tuple(weights[node] for node in group.readers if node in weights)
    types = {spec.dtype for spec in specs.values()}
    if not found or not types <= ROUNDED | EXACT or any(spec.block_size or not spec.symmetric for spec in found):
        return None
    return SmoothUnit(
        group=group,
        inserted=inserted,
        rounded=tuple(reversed(first.values())),
        read=facts.by_name[found[0].node].inputs[0],
        weights=found,
    )


def smoothable(source: FloatModel, plan: Plan) -> Mapping[str, tuple[NodeFact, ...]]:
    """Tensors that can be smoothed alone -> the matrix products that read them quantized.

    Every quantized reader must be such a product; float readers go on reading the tensor as it was.
    """
    shared = [spec.group for spec in plan.activations.values()]
    found: dict[str, tuple[NodeFact, ...]] = {}
    for name, spec in plan.activations.items():
        if spec.replaces or spec.fixed is not None or shared.count(spec.group) > 1:
            continue
        uses = [use for use in source.facts.readers(name) if use.index in plan.decisions[use.node].inputs]
        readers = tuple(source.facts.by_name[use.node] for use in uses)
        if readers and all(_is_product(source, node, name) for node in readers):
            found[name] = readers
    return found


def _is_product(source: FloatModel, node: NodeFact, tensor: str) -> bool:
    weight = source.facts.tensors[node.inputs[1]] if len(node.inputs) > 1 else None
    shape = source.facts.tensors[tensor].shape
    if node.op_type not in ("MatMul", "Gemm") or node.domain or node.scope or node.attributes.get("transA", 0):
        return False
    if node.inputs[0] != tensor or weight is None:
        return False
    return bool(weight.is_constant and weight.shape and len(weight.shape) == 2 and shape and len(shape) >= 2)


def _input_axis(node: NodeFact) -> int:
    return 1 if node.op_type == "Gemm" and node.attributes.get("transB", 0) else 0


def _absorbing(facts: GraphFacts, plan: Plan, tensor: str, count: int) -> tuple[Use, ...]:
    """The constants that can take the factors of a tensor up; none where a reader wants it as it was.

    They are the scale and the bias of a LayerNormalization, or those of a Mul and of an Add behind it.
    """
    fact, node = facts.tensors[tensor], facts.producer(tensor)
    if fact.is_output or any(use.index not in plan.decisions[use.node].inputs for use in fact.readers):
        return ()
    if node is None or node.domain or node.scope or plan.decisions[node.name].quantized:
        return ()
    if node.op_type == "LayerNormalization":
        last = len(node.outputs) == 1 and node.attributes.get("axis", -1) in (-1, len(fact.shape or ()) - 1)
        uses = tuple(Use(node.name, index) for index, name in enumerate(node.inputs) if index and name)
        return uses if last and all(_is_row(facts, use, count) for use in uses) else ()
    if node.op_type == "Mul":
        return _row_of(facts, node, count)
    return _behind_mul(facts, plan, node, count) if node.op_type == "Add" else ()


def _behind_mul(facts: GraphFacts, plan: Plan, node: NodeFact, count: int) -> tuple[Use, ...]:
    """The rows of an Add and of the Mul that it alone reads."""
    added = _row_of(facts, node, count)
    if not added:
        return ()
    between = node.inputs[1 - added[0].index]
    before = facts.producer(between)
    alone = len(facts.tensors[between].readers) == 1 and not facts.tensors[between].is_output
    if before is None or before.op_type != "Mul" or before.domain or before.scope or not alone:
        return ()
    multiplied = () if plan.decisions[before.name].quantized else _row_of(facts, before, count)
    return (*multiplied, *added) if multiplied else ()


def _row_of(facts: GraphFacts, node: NodeFact, count: int) -> tuple[Use, ...]:
    uses = (Use(node.name, index) for index in range(len(node.inputs)))
    return next(((use,) for use in uses if _is_row(facts, use, count)), ())


def _is_row(facts: GraphFacts, use: Use, count: int) -> bool:
    """Whether a reading is of a constant with a number for each channel, which nothing else reads."""
    fact = facts.tensors[facts.by_name[use.node].inputs[use.index]]
    return is_own(fact) and fact.shape == (count,)
