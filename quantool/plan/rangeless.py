"""What the plans that need no ranges share: dynamic quantization, and weights alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from quantool.plan.barriers import across_products
from quantool.plan.context import Context
from quantool.schema import Decision, Note, Plan, WeightSpec

#: stored as integers, computed in float: the kernel, and the operators that have it
WEIGHT_ONLY_KERNEL: Final = "DequantizeLinear"
WEIGHT_ONLY: Final = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})


def rangeless_plan(
    ctx: Context, decisions: Mapping[str, Decision], weights: Iterable[WeightSpec], notes: Iterable[Note] = ()
) -> Plan:
    """A plan without activations from the decisions on all nodes.

    The runtime reads a dequantized weight in MatMul (as MatMulNBits), but not in the Gemm that it makes of it: barriers
    keep it from that.
    """
    products = [n for n in ctx.facts.nodes if decisions[n.name].kernel == WEIGHT_ONLY_KERNEL and n.op_type == "MatMul"]
    return Plan(
        mode=ctx.settings.mode,
        format=ctx.settings.format,
        target=ctx.target.name,
        opset=ctx.settings.opset,
        reference=ctx.settings.reference,
        decisions=decisions,
        activations={},
        weights=tuple(weights),
        barriers=tuple(across_products(ctx, products)),
        notes=tuple(notes),
    )
