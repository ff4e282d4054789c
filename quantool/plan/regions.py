"""Where integers live: units around weighted nodes, and the operators between them.

Weighted nodes (anchors) are worth quantizing by themselves. Everything else joins only where its inputs are
integers already and an integer operator reads its output: a forward pass finds what could join, a backward pass
keeps what leads somewhere. Nothing else ever gets a QuantizeLinear, so masks, scores, norms and settings stay float.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np

from quantool.ops import Role, ScaleRule, activation_inputs, op_of
from quantool.plan.context import Context
from quantool.schema import NodeFact

#: larger constants are masks, not operands: they would take the whole range
MASK_LIMIT = 1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A node that becomes integers, with the rectifiers it absorbs.

    ends: its outputs after the absorbed nodes; integer_output: they exist as integers only; bounds: what the
    absorbed rectifier allows; role: why it is here.
    """

    node: NodeFact
    role: Role
    inputs: tuple[int, ...]
    ends: tuple[str, ...]
    absorbed: tuple[str, ...] = ()
    integer_output: bool = True
    bounds: tuple[float, float] | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads quantized."""
        return tuple(self.node.inputs[i] for i in self.inputs)


def absorb(ctx: Context, node: NodeFact) -> tuple[str, tuple[str, ...], tuple[float, float] | None]:
    """Follow a node's only output over Relu and Clip that saturation at zero replaces.

    Returns the last tensor, the names of the absorbed nodes and their common bounds. A Clip is absorbed only
    where its lower bound is zero: then the smallest code stands for it whatever the scale, and its upper bound
    limits the range. Symmetric formulas keep codes for negative numbers, so they absorb nothing.
    """
    end, names, bounds = node.outputs[0], [], None
    while True:
        fact = ctx.facts.tensors[end]
        if fact.is_output or len(fact.readers) != 1 or fact.readers[0].index != 0:
            break
        reader = ctx.facts.by_name[fact.readers[0].node]
        limits = saturation(ctx, reader)
        if limits is None or ctx.veto(reader) is not None or reader.scope != node.scope:
            break
        end = reader.outputs[0]
        names.append(reader.name)
        bounds = (0.0, min(limits[1], bounds[1] if bounds else np.inf))
    return end, tuple(names), bounds


def saturation(ctx: Context, node: NodeFact) -> tuple[float, float] | None:
    """The bounds of a Relu or Clip that saturation of the codes behind it replaces, or None."""
    limits = rectifier_bounds(ctx, node)
    return None if limits is None or limits[0] != 0.0 or ctx.settings.symmetric_activations else limits


def rectifier_bounds(ctx: Context, node: NodeFact) -> tuple[float, float] | None:
    """What Relu or Clip with constant bounds allows, or None for other nodes."""
    if op_of(node).role is not Role.RECTIFIER:
        return None
    if node.op_type == "Relu":
        return 0.0, np.inf
    limits = []
    for index, attribute, default in ((1, "min", -np.inf), (2, "max", np.inf)):
        name = node.inputs[index] if len(node.inputs) > index else ""
        if not name:
            limits.append(float(node.attributes.get(attribute, default)))  # type: ignore[arg-type]  # a float
        elif (value := ctx.facts.values.get(name)) is not None and value.size == 1:
            limits.append(float(value.reshape(-1)[0]))
        else:
            return None
    return (limits[0], limits[1]) if limits[0] < limits[1] else None


def find_regions(ctx: Context, anchors: Mapping[str, Unit]) -> dict[str, Unit]:
    """All units by node name, in topological order: the anchors, and what joins them."""
    joined = _forward(ctx, anchors)
    return _backward(ctx, _last_sums(ctx, anchors, joined).union(anchors), joined)


def _forward(ctx: Context, anchors: Mapping[str, Unit]) -> dict[str, Unit]:
    """Every node whose inputs could be integers, in topological order."""
    available = {t for u in anchors.values() for t in u.reads}
    units: dict[str, Unit] = {}
    gates: set[str] = set()
    for node in ctx.facts.nodes:
        unit = anchors.get(node.name) or _join(ctx, node, available, gates)
        if unit is not None:
            units[node.name] = unit
            if unit.integer_output:
                available.update(unit.ends)
        elif op_of(node).rule is ScaleRule.FIXED and ctx.veto(node) is None and node.scope == "":
            gates.update(node.outputs)
    return units


def _join(ctx: Context, node: NodeFact, available: set[str], gates: set[str]) -> Unit | None:
    """The unit of a follower, mover or island whose inputs are integers, or None."""
    role = ctx.role(node)
    if role not in (Role.FOLLOWER, Role.MOVER, Role.ISLAND) or node.scope or ctx.veto(node) is not None:
        return None
    if node.op_type == "Softmax" and not ctx.asked(node):
        return None
    inputs = activation_inputs(node)
    reads = [node.inputs[i] for i in inputs]
    if not any(t in available for t in reads):
        return None
    usable = all(t in available or _is_operand(ctx, t) or (t in gates and role is Role.FOLLOWER) for t in reads)
    if not usable or not all(ctx.is_float32(t) for t in (*reads, *(o for o in node.outputs if o))):
        return None
    if role is not Role.FOLLOWER:
        unit = Unit(node=node, role=role, inputs=inputs, ends=tuple(o for o in node.outputs if o))
    else:
        end, absorbed, bounds = absorb(ctx, node)
        unit = Unit(node=node, role=role, inputs=inputs, ends=(end,), absorbed=absorbed, bounds=bounds)
    refused = ctx.in_float(node, *unit.ends) or ctx.level_refusal((*unit.reads, *unit.ends)) is not None
    return None if refused else unit


def _is_operand(ctx: Context, tensor: str) -> bool:
    """Whether a constant may be quantized as an operand: small, finite and no mask."""
    value = ctx.facts.values.get(tensor)
    if value is None or value.size == 0 or not ctx.is_float32(tensor):
        return False
    return bool(np.isfinite(value).all() and np.abs(value).max() < MASK_LIMIT)


def _last_sums(ctx: Context, anchors: Mapping[str, Unit], joined: Mapping[str, Unit]) -> set[str]:
    """The sums of integer tensors that no float function reads: the end of a network's last residual block.

    Their operands are integers already, and an Add in float takes longer than all of its block's requantizing.
    """
    integers = {t for u in anchors.values() for t in (*u.reads, *(u.ends if u.integer_output else ()))}
    found = set()
    for unit in joined.values():
        if unit.node.op_type == "Add" and integers.issuperset(unit.reads):
            readers = (ctx.facts.by_name[use.node] for use in ctx.facts.readers(unit.ends[0]))
            if all(op_of(reader).role is not None for reader in readers):
                found.add(unit.node.name)
                integers.update(unit.ends)
    return found


def _backward(ctx: Context, ends: Set[str], joined: Mapping[str, Unit]) -> dict[str, Unit]:
    """Drop what leads to none of the `ends`; the result keeps topological order."""
    wanted: set[str] = set()
    kept: list[Unit] = []
    for unit in reversed(list(joined.values())):
        if unit.node.name in ends or ctx.asked(unit.node) or not wanted.isdisjoint(unit.ends):
            kept.append(unit)
            wanted.update(unit.reads)
    return {u.node.name: u for u in reversed(kept)}
