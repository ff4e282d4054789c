"""Write the mean over all spatial axes as GlobalAveragePool, which has an integer kernel and keeps the layout.

Newer exporters spell adaptive pooling so. A mean that Sub or Add reads is a statistic of a normalization and stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from quantool.graph.allocator import NameAllocator
from quantool.graph.normalize.constants import integers
from quantool.graph.normalize.ledger import helper_node, take_over
from quantool.graph.scopes import graphs

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir

    from quantool.graph.model import Model

#: a squeeze-excite block or a classifier reads the pooled channels
READERS: Final = frozenset({"Conv", "Flatten", "Gemm", "MatMul", "Reshape", "Squeeze"})


def write_global_pools(model: Model) -> int:
    """Rewrite every ReduceMean of a known rank over the axes from 2 on that READERS alone read."""
    fresh = NameAllocator(model).fresh
    changes = 0
    for graph in graphs(model.ir.graph):
        for node in tuple(graph):
            if node.op_type == "ReduceMean" and not node.domain and _is_pool(node):
                _rewrite(node, fresh=fresh)
                changes += 1
    return changes


def _is_pool(node: onnx_ir.Node) -> bool:
    value, pooled = node.inputs[0], node.outputs[0]
    shape = None if value is None else value.shape
    axes = integers(node.inputs[1]) if len(node.inputs) > 1 else node.attributes.get_ints("axes")
    if value is None or value.dtype is None or not value.dtype.is_floating_point():
        return False
    if shape is None or len(shape) < 3 or axes is None or pooled.is_graph_output():
        return False
    rank = len(shape)
    spatial = sorted(axis % rank for axis in axes) == list(range(2, rank))
    return spatial and all(use.node.op_type in READERS and not use.node.domain for use in pooled.uses())


def _rewrite(node: onnx_ir.Node, *, fresh: Callable[[str], str]) -> None:
    keeps = node.attributes.get_int("keepdims", 1)
    node.op_type = "GlobalAveragePool"
    node.attributes.clear()
    node.resize_inputs(1)
    if not keeps:
        _flatten_behind(node, fresh=fresh)


def _flatten_behind(node: onnx_ir.Node, *, fresh: Callable[[str], str]) -> None:
    """Drop the axes of one element, under the name that the mean had."""
    pooled = node.outputs[0]
    flat = helper_node("Flatten", [], name=fresh(f"{node.name}_flat"))
    take_over(flat.outputs[0], pooled)
    pooled.name, pooled.doc_string, pooled.shape = fresh(f"{node.name}_pooled"), None, None
    flat.resize_inputs(1)
    flat.replace_input_with(0, pooled)
    node.append(flat)
