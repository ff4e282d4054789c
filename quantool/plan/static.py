"""The static plan: units and regions, then the parameters that their tensors share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from quantool.elements import ELEMENTS
from quantool.ops import Role, ScaleRule, op_of
from quantool.plan.anchors import anchor_unit, kept_reason, refusal, row_spec, weight_spec
from quantool.plan.barriers import find_barriers
from quantool.plan.context import Context
from quantool.plan.embeddings import KERNEL as EMBEDDING
from quantool.plan.embeddings import embedding_decision, embedding_spec
from quantool.plan.feature_levels import expansion_note
from quantool.plan.misfits import find_misfits
from quantool.plan.mixed import product_of_other_type, refuse_operators, refuse_split_groups, runs_on_integers, types_at
from quantool.plan.patterns import named_patterns, reaching_spectrum
from quantool.plan.rangeless import WEIGHT_ONLY, WEIGHT_ONLY_KERNEL
from quantool.plan.reasons import reason
from quantool.plan.regions import Unit, find_regions, saturation
from quantool.schema import ActivationSpec, Decision, NodeFact, Note, Plan, Reason, WeightSpec

#: what these read is never clipped: a cut-off score or gate changes the answer
_EXACT_READERS = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid"})


def plan_static(ctx: Context) -> Plan:
    """Decide every node of a static model."""
    accepted, refused = _anchors(ctx)
    stored = _stored(ctx, accepted)
    units = find_regions(ctx, {name: unit for name, unit in accepted.items() if name not in stored})
    refuse_operators(ctx, units.values())
    activations = _activations(ctx, units)
    decisions, notes = _decisions(ctx, units, refused, stored)
    weights = [w for u in units.values() for w in _weights(ctx, u)]
    weights += [weight_spec(ctx, node, None) for node in stored.values()]
    weights += [embedding_spec(ctx, n) for n in ctx.facts.nodes if decisions[n.name].kernel == EMBEDDING]
    return Plan(
        mode=ctx.settings.mode,
        format=ctx.settings.format,
        target=ctx.target.name,
        opset=ctx.settings.opset,
        # ONNX Runtime takes no scale a row
        reference=ctx.settings.reference or any(spec.index == 0 and spec.block_size for spec in weights),
        decisions=decisions,
        activations=activations,
        weights=tuple(weights),
        barriers=tuple(dict.fromkeys((*find_barriers(ctx, units, activations), *find_misfits(ctx, units)))),
        notes=(*notes, *_level_notes(ctx, activations)),
    )


def _anchors(ctx: Context) -> tuple[dict[str, Unit], dict[str, Reason]]:
    spectral = reaching_spectrum(ctx.facts)
    accepted: dict[str, Unit] = {}
    refused: dict[str, Reason] = {}
    for node in ctx.facts.nodes:
        if op_of(node).role is not Role.ANCHOR:
            continue
        why = refusal(ctx, node)
        if why is not None and why.code == "activation-matmul" and ctx.asked(node):
            why = None
        allowed = ctx.asked(node) or node.name in ctx.findings.allow
        if why is None and node.outputs[0] in spectral and not allowed:
            why = reason("before-log")
        if why is None and not ctx.is_constant(node.inputs[1]) and ctx.in_float(node):
            why = reason("float-activations")
        if why is None:
            accepted[node.name] = anchor_unit(ctx, node)
        else:
            refused[node.name] = why
    return accepted, refused


def _stored(ctx: Context, accepted: Mapping[str, Unit]) -> dict[str, NodeFact]:
    """The weighted nodes whose activations a rule keeps in float: their weights alone become integers."""
    return {
        name: unit.node
        for name, unit in accepted.items()
        if unit.node.op_type in WEIGHT_ONLY
        and not ctx.is_constant(unit.node.inputs[0])
        and ctx.is_constant(unit.node.inputs[1])
        and ctx.in_float(unit.node, *(unit.ends if unit.integer_output else ()))
    }


def _weights(ctx: Context, unit: Unit) -> list[WeightSpec]:
    """The weight of an anchor, and constants that a follower reads as operands."""
    constants = [i for i in unit.inputs if ctx.is_constant(unit.node.inputs[i])]
    if unit.role is Role.ANCHOR:
        if ctx.is_constant(unit.node.inputs[0]):
            return [row_spec(ctx, unit.node)]
        if not ctx.is_constant(unit.node.inputs[1]):
            return []
        return [weight_spec(ctx, unit.node, unit.reads[0])]
    return [
        WeightSpec(
            node=unit.node.name,
            index=i,
            tensor=unit.node.inputs[i],
            dtype=ctx.at(unit.node).activations,
            axis=None,
            bits=ELEMENTS[ctx.at(unit.node).activations].bits,
            symmetric=ELEMENTS[ctx.at(unit.node).activations].floating,
        )
        for i in constants
    ]


# --- parameters -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Groups:
    """Union-find over tensors; the root is the tensor that was there first."""

    parent: dict[str, str]

    def root(self, tensor: str) -> str:
        while self.parent.setdefault(tensor, tensor) != tensor:
            self.parent[tensor] = self.parent[self.parent[tensor]]
            tensor = self.parent[tensor]
        return tensor

    def join(self, first: str, second: str) -> None:
        self.parent[self.root(second)] = self.root(first)


def _activations(ctx: Context, units: Mapping[str, Unit]) -> dict[str, ActivationSpec]:
    """One spec for every tensor that some unit reads or writes as integers."""
    specs: dict[str, ActivationSpec] = {}
    groups = _Groups({})
    for unit in units.values():
        for tensor in unit.reads:
            if not ctx.is_constant(tensor) and tensor not in specs:
                specs[tensor] = _own_spec(ctx, tensor)
        if unit.integer_output:
            for end in unit.ends:
                specs[end] = _end_spec(ctx, unit, end, specs)
                if op_of(unit.node).rule is ScaleRule.SAME:
                    groups.join(unit.reads[0], end)
        if unit.node.name in ctx.findings.unify:
            for tensor in unit.reads:
                if tensor in specs:
                    groups.join(tensor, unit.ends[0])
    found = {
        name: replace(spec, group=groups.root(name), copied=_is_copied(ctx, spec, units))
        for name, spec in specs.items()
    }
    refuse_split_groups(found.values())
    return found


def _is_copied(ctx: Context, spec: ActivationSpec, units: Mapping[str, Unit]) -> bool:
    """Whether an integer product writes a tensor in float that is quantized for some of its readers only."""
    fact = ctx.facts.tensors[spec.name]
    if ELEMENTS[spec.dtype].floating and _is_rectified(ctx, spec.name, units):
        return True
    if len(product_of_other_type(ctx, spec.name, units)) == 1:
        return True
    producer = units.get(fact.producer or "")
    if spec.replaces or producer is None:
        return False
    in_float = (u.node not in units or u.index not in units[u.node].inputs for u in fact.readers)
    return producer.role is Role.ANCHOR and (fact.is_output or any(in_float))


def _is_rectified(ctx: Context, tensor: str, units: Mapping[str, Unit]) -> bool:
    """Whether a rectifier stands before a tensor, kept data movers in between.

    The zero point 0 of floating codes looks to the runtime like the smallest code, which would do what it does.
    """
    writer = ctx.facts.producer(tensor)
    while writer is not None and op_of(writer).role is Role.MOVER and writer.name not in units:
        writer = ctx.facts.producer(writer.inputs[0])
    return writer is not None and op_of(writer).role is Role.RECTIFIER


def _own_spec(ctx: Context, tensor: str) -> ActivationSpec:
    """The spec of a tensor with a float producer, a graph input or an operand."""
    producer = ctx.facts.producer(tensor)
    fixed = None if producer is None else op_of(producer).fixed
    bounds = None if producer is None else saturation(ctx, producer)
    return ActivationSpec(
        name=tensor,
        dtype=ctx.type_of(tensor),
        group=tensor,
        statistic=tensor,
        fixed=fixed,
        bounds=bounds,
        exact=_feeds_exact(ctx, tensor),
    )


def _end_spec(ctx: Context, unit: Unit, end: str, specs: Mapping[str, ActivationSpec]) -> ActivationSpec:
    """The spec of what a unit writes: its own statistic, or that of the tensor it moves."""
    row = op_of(unit.node)
    own = ActivationSpec(
        name=end,
        dtype=ctx.type_of(end),
        group=end,
        statistic=end,
        fixed=row.fixed,
        bounds=unit.bounds,
        exact=_feeds_exact(ctx, end),
        replaces=unit.role is not Role.ISLAND,
    )
    if row.rule is not ScaleRule.SAME:
        return own
    moved = specs[unit.reads[0]]
    return replace(
        own, statistic=moved.statistic, fixed=moved.fixed, bounds=moved.bounds, exact=moved.exact or own.exact
    )


def _feeds_exact(ctx: Context, tensor: str) -> bool:
    """Whether a Softmax, a gate or the graph's output reads the tensor, data movers in between included."""
    pending, seen = [tensor], {tensor}
    while pending:
        fact = ctx.facts.tensors[pending.pop()]
        if fact.is_output:
            return True
        for use in fact.readers:
            node = ctx.facts.by_name[use.node]
            if node.op_type in _EXACT_READERS:
                return True
            if op_of(node).role is Role.MOVER and use.index == 0:
                fresh = [o for o in node.outputs if o and o not in seen]
                seen.update(fresh)
                pending.extend(fresh)
    return False


