"""Kept nodes that the runtime would turn into integers by itself, so that something must stand before them.

ONNX Runtime (1.32) fuses what stands between DequantizeLinear and QuantizeLinear, whoever put them there, and
quantizes float weights in that place (PLACEMENT.md, trap 1). Before that it moves both of them past data movers.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from quantool.ops import Role, activation_inputs, op_of
from quantool.plan.context import Context
from quantool.plan.regions import Unit
from quantool.schema import ActivationSpec, NodeFact

#: their float weights are quantized at load
_WEIGHTED: Final = frozenset({"Conv", "ConvTranspose", "Gemm"})
#: products of two activations, fused even where no QuantizeLinear follows
_PRODUCTS: Final = frozenset({"MatMul", "Gemm"})


def find_barriers(
    ctx: Context, units: Mapping[str, Unit], activations: Mapping[str, ActivationSpec]
) -> tuple[str, ...]:
    """The kept nodes, in order, that need a barrier before their first activation."""
    kept = [n for n in ctx.facts.nodes if n.name not in units and not n.scope]
    arriving = {name for name, spec in activations.items() if spec.replaces}
    for node in kept:
        if op_of(node).role is Role.MOVER and node.inputs[0] in arriving:
            arriving.update(node.outputs)
    leaving = set(activations)
    for node in reversed(kept):
        if op_of(node).role in (Role.MOVER, Role.RECTIFIER) and not leaving.isdisjoint(node.outputs):
            leaving.add(node.inputs[0])
    return tuple(n.name for n in kept if _is_fused(ctx, n, arriving, leaving))


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
