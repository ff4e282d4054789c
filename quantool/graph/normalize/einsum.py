"""Write an Einsum with constant weights as a MatMul, which has integer kernels.

Frameworks that describe dense layers by an equation export them so: ``btd,df->btf``, heads ``btd,dhe->bthe`` and
``bthe,hed->btd``, experts ``btd,edf->ebtf``. What remains free or summed over in several axes is one axis of the
product, with a Reshape before or behind it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from quantool.graph.allocator import NameAllocator
from quantool.graph.normalize.constants import add_constant, computed, float_tensor, set_constant, shape_of
from quantool.graph.normalize.ledger import helper_node, take_over
from quantool.graph.scopes import graphs

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir

    from quantool.graph.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """How an equation is a product: the operand [kept..., summed...] times the weight gives [kept..., free...].

    perm, shape: the weight's axes in the order of MatMul, and its dimensions there. summed, free: dimensions.
    kept, rows: how many axes of the operand and of the result come first.
    """

    perm: tuple[int, ...]
    shape: tuple[int, ...]
    summed: tuple[int, ...]
    free: tuple[int, ...]
    kept: int
    rows: int


def write_products(model: Model) -> int:
    """Rewrite every Einsum of an operand and a constant that MatMul computes as well."""
    fresh = NameAllocator(model).fresh
    changes = 0
    for graph in graphs(model.ir.graph):
        for node in tuple(graph):
            product = _product(node)
            if product is not None:
                _rewrite(model.ir.graph, node, product, fresh=fresh)
                changes += 1
    return changes


def _product(node: onnx_ir.Node) -> _Product | None:
    weight = float_tensor(node.inputs[1]) if node.op_type == "Einsum" and len(node.inputs) == 2 else None
    if node.domain or weight is None or 0 in shape_of(weight):
        return None
    terms = node.attributes.get_string("equation", "").replace(" ", "").replace("->", ",").split(",")
    repeats = any(len(set(term)) < len(term) for term in terms)
    if len(terms) != 3 or repeats or not all(term.isalpha() for term in terms):
        return None
    return _matched(*terms, dims=shape_of(weight))


def _matched(operand: str, weight: str, result: str, *, dims: tuple[int, ...]) -> _Product | None:
    """The letters as MatMul orders them, or None where it would need a Transpose of the operand or the result."""
    size = dict(zip(weight, dims, strict=True))
    summed = "".join(letter for letter in operand if letter not in result)
    kept = operand.removesuffix(summed) if summed else operand
    rows = result[: result.find(kept) + len(kept)] if kept and kept in result else ""
    free = result.removeprefix(rows)
    outer = rows[:-1]  # the last of the rows is the matrix's own
    known = set(weight) == {*(set(outer) & set(weight)), *summed, *free}
    if not (summed and kept and rows and free and known and operand == kept + summed and set(free) <= set(weight)):
        return None
    stacked = "".join(letter for letter in outer if letter in weight)
    first = outer.find(stacked[0]) if stacked else len(outer)
    batch = tuple(size.get(letter, 1) for letter in outer[first:])
    sums, frees = tuple(size[letter] for letter in summed), tuple(size[letter] for letter in free)
    return _Product(
        perm=tuple(weight.index(letter) for letter in stacked + summed + free),
        shape=(*batch, math.prod(sums), math.prod(frees)),
        summed=sums,
        free=frees,
        kept=len(kept),
        rows=len(rows),
    )


def _rewrite(top: onnx_ir.Graph, node: onnx_ir.Node, product: _Product, *, fresh: Callable[[str], str]) -> None:
    weight = float_tensor(node.inputs[1])
    assert weight is not None
    load = weight.numpy
    matrix = computed(
        lambda: load().transpose(product.perm).reshape(product.shape), dtype=weight.dtype, shape=product.shape
    )
    set_constant(top, node, 1, tensor=matrix, name=lambda: fresh(f"{node.name}_matrix"))
    node.op_type = "MatMul"
    node.attributes.clear()
    if len(product.summed) > 1:
        _reshape_before(top, node, product, fresh=fresh)
    if len(product.free) > 1:
        _reshape_behind(top, node, product, fresh=fresh)


def _reshape_before(top: onnx_ir.Graph, node: onnx_ir.Node, product: _Product, *, fresh: Callable[[str], str]) -> None:
    """Join the axes that are summed over."""
    operand = node.inputs[0]
    assert operand is not None
    dims = (*[0] * product.kept, math.prod(product.summed))
    joined = helper_node("Reshape", [operand, _dims(top, node, dims, fresh=fresh)], name=fresh(f"{node.name}_join"))
    joined.outputs[0].name, joined.outputs[0].type = fresh(f"{node.name}_joined"), operand.type
    node.prepend(joined)
    node.replace_input_with(0, joined.outputs[0])


def _reshape_behind(top: onnx_ir.Graph, node: onnx_ir.Node, product: _Product, *, fresh: Callable[[str], str]) -> None:
    """Cut the columns into the axes that remain free, and let the Reshape write what the Einsum wrote."""
    written = node.outputs[0]
    cut = helper_node("Reshape", [], name=fresh(f"{node.name}_cut"))
    take_over(cut.outputs[0], written)
    written.name, written.doc_string, written.shape = fresh(f"{node.name}_product"), None, None
    cut.resize_inputs(2)
    cut.replace_input_with(0, written)
    cut.replace_input_with(1, _dims(top, node, (*[0] * product.rows, *product.free), fresh=fresh))
    node.append(cut)


def _dims(
    top: onnx_ir.Graph, node: onnx_ir.Node, dims: tuple[int, ...], *, fresh: Callable[[str], str]
) -> onnx_ir.Value:
    import onnx_ir

    tensor = computed(lambda: np.asarray(dims), dtype=onnx_ir.DataType.INT64, shape=(len(dims),))
    return add_constant(top, fresh(f"{node.name}_shape"), tensor)
