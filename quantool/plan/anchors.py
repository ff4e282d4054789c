"""Which weighted nodes the target runs as integers, and why the others do not."""

from __future__ import annotations

from quantool.ops import Role, activation_inputs, op_of, weight_axis
from quantool.plan.context import Context
from quantool.plan.patterns import NORMALIZATIONS, RECURRENT
from quantool.plan.reasons import reason
from quantool.plan.regions import Unit, absorb
from quantool.schema import Format, Mode, NodeFact, Reason, WeightSpec

#: they read the dimensions of a tensor, not its elements
_DIMENSIONS = frozenset({"Shape", "Size"})


def anchor_unit(ctx: Context, node: NodeFact) -> Unit:
    """The unit of an accepted anchor: its operands, and its output where the kernel writes integers."""
    inputs = tuple(i for i in (0, 1) if not ctx.is_constant(node.inputs[i]))
    kernel = ctx.kernel(node)
    required = kernel is not None and (kernel.output == "required" or ctx.settings.format.value == "qoperator")
    if not required:
        return Unit(node=node, role=Role.ANCHOR, inputs=inputs, ends=(node.outputs[0],), integer_output=False)
    end, absorbed, bounds = absorb(ctx, node)
    return Unit(node=node, role=Role.ANCHOR, inputs=inputs, ends=(end,), absorbed=absorbed, bounds=bounds)


def refusal(ctx: Context, node: NodeFact) -> Reason | None:
    """Why a weighted node cannot be an anchor of a static plan, or None."""
    if (veto := ctx.veto(node)) is not None:
        return veto
    if node.scope:
        return reason("in-subgraph")
    if node.op_type in RECURRENT:
        return reason("recurrent")
    if ctx.kernel(node) is None:
        return reason("no-integer-kernel")
    why = weight_refusal(ctx, node) or _form_refusal(ctx, node)
    return why or ctx.level_refusal(_written(anchor_unit(ctx, node)))


def _written(unit: Unit) -> tuple[str, ...]:
    """The activations that stand as integers for a unit's sake."""
    return (*unit.reads, *unit.ends) if unit.integer_output else unit.reads


def weight_refusal(ctx: Context, node: NodeFact) -> Reason | None:
    """What its operands forbid, in any mode: types, and weights that are no constants."""
    operand, weight = node.inputs[0], node.inputs[1]
    kinds = {ctx.facts.tensors[t].dtype for t in (operand, weight) if t in ctx.facts.tensors}
    if "" in kinds:
        return reason("unknown-type")
    if kinds != {"float32"}:
        return reason("not-float")
    if ctx.is_constant(operand):
        return None if _scales_rows(ctx, node) else reason("constant-first-operand")
    if not ctx.is_constant(weight):
        return reason("activation-matmul" if node.op_type == "MatMul" else "weight-not-constant")
    if ctx.size(weight) in (0, None):
        return reason("unsupported-form", "Its weight is empty.")
    return None


def _scales_rows(ctx: Context, node: NodeFact) -> bool:
    """Whether the user asks for a product with a constant matrix in front, and the target's kernel scales its rows."""
    kernel = ctx.kernel(node)
    asked = ctx.asked(node) and ctx.settings.format is Format.QOPERATOR and ctx.settings.mode is Mode.STATIC
    takes = kernel is not None and kernel.per_row and ctx.rank(node.inputs[0]) == 2
    return asked and takes and not ctx.is_constant(node.inputs[1])


def row_spec(ctx: Context, node: NodeFact) -> WeightSpec:
    """How the constant first operand of a product becomes integers: a scale a row, [M, 1], as a block over K."""
    tensor = node.inputs[0]
    shape = ctx.facts.tensors[tensor].shape or ()
    return WeightSpec(
        node=node.name,
        index=0,
        tensor=tensor,
        dtype=ctx.at(node).weights,
        axis=1,
        block_size=int(shape[1] or 1),
        bits=ctx.at(node).weight_bits,
    )


def _form_refusal(ctx: Context, node: NodeFact) -> Reason | None:
    rank = ctx.rank(node.inputs[1]) or 0
    bias_index = op_of(node).bias
    bias = node.inputs[bias_index] if bias_index is not None and len(node.inputs) > bias_index else ""
    if bias and not ctx.is_constant(bias):
        return reason("bias-not-constant")
    if node.op_type == "MatMul" and rank < 2:
        return reason("unsupported-form", "Its weight is a vector.")
    if node.op_type == "Gemm":
        factors = (node.attributes.get("alpha", 1.0), node.attributes.get("beta", 1.0))
        flat = not bias or ctx.rank(bias) == 1
        if factors != (1.0, 1.0) or node.attributes.get("transA", 0) or not flat:
            return reason("unsupported-form")
    return None


def weight_spec(ctx: Context, node: NodeFact, activation: str | None) -> WeightSpec:
    """How the weight of an accepted anchor becomes integers; activation: the input whose scale its bias uses.

    ConvInteger takes one zero point for all channels, so unsigned weights of convolutions have theirs in the middle.
    The bias of a weight in blocks stays float: it has no one scale a channel. Beside types that no integer kernel
    multiplies it gets a scale of its own; left in float, the runtime would round it to the product of the scales.
    """
    settings = ctx.at(node)
    tensor = node.inputs[1]
    rank = ctx.rank(tensor) or 0
    channel = weight_axis(node, rank)
    axis, block = (channel if settings.axis_scales or settings.block_size else None), 0
    if settings.block_size and node.op_type in ("MatMul", "Gemm"):
        axis, block = rank - 2 if channel is None else 1 - channel, settings.block_size
    bias_index = op_of(node).bias
    bias = node.inputs[bias_index] if bias_index is not None and len(node.inputs) > bias_index else ""
    one_zero_point = node.op_type in ("Conv", "ConvTranspose") and axis is not None
    return WeightSpec(
        node=node.name,
        index=1,
        tensor=tensor,
        dtype=settings.weights,
        axis=axis,
        block_size=block,
        bits=settings.weight_bits,
        symmetric=not settings.weights.startswith("uint") or one_zero_point,
        bias=bias if bias and activation is not None and not block else None,
        own_bias_scale=not settings.multiplies_integers,
        activation=activation,
    )


def kept_reason(ctx: Context, node: NodeFact, patterns: dict[str, str]) -> Reason:
    """Why a node that is no anchor and joined no region stays in float."""
    if (veto := ctx.veto(node)) is not None:
        return veto
    if node.scope:
        return reason("in-subgraph")
    if ctx.role(node) is not None and ctx.in_float(node, *node.outputs):
        return reason("float-activations")
    if node.op_type in NORMALIZATIONS:
        return reason("normalization")
    if node.name in patterns:
        return reason(patterns[node.name])
    dtypes = {ctx.facts.tensors[t].dtype for t in (*node.inputs, *node.outputs) if t in ctx.facts.tensors}
    if node.op_type in _DIMENSIONS or not any(d.startswith(("float", "bfloat")) for d in dtypes):
        return reason("unknown-type" if "" in dtypes else "not-float")
    if ctx.role(node) in (Role.FOLLOWER, Role.MOVER, Role.ISLAND):
        activations = (*(node.inputs[i] for i in activation_inputs(node)), *(o for o in node.outputs if o))
        return ctx.level_refusal(activations) or reason("not-between-integers")
    if ctx.role(node) is Role.RECTIFIER:
        return reason("not-between-integers")
    if op_of(node).role is not None:
        return reason("no-integer-kernel")
    return reason("float-function")
