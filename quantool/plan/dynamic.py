"""Plans that need no ranges: dynamic quantization, and `auto` without data, which stores other weights as integers."""

from __future__ import annotations

from quantool.ops import Role, op_of
from quantool.plan.anchors import kept_reason, weight_refusal, weight_spec
from quantool.plan.context import Context
from quantool.plan.embeddings import embedding_decision, embedding_spec
from quantool.plan.mixed import refuse_fixed_weights
from quantool.plan.patterns import RECURRENT, named_patterns
from quantool.plan.rangeless import WEIGHT_ONLY, WEIGHT_ONLY_KERNEL, rangeless_plan
from quantool.plan.reasons import reason
from quantool.plan.settings import KERNEL_TYPES
from quantool.schema import Decision, NodeFact, Plan, Reason, WeightSpec

#: operator -> the fused form that the rewriter writes
DYNAMIC_KERNELS = {
    "MatMul": "DynamicQuantizeMatMul",
    "Gemm": "DynamicQuantizeMatMul",
    "Attention": "QAttention",
    "LSTM": "DynamicQuantizeLSTM",
    "Conv": "ConvInteger",
}
#: only where the user asks: ConvInteger is slower than float, LSTM weights can ruin a model
_ON_REQUEST = frozenset({"LSTM", "Conv"})


#: attributes of Attention that QAttention does not have
_NO_QATTENTION = frozenset({"qkv_hidden_sizes", "rotary_embedding_dim"})


def _plain_lstm(ctx: Context, node: NodeFact) -> bool:
    """DynamicQuantizeLSTM knows neither layout 1 nor weights computed at run time."""
    return ctx.is_constant(node.inputs[2]) and not node.attributes.get("layout", 0)


def _plain_attention(ctx: Context, node: NodeFact) -> bool:
    """QAttention needs its bias and takes a mask and a past state, but neither a bias on the scores nor more."""
    has_bias = len(node.inputs) > 2 and bool(node.inputs[2])
    return has_bias and not any(node.inputs[5:]) and _NO_QATTENTION.isdisjoint(node.attributes)


#: operators whose fused form takes less than the operator itself
_FORMS = {"LSTM": _plain_lstm, "Attention": _plain_attention}


def plan_rangeless(ctx: Context, *, mixed: bool) -> Plan:
    """Decide every node of a dynamic model; mixed: `auto`, weight-only where dynamic is not."""
    patterns = dict(named_patterns(ctx.facts))
    decisions: dict[str, Decision] = {}
    weights: list[WeightSpec] = []
    for node in ctx.facts.nodes:
        decision = _decide(ctx, node, mixed=mixed)
        if decision is None:
            decision = Decision(node=node.name, quantized=False, reason=_why_kept(ctx, node, patterns))
        decisions[node.name] = decision
        weights.extend(_weights(ctx, node, decision))
    return rangeless_plan(ctx, decisions, weights)


def _decide(ctx: Context, node: NodeFact, *, mixed: bool) -> Decision | None:
    """The decision for a node with weights, None for the others."""
    if mixed and (table := embedding_decision(ctx, node)) is not None:
        return table
    if op_of(node).role is not Role.ANCHOR:
        return None
    kernel = _kernel(ctx, node, mixed=mixed)
    why = ctx.veto(node) or (reason(_refusal_code(node)) if kernel is None else _operands(ctx, node))
    if why is None:
        expected = "float" if kernel in (WEIGHT_ONLY_KERNEL, None) else "integer"
        return Decision(node=node.name, quantized=True, kernel=kernel or "", inputs=(0,), expected=expected)
    return Decision(node=node.name, quantized=False, reason=why)


def _kernel(ctx: Context, node: NodeFact, *, mixed: bool) -> str | None:
    at_run_time = _multiplies(ctx, node)
    if at_run_time and node.op_type in DYNAMIC_KERNELS and (node.op_type not in _ON_REQUEST or ctx.asked(node)):
        return DYNAMIC_KERNELS[node.op_type]
    weight_only = mixed or not at_run_time
    return WEIGHT_ONLY_KERNEL if weight_only and node.op_type in WEIGHT_ONLY else None


def _multiplies(ctx: Context, node: NodeFact) -> bool:
    """Whether rules leave a node the types that MatMulInteger multiplies."""
    settings = ctx.at(node)
    return not ctx.in_float(node) and settings.weights in KERNEL_TYPES and not settings.block_size


def _refusal_code(node: NodeFact) -> str:
    return "recurrent" if node.op_type in RECURRENT else "mode"


def _operands(ctx: Context, node: NodeFact) -> Reason | None:
    why = weight_refusal(ctx, node)
    if why is None and node.op_type in _FORMS and not _FORMS[node.op_type](ctx, node):
        return reason("unsupported-form")
    if why is None and ctx.rank(node.inputs[1]) in (0, 1, None) and node.op_type == "MatMul":
        return reason("unsupported-form", "Its weight is a vector.")
    return why


def _why_kept(ctx: Context, node: NodeFact, patterns: dict[str, str]) -> Reason:
    """As in a static plan, but bodies of If and Loop are planned like any other scope."""
    why = kept_reason(ctx, node, patterns)
    return reason("mode") if why.code in ("in-subgraph", "not-between-integers") else why


def _weights(ctx: Context, node: NodeFact, decision: Decision) -> list[WeightSpec]:
    if not decision.quantized:
        return []
    if decision.kernel == "GatherRows":
        return [embedding_spec(ctx, node)]
    if node.op_type == "LSTM":
        refuse_fixed_weights(ctx, node, decision.kernel)
        return [_lstm(ctx, node, 1), _lstm(ctx, node, 2)]
    return [weight_spec(ctx, node, None)]


def _lstm(ctx: Context, node: NodeFact, index: int) -> WeightSpec:
    """LSTM weights [directions, 4 x hidden, inputs]: one scale a gate row, as a block over the inputs."""
    tensor = node.inputs[index]
    shape = ctx.facts.tensors[tensor].shape or ()
    return WeightSpec(
        node=node.name,
        index=index,
        tensor=tensor,
        dtype="int8",
        axis=2,
        block_size=int(shape[2] or 1),
        bits=min(ctx.settings.weight_bits, 8),
    )
