"""Multiply-accumulates of the operators that hold the work."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quantool.schema import GraphFacts, NodeFact


def macs(facts: GraphFacts) -> Mapping[str, int]:
    """Multiply-accumulates of each Conv, ConvTranspose, Gemm and MatMul; an unknown dimension counts as 1.

    Nodes whose shapes are unknown count 0. FusedMatMul of com.microsoft counts as MatMul.
    """
    return {node.name: _count(node, facts) for node in facts.nodes if node.op_type in _COUNTED}


_COUNTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "FusedMatMul"})


def _count(node: NodeFact, facts: GraphFacts) -> int:
    data, weight, result = (_dims(facts, name) for name in (*node.inputs[:2], node.outputs[0]))
    if data is None or weight is None or result is None:
        return 0
    match node.op_type:
        case "Conv":  # each output element sums over channels of its group and the kernel: W is [M, C/group, k...]
            return prod(result) * prod(weight[1:])
        case "ConvTranspose":  # each input element goes to M/group channels and the kernel: W is [C, M/group, k...]
            return prod(data) * prod(weight[1:])
        case _:  # each output element sums over the dimension that A and B share
            transposed = bool(node.attributes.get("transA")) and len(data) > 1
            return prod(result) * data[-2 if transposed else -1]


def _dims(facts: GraphFacts, name: str) -> tuple[int, ...] | None:
    shape = facts.tensors[name].shape
    return None if shape is None else tuple(dim if isinstance(dim, int) else 1 for dim in shape)
