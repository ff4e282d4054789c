"""Where ONNX Runtime (1.32) would fuse across a border of the plan, so that a copy must stand there.

It fuses what stands between DequantizeLinear and QuantizeLinear, whoever put them there, and quantizes float weights
in that place (PLACEMENT.md, trap 1); before that it moves both of them past data movers. And it makes a float Gemm of
a MatMul and the Add behind it before it looks for integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Final

from quantool.ops import Role, activation_inputs, op_of
from quantool.plan.context import Context
from quantool.plan.regions import Unit
from quantool.schema import ActivationSpec, NodeFact, Use

#: their float weights are quantized at load
_WEIGHTED: Final = frozenset({"Conv", "ConvTranspose", "Gemm"})
#: products of two activations, fused even where no QuantizeLinear follows
_PRODUCTS: Final = frozenset({"MatMul", "Gemm"})


def find_barriers(
    ctx: Context, units: Mapping[str, Unit], activations: Mapping[str, ActivationSpec]
) -> tuple[Use, ...]:
    """The readings of a static plan's kept nodes that need a copy."""
    products = [u.node for u in units.values() if u.role is Role.ANCHOR and not u.integer_output]
    return (*_before_fused(ctx, units, activations), *sums_behind(ctx, products, kept=lambda name: name not in units))


def sums_behind(ctx: Context, products: Iterable[NodeFact], *, kept: Callable[[str], bool]) -> tuple[Use, ...]:
    """Readings by a kept Add that would take a MatMul of matrices into a float Gemm.

    A constant vector is no harm: it becomes the bias of an integer Gemm.
    """
    found = []
    for node in products:
        readers = ctx.facts.readers(node.outputs[0])
        if node.op_type != "MatMul" or len(readers) != 1 or ctx.rank(node.inputs[0]) not in (2, None):
            continue
        add = ctx.facts.by_name[readers[0].node]
        if add.op_type != "Add" or not kept(add.name):
            continue
        other = add.inputs[1 - readers[0].index]
        if not (ctx.is_constant(other) and ctx.rank(other) == 1):
            found.append(readers[0])
    return tuple(found)


def _before_fused(ctx: Context, units: Mapping[str, Unit], activations: Mapping[str, ActivationSpec]) -> Iterator[Use]:
    """The first activation of every kept node that the runtime would turn into integers."""
    kept = [n for n in ctx.facts.nodes if n.name not in units and not n.scope]
    arriving = {name for name, spec in activations.items() if spec.replaces}
    for node in kept:
        if op_of(node).role is Role.MOVER and node.inputs[0] in arriving:
            arriving.update(node.outputs)
    leaving = set(activations)
    for node in reversed(kept):
        if op_of(node).role in (Role.MOVER, Role.RECTIFIER) and not leaving.isdisjoint(node.outputs):
            leaving.add(node.inputs[0])
    return (Use(n.name, activation_inputs(n)[0]) for n in kept if _is_fused(ctx, n, arriving, leaving))


def _is_fused(ctx: Context, node: NodeFact, arriving: Set[str], leaving: Set[str]) -> bool:
    role = op_of(node).role
    if role is Role.FOLLOWER:
        reads = {node.inputs[i] for i in activation_inputs(node)}
        return reads <= arriving and node.outputs[0] in leaving
    if role is not Role.ANCHOR:
        return False
    if ctx.is_constant(node.inputs[1]):
        return node.op_type in _WEIGHTED and node.inputs[0] in arriving and node.outputs[0] in leaving
    return set(node.inputs[:2]) <= arriving and (node.op_type in _PRODUCTS or node.outputs[0] in leaving)
