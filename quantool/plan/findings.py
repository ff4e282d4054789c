"""What ranges teach a plan: which Concats share one scale, and which must stay in float."""

from __future__ import annotations

from collections.abc import Mapping

from quantool.plan.context import Findings
from quantool.plan.reasons import reason
from quantool.schema import GraphFacts, NodeFact, Plan, Range, Reason

#: inputs within this factor share one scale, so that Concat copies (DESIGN section 7: "a small factor")
UNIFY_FACTOR = 2.0
#: inputs beyond this factor stay in float
KEEP_FACTOR = 8.0


def examine(plan: Plan, facts: GraphFacts, ranges: Mapping[str, Range]) -> Findings:
    """Compare the ranges that meet in each quantized Concat. ranges: by tensor, for every planned tensor."""
    keep: dict[str, Reason] = {}
    unify: set[str] = set()
    for node in facts.nodes:
        if node.op_type != "Concat" or not plan.decisions[node.name].quantized:
            continue
        widths = [_width(ranges[t]) for t in node.inputs if t in ranges]
        positive = [w for w in widths if w > 0]
        if not positive:
            continue
        ratio = max(positive) / min(positive)
        if ratio > KEEP_FACTOR:
            keep[node.name] = reason("unequal-ranges", f"They differ {ratio:.3g}-fold.")
        elif ratio <= UNIFY_FACTOR and _may_share(plan, node, ranges):
            unify.add(node.name)
    return Findings(keep=keep, unify=frozenset(unify))


def _may_share(plan: Plan, node: NodeFact, ranges: Mapping[str, Range]) -> bool:
    """Whether the common range keeps every absorbed Relu and Clip redundant, and no fixed range changes."""
    tensors = [t for t in node.inputs if t in ranges]
    if len({plan.activations[t].dtype for t in (*tensors, *node.outputs) if t in plan.activations}) > 1:
        return False
    lo = min(min(ranges[t].lo, 0.0) for t in tensors)
    hi = max(ranges[t].hi for t in tensors)
    for tensor in tensors:
        spec = plan.activations.get(tensor)
        if spec is None or spec.fixed is not None:
            return False
        if spec.bounds is not None and not (spec.bounds[0] <= lo and hi <= spec.bounds[1]):
            return False
    return True


def _width(chosen: Range) -> float:
    return max(chosen.hi, 0.0) - min(chosen.lo, 0.0)