# --- decisions ------------------------------------------------------------------------------------------


def _decisions(
    ctx: Context, units: Mapping[str, Unit], refused: Mapping[str, Reason], stored: Collection[str]
) -> tuple[dict[str, Decision], tuple[Note, ...]]:
    """One decision for each node, in the order of the nodes."""
    patterns = dict(named_patterns(ctx.facts))
    inside = {name: unit for unit in units.values() for name in unit.absorbed}
    decisions: dict[str, Decision] = {}
    for node in ctx.facts.nodes:
        if (unit := units.get(node.name)) is not None:
            decisions[node.name] = _unit_decision(ctx, unit)
        elif (host := inside.get(node.name)) is not None:
            decisions[node.name] = _absorbed_decision(ctx, node.name, host)
        elif node.name in stored:
            decisions[node.name] = Decision(node=node.name, quantized=True, kernel=WEIGHT_ONLY_KERNEL)
        elif (table := embedding_decision(ctx, node)) is not None:
            decisions[node.name] = table
        else:
            why = refused.get(node.name) or kept_reason(ctx, node, patterns)
            decisions[node.name] = Decision(node=node.name, quantized=False, reason=why)
    return decisions, tuple(_type_notes(ctx, units.values()))


def _level_notes(ctx: Context, activations: Mapping[str, ActivationSpec]) -> tuple[Note, ...]:
    level = ctx.target.feature_level
    note = None if level is None else expansion_note(ctx.facts, activations, level)
    return () if note is None else (note,)


