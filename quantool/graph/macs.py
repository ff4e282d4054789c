"""Multiply-accumulates of the operators that hold the work."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from quantool.schema import GraphFacts, NodeFact


def macs(facts: GraphFacts) -> Mapping[str, int]:
    """Multiply-accumulates of convolutions, products, recurrent layers and Einsum; an unknown dimension counts as 1.

    Nodes whose shapes are unknown count 0, as does Einsum with an ellipsis. FusedMatMul of com.microsoft counts as
    MatMul.
    """
    return {node.name: _COUNTS[node.op_type](node, facts) for node in facts.nodes if node.op_type in _COUNTS}


def _product(node: NodeFact, facts: GraphFacts) -> int:
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


def _recurrent(node: NodeFact, facts: GraphFacts) -> int:
    """Each row of each step meets W [directions, gates x hidden, inputs] and R [directions, gates x hidden, hidden]."""
    data, weight, recurrence = (_dims(facts, name) for name in node.inputs[:3])
    if data is None or weight is None or recurrence is None:
        return 0
    return prod(data[:2]) * (prod(weight) + prod(recurrence))


def _einsum(node: NodeFact, facts: GraphFacts) -> int:
    """One multiplication for each combination of the letters."""
    terms = str(node.attributes["equation"]).replace(" ", "").split("->", maxsplit=1)[0].split(",")
    sizes: dict[str, int] = {}
    for letters, name in zip(terms, node.inputs, strict=True):
        dims = _dims(facts, name)
        if dims is None or len(dims) != len(letters):
            return 0
        for letter, dim in zip(letters, dims, strict=True):
            sizes[letter] = max(dim, sizes.get(letter, 1))  # a dimension of 1 broadcasts
    return prod(sizes.values()) if len(terms) > 1 else 0


_COUNTS: Mapping[str, Callable[[NodeFact, GraphFacts], int]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul", "FusedMatMul"), _product),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "Einsum": _einsum,
}


def _dims(facts: GraphFacts, name: str) -> tuple[int, ...] | None:
    shape = facts.tensors[name].shape
    return None if shape is None else tuple(dim if isinstance(dim, int) else 1 for dim in shape)
