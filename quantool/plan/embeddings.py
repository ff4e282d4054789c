"""Embedding tables beside integer products: a Gather of rows stores its table as int8, one scale a row."""

from __future__ import annotations

from quantool.plan.context import Context
from quantool.plan.mixed import refuse_fixed_weights
from quantool.plan.reasons import reason
from quantool.schema import Decision, Mode, NodeFact, WeightSpec

KERNEL = "GatherRows"
#: below this the three extra nodes cost more than the table saves
SMALLEST_TABLE = 1024


def is_embedding(ctx: Context, node: NodeFact) -> bool:
    """Whether a node looks up rows of a constant float matrix."""
    if node.op_type != "Gather" or node.domain not in ("", "ai.onnx"):
        return False
    table = node.inputs[0]
    return (
        ctx.is_constant(table)
        and ctx.is_float32(table)
        and ctx.rank(table) == 2
        and node.attributes.get("axis", 0) == 0
        and (ctx.size(table) or 0) >= SMALLEST_TABLE
    )


def embedding_decision(ctx: Context, node: NodeFact) -> Decision | None:
    """Store the table as integers, or say that the user keeps it; None for other nodes."""
    if not is_embedding(ctx, node):
        return None
    if (veto := ctx.veto(node)) is not None:
        return Decision(node=node.name, quantized=False, reason=veto)
    if node.scope and ctx.settings.mode is Mode.STATIC:  # the products beside it stay float
        return Decision(node=node.name, quantized=False, reason=reason("in-subgraph"))
    refuse_fixed_weights(ctx, node, "the lookup of rows")
    return Decision(node=node.name, quantized=True, kernel=KERNEL, expected="float")


def embedding_spec(ctx: Context, node: NodeFact) -> WeightSpec:
    """One scale a row, so that rare tokens with small vectors keep their precision."""
    return WeightSpec(node=node.name, index=0, tensor=node.inputs[0], dtype="int8", axis=0)
