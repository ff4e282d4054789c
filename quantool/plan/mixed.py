"""Several types of codes in one model: what follows where they meet, and what no form can hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quantool.errors import OptionError
from quantool.ops import Role, op_of
from quantool.plan.context import Context
from quantool.plan.regions import Unit
from quantool.schema import ActivationSpec, Format, NodeFact

#: int8 activations with uint8 weights have no integer operator
_NO_OPERATOR = ("int8", "uint8")


def types_at(ctx: Context, unit: Unit) -> tuple[str, ...]:
    """The types of codes that a unit reads and writes, each once."""
    written = unit.ends if unit.integer_output else ()
    read = [tensor for tensor in unit.reads if not ctx.is_constant(tensor)]
    return tuple(dict.fromkeys(ctx.type_of(tensor) for tensor in (*read, *written)))


def runs_on_integers(ctx: Context, unit: Unit) -> bool:
    """Whether the target's kernel takes the types that a unit has: one for its activations, and that of its weight."""
    kernel, types = ctx.kernel(unit.node), types_at(ctx, unit)
    if kernel is None or len(types) != 1 or types[0] not in kernel.activations:
        return False
    settings = ctx.at(unit.node)
    return unit.role is not Role.ANCHOR or (settings.weights in kernel.weights and not settings.block_size)


def product_of_other_type(ctx: Context, tensor: str, units: Mapping[str, Unit]) -> tuple[NodeFact, ...]:
    """The product with codes of another type that a tensor comes from, and kept rectifiers and movers behind it.

    The runtime fuses a product with a QuantizeLinear behind it, whose saturation stands for the rectifiers, only where
    both have one type: a copy keeps them apart. Empty where there is no such product.
    """
    path: list[NodeFact] = []
    writer = ctx.facts.producer(tensor) if ctx.local.types else None
    while writer is not None and writer.name not in units and op_of(writer).role in (Role.MOVER, Role.RECTIFIER):
        path.append(writer)
        writer = ctx.facts.producer(writer.inputs[0])
    unit = None if writer is None else units.get(writer.name)
    if unit is None or unit.role is not Role.ANCHOR or unit.integer_output:
        return ()
    return (unit.node, *reversed(path)) if ctx.at(unit.node).activations != ctx.type_of(tensor) else ()


def refuse_split_groups(specs: Iterable[ActivationSpec]) -> None:
    """Refuse two types for tensors that share a scale. Raises OptionError."""
    first: dict[str, ActivationSpec] = {}
    for spec in specs:
        other = first.setdefault(spec.group, spec)
        if other.dtype != spec.dtype:
            raise OptionError(
                "types-of-one-scale",
                f"rules give '{other.name}' {other.dtype} and '{spec.name}' {spec.dtype} codes, but they share a scale",
                where="rules",
                fix="Give both one type, or keep the node between them in float with exclude.",
            )


def refuse_operators(ctx: Context, units: Iterable[Unit]) -> None:
    """Refuse types that meet at an integer operator which takes no such pair. Raises OptionError."""
    if ctx.settings.format is not Format.QOPERATOR or (not ctx.local.types and not ctx.local.settings):
        return
    for unit in units:
        types, weights = types_at(ctx, unit), ctx.at(unit.node).weights
        if len(types) > 1:
            raise _no_operator(unit.node, f"codes of {' and '.join(types)}")
        if unit.role is Role.ANCHOR and (*types, weights) == _NO_OPERATOR:
            raise _no_operator(unit.node, f"{types[0]} activations with {weights} weights")


def refuse_fixed_weights(ctx: Context, node: NodeFact, kernel: str) -> None:
    """Refuse a rule's type for weights that are stored as int8 or not at all. Raises OptionError."""
    weights = ctx.local.settings.get(node.name, ctx.settings).weights
    if weights not in (ctx.settings.weights, "int8"):
        raise OptionError(
            "type-cannot-run",
            f"a rule gives '{node.name}' ({node.op_type}) {weights} weights, but {kernel} takes int8 alone",
            where="rules",
            fix=f'Add a rule behind it: op_type = "{node.op_type}", weights = "int8".',
        )


def _no_operator(node: NodeFact, types: str) -> OptionError:
    return OptionError(
        "type-cannot-run",
        f"QOperator format has no operator for {types} at '{node.name}' ({node.op_type})",
        where="rules",
        fix="Give what it reads and writes one type, uint8 if its weights are uint8, or use --format qdq.",
    )
