"""Plans that store weights as integers and compute in float: products, convolutions and embedding tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from quantool.elements import ELEMENTS
from quantool.ops import Role, inner_axis, op_of, weight_axis
from quantool.plan.anchors import kept_reason
from quantool.plan.context import Context
from quantool.plan.embeddings import KERNEL as ROWS
from quantool.plan.embeddings import SMALLEST_TABLE
from quantool.plan.patterns import RECURRENT, named_patterns
from quantool.plan.rangeless import WEIGHT_ONLY, WEIGHT_ONLY_KERNEL, rangeless_plan
from quantool.plan.reasons import reason
from quantool.plan.stored_blocks import stored_block
from quantool.schema import Decision, NodeFact, Note, Plan, Reason, WeightSpec

#: fewer inputs than this in a block along the channels of a convolution cost more in scales than they gain
FEWEST_CHANNELS: Final = 16
#: types that Gather moves as they are
_MOVED: Final = frozenset({"int8", "uint8", "int16", "uint16"})


def plan_weight_only(ctx: Context) -> Plan:
    """Decide every node of a model whose weights alone become integers."""
    patterns = dict(named_patterns(ctx.facts))
    decisions: dict[str, Decision] = {}
    weights: list[WeightSpec] = []
    tied = _tied_products(ctx)
    for node in ctx.facts.nodes:
        spec = _spec(ctx, node, tied)
        if isinstance(spec, WeightSpec):
            decisions[node.name] = _decision(ctx, node, spec)
            weights.append(spec)
        else:
            why = spec or _why_kept(ctx, node, patterns)
            decisions[node.name] = Decision(node=node.name, quantized=False, reason=why)
    return rangeless_plan(ctx, decisions, weights, _type_notes(ctx, weights))


# --- which weight, and in which form ----------------------------------------------------------------------


def _spec(ctx: Context, node: NodeFact, tied: Mapping[str, NodeFact]) -> WeightSpec | Reason | None:
    """How the weight of a node is stored, or why it is not; None where it has none."""
    is_table = _is_table(ctx, node)
    if not is_table and op_of(node).role is not Role.ANCHOR:
        return None
    if (veto := ctx.veto(node)) is not None:
        return veto
    if is_table:
        product = tied.get(node.inputs[0])
        followed = product if node.name not in ctx.local.settings else None
        return _weight_spec(ctx, node, 0, channel=0, inner=1, followed=followed)
    return _refusal(ctx, node) or _anchor_spec(ctx, node)


def _tied_products(ctx: Context) -> dict[str, NodeFact]:
    """Table -> the quantized product that multiplies by it or its transpose: both read one stored copy."""
    found: dict[str, NodeFact] = {}
    for node in ctx.facts.nodes:
        is_product = op_of(node).role is Role.ANCHOR and node.op_type in ("MatMul", "Gemm")
        if is_product and ctx.veto(node) is None and _refusal(ctx, node) is None:
            tensor = ctx.facts.tensors[node.inputs[1]]
            found.setdefault(tensor.name if inner_axis(node) else tensor.transpose_of, node)
    return found


def _is_table(ctx: Context, node: NodeFact) -> bool:
    """Whether a node looks up rows of a constant float matrix."""
    if node.op_type != "Gather" or node.domain not in ("", "ai.onnx"):
        return False
    table = node.inputs[0]
    floats = _float_type(ctx, table) in ctx.target.weight_only_floats
    rows = ctx.rank(table) == 2 and node.attributes.get("axis", 0) in (0, -2)
    return ctx.is_constant(table) and floats and rows and (ctx.size(table) or 0) >= SMALLEST_TABLE


def _refusal(ctx: Context, node: NodeFact) -> Reason | None:
    """What the operator or its operands forbid."""
    if node.op_type not in WEIGHT_ONLY:
        return reason("recurrent" if node.op_type in RECURRENT else "mode")
    kinds = {_float_type(ctx, tensor) for tensor in node.inputs[:2]}
    if "" in kinds:
        return reason("unknown-type")
    if len(kinds) > 1 or not kinds <= set(ctx.target.weight_only_floats):
        return reason("not-float")
    index = _weight_index(ctx, node)
    if index is None:
        return reason("activation-matmul" if node.op_type == "MatMul" else "weight-not-constant")
    weight = node.inputs[index]
    if ctx.size(weight) in (0, None):
        return reason("unsupported-form", "Its weight is empty.")
    if (ctx.rank(weight) or 0) < 2:
        return reason("unsupported-form", "Its weight is a vector.")
    if index == 0 and (node.op_type != "MatMul" or ctx.is_constant(node.inputs[1])):
        return reason("constant-first-operand")
    return None


def _float_type(ctx: Context, tensor: str) -> str:
    fact = ctx.facts.tensors.get(tensor)
    return "" if fact is None else fact.dtype


def _weight_index(ctx: Context, node: NodeFact) -> int | None:
    """The input that is a constant: the second, or the first of a product with a constant in front."""
    return next((index for index in (1, 0) if ctx.is_constant(node.inputs[index])), None)


def _anchor_spec(ctx: Context, node: NodeFact) -> WeightSpec:
    """Blocks run along what is summed over, scales a channel along the outputs."""
    index = _weight_index(ctx, node)
    assert index is not None
    rank = ctx.rank(node.inputs[index]) or 0
    if node.op_type in ("Conv", "ConvTranspose"):
        return _convolution_spec(ctx, node)
    if index == 0:
        return _weight_spec(ctx, node, 0, channel=0 if rank == 2 else None, inner=rank - 1)
    channel = weight_axis(node, rank)
    return _weight_spec(ctx, node, 1, channel=channel, inner=rank - 2 if channel is None else 1 - channel)


def _convolution_spec(ctx: Context, node: NodeFact) -> WeightSpec:
    """Conv [M, C, ...] has blocks along C, ConvTranspose [C, M, ...] as well; few channels get one scale an output.

    A ConvTranspose in groups has one scale an input channel instead, since no axis holds its outputs.
    """
    inner = 1 if node.op_type == "Conv" else 0
    channel = weight_axis(node, ctx.rank(node.inputs[1]) or 0)
    shape = ctx.facts.tensors[node.inputs[1]].shape or ()
    known = shape[inner]
    in_blocks = isinstance(known, int) and known >= FEWEST_CHANNELS
    return _weight_spec(ctx, node, 1, channel=inner if channel is None else channel, inner=inner if in_blocks else None)


def _weight_spec(
    ctx: Context,
    node: NodeFact,
    index: int,
    *,
    channel: int | None,
    inner: int | None,
    followed: NodeFact | None = None,
) -> WeightSpec:
    """channel: the axis of scales a channel; inner: that of blocks. None: one scale must do, or a scale a channel.

    followed: the node whose settings count instead of its own.
    """
    own = ctx.at(node if followed is None else followed)
    in_blocks = own.block_size > 0 and inner is not None
    axis = inner if in_blocks else channel if own.axis_scales or own.block_size else None
    return WeightSpec(
        node=node.name,
        index=index,
        tensor=node.inputs[index],
        dtype=own.weights,
        axis=axis,
        block_size=own.block_size if in_blocks else 0,
        bits=own.weight_bits,
        symmetric=own.symmetric_weights,
        scale_type=_float_type(ctx, node.inputs[index]),
    )


def _decision(ctx: Context, node: NodeFact, spec: WeightSpec) -> Decision:
    """The target's form where it holds this weight, else DequantizeLinear."""
    form = ctx.target.weight_form(node.op_type, bits=ELEMENTS[spec.dtype].bits, float_type=spec.scale_type)
    held = not ELEMENTS[spec.dtype].floating and not ctx.settings.plain_weights and _is_plain(ctx, node, spec)
    if form is not None and held:
        length = _summed_over(ctx, node, spec)
        block = stored_block(length, spec.block_size, bits=spec.bits, form=form)
        if block is not None:
            return Decision(
                node=node.name,
                quantized=True,
                kernel=form.form,
                expected="integer",
                stored_block=block,
                accuracy_level=form.accuracy_level,
            )
    in_rows = node.op_type == "Gather" and _moves_codes(ctx, node, spec)
    return Decision(node=node.name, quantized=True, kernel=ROWS if in_rows else WEIGHT_ONLY_KERNEL)