def _unit_decision(ctx: Context, unit: Unit) -> Decision:
    kernel = ctx.kernel(unit.node)
    if unit.role is Role.ISLAND or kernel is None:
        return Decision(node=unit.node.name, quantized=False, inputs=unit.inputs, reason=reason("shares-parameters"))
    return Decision(
        node=unit.node.name,
        quantized=True,
        kernel=kernel.name,
        inputs=unit.inputs,
        expected=_expected(ctx, unit),
    )


def _absorbed_decision(ctx: Context, name: str, host: Unit) -> Decision:
    kernel = ctx.kernel(host.node)
    return Decision(
        node=name,
        quantized=True,
        kernel="" if kernel is None else kernel.name,
        into=host.node.name,
        expected=_expected(ctx, host),
    )


def _expected(ctx: Context, unit: Unit) -> str:
    """Whether the target's kernel takes the chosen types."""
    return "integer" if runs_on_integers(ctx, unit) else "float"


def _type_notes(ctx: Context, units: Iterable[Unit]) -> Iterable[Note]:
    """One warning for each pair of types that the user named and that runs as float."""
    own = (ctx.target.activations, ctx.target.weights)
    floating: dict[tuple[str, str], list[str]] = {}
    for unit in (u for u in units if u.role is not Role.ISLAND and not runs_on_integers(ctx, u)):
        pair = " and ".join(types_at(ctx, unit)), ctx.at(unit.node).weights
        floating.setdefault(pair, []).append(unit.node.name)
    for (activations, weights), names in floating.items():
        yield Note(
            code="runs-as-float",
            what=f"{ctx.target.name} executes {activations} activations with {weights} weights "
            f"in float: {len(names)} nodes get smaller, not faster",
            where=names[0],
            fix="Choose a target with integer kernels: see `quantool targets`."
            if own == (activations, weights)
            else f"Use {own[0]} activations and {own[1]} weights for speed.",
        )
