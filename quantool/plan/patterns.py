"""Constructs spelled out in primitive operators, recognized so that a report can name them.

What stays in float follows from the placement rules (a node without integer neighbours stays float); recognizing
LayerNorm, RMSNorm, GELU, SiLU and the Softmax path only gives each of their nodes its proper reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np

from quantool.ops import Role, op_of
from quantool.schema import GraphFacts, NodeFact

_LINEAR = frozenset(
    {"Conv", "ConvTranspose", "MatMul", "Gemm", "Add", "Sub", "Mul", "Neg", "Abs", "Concat", "Max", "ReduceSum"}
)
_SPECTRAL = frozenset({"Log", "Sqrt", "Sin", "Cos"})
#: what may stand between a root and the quotient that it normalizes
_DIVISOR_STEPS = frozenset({"Add", "Clip", "Max", "Expand", "Cast", "Reciprocal"})
_NORM_PARTS = frozenset(
    {"ReduceMean", "Sub", "Pow", "Mul", "Add", "Sqrt", "Div", "Reciprocal", "Cast", "ReduceSum", "Abs"}
)
_SCORE_PARTS = frozenset({"Add", "Mul", "Div", "Where", "Sub", "Cast", "Clip", "Max"})
NORMALIZATIONS = frozenset(
    {
        "LayerNormalization", "InstanceNormalization", "GroupNormalization", "BatchNormalization",
        "SkipLayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "LpNormalization",
        "MeanVarianceNormalization", "EmbedLayerNormalization", "SkipSimplifiedLayerNormalization",
    }
)  # fmt: skip
RECURRENT = frozenset({"LSTM", "GRU", "RNN"})


def reaching_spectrum(facts: GraphFacts) -> Set[str]:
    """Tensors that reach a Log, Sqrt, square root by Pow, Sin or Cos through linear operators alone.

    Means stop the walk, and a root that only divides does not start it, so that norms do not count; a rectifier
    stops it too, unless it only keeps a logarithm's operand positive (Clip without an upper bound, Max).
    """
    reached: set[str] = set()
    for node in reversed(facts.nodes):
        if node.op_type in _SPECTRAL or _is_root(node, facts):
            if not _only_divides(node, facts):
                reached.add(node.inputs[0])
        elif _is_linear(node, facts) and not reached.isdisjoint(node.outputs):
            reached.update(i for i in node.inputs if i)
    return reached


def _only_divides(node: NodeFact, facts: GraphFacts) -> bool:
    """Whether everything that reads a root divides by it, as a normalization does."""
    if node.op_type not in ("Sqrt", "Pow"):
        return False
    pending, seen = [node], 0
    while pending:
        step = pending.pop()
        seen += 1
        for use in facts.readers(step.outputs[0]):
            reader = facts.by_name[use.node]
            divides = (reader.op_type == "Div" and use.index == 1) or step.op_type == "Reciprocal"
            if divides:
                continue
            if reader.op_type not in _DIVISOR_STEPS or seen > 8:
                return False
            pending.append(reader)
    return True


def _is_root(node: NodeFact, facts: GraphFacts) -> bool:
    return node.op_type == "Pow" and _exponent(node, facts) in (0.5, -0.5)


def _exponent(node: NodeFact, facts: GraphFacts) -> float | None:
    value = facts.values.get(node.inputs[1]) if len(node.inputs) > 1 else None
    return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def _is_linear(node: NodeFact, facts: GraphFacts) -> bool:
    """Linear, a square, or an operator that only moves values or bounds them from below."""
    if node.op_type == "Pow":
        return _exponent(node, facts) == 2.0
    if node.op_type == "Clip":
        upper = facts.values.get(node.inputs[2]) if len(node.inputs) > 2 else None
        return "max" not in node.attributes and (upper is None or not np.isfinite(upper.astype(float)).all())
    return node.op_type in _LINEAR or op_of(node).role in (Role.MOVER, Role.ISLAND)


def named_patterns(facts: GraphFacts) -> Mapping[str, str]:
    """Node -> reason code for the nodes inside normalizations and on the way from scores to Softmax."""
    found: dict[str, str] = {}
    for node in facts.nodes:
        if node.op_type == "Softmax":
            _mark_scores(node, facts, found)
        elif node.op_type in ("Sqrt", "ReduceMean"):
            _mark_normalization(node, facts, found)
    return found


def _mark_scores(softmax: NodeFact, facts: GraphFacts, found: dict[str, str]) -> None:
    """Walk from Softmax back to the products of activations that made the scores."""
    pending = [softmax]
    while pending:
        node = pending.pop()
        if found.get(node.name) == "softmax":
            continue
        found[node.name] = "softmax"
        for tensor in node.inputs:
            before = facts.producer(tensor)
            if before is not None and before.op_type in _SCORE_PARTS:
                pending.append(before)


def _mark_normalization(node: NodeFact, facts: GraphFacts, found: dict[str, str]) -> None:
    """Mark x -> mean, deviation, square, mean, root, quotient around a Sqrt that divides the same tensor."""
    if node.op_type != "Sqrt":
        return
    for use in facts.readers(node.outputs[0]):
        divide = facts.by_name[use.node]
        if divide.op_type not in ("Div", "Reciprocal", "Mul"):
            continue
        found.setdefault(divide.name, "normalization")
        _mark_variance(node, facts, found)


def _mark_variance(root: NodeFact, facts: GraphFacts, found: dict[str, str]) -> None:
    pending, steps = [root], 0
    while pending and steps < 16:
        node = pending.pop()
        steps += 1
        if node.name in found or node.op_type not in _NORM_PARTS:
            continue
        found[node.name] = "normalization"
        pending.extend(p for t in node.inputs if (p := facts.producer(t)) is not None)