def _moves_codes(ctx: Context, node: NodeFact, spec: WeightSpec) -> bool:
    """Whether ai.onnx alone looks up the codes of rows: 16 bits do not fit float16, and one row has no blocks."""
    exact = ELEMENTS[spec.dtype].bits == 8 or spec.scale_type == "float32"
    several = ctx.rank(node.inputs[1]) not in (0, None)
    return spec.dtype in _MOVED and exact and (several or not spec.block_size)


def _is_plain(ctx: Context, node: NodeFact, spec: WeightSpec) -> bool:
    """Whether a node is a lookup, or a product with a matrix behind: the forms hold nothing else."""
    if node.op_type == "Gather":
        return True
    factors = (node.attributes.get("alpha", 1.0), node.attributes.get("beta", 1.0))
    return (
        spec.index == 1
        and ctx.rank(spec.tensor) == 2
        and factors == (1.0, 1.0)
        and not node.attributes.get("transA", 0)
    )


def _summed_over(ctx: Context, node: NodeFact, spec: WeightSpec) -> int:
    shape = ctx.facts.tensors[spec.tensor].shape or ()
    length = shape[inner_axis(node)]
    assert isinstance(length, int)  # a constant's
    return length


# --- what stays, and what to say --------------------------------------------------------------------------


def _why_kept(ctx: Context, node: NodeFact, patterns: Mapping[str, str]) -> Reason:
    """As in a static plan, but bodies of If and Loop are planned like any other scope."""
    why = kept_reason(ctx, node, dict(patterns))
    return reason("mode") if why.code in ("in-subgraph", "not-between-integers") else why


def _type_notes(ctx: Context, weights: Sequence[WeightSpec]) -> Iterator[Note]:
    """A warning for each type that the user named and that the target expands to float in every run."""
    first: dict[str, str] = {}
    for spec in weights:
        if spec.dtype not in (ctx.target.weights, *ctx.target.weight_only):
            first.setdefault(spec.dtype, spec.node)
    for dtype, node in first.items():
        yield Note(
            code="runs-as-float",
            what=f"{ctx.target.name} turns {dtype} weights into float when the model runs: it gets smaller, not faster",
            where=node,
            fix="Use int8 or int4 weights for speed, where the target multiplies with them as they are.",
        )
