"""Recognize x * clip(x + 3, 0, 6) / 6 in its usual spellings, and write it as HardSwish."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from quantool.graph.normalize.clipped import Clipped, step
from quantool.graph.normalize.constants import tensor_of
from quantool.graph.normalize.ledger import absorb, only_reader
from quantool.graph.scopes import graphs

if TYPE_CHECKING:
    import onnx_ir

    from quantool.graph.model import Model

OPSET: Final = 14
"""The first opset with HardSwish."""
GATE: Final = Clipped(slope=1 / 6, offset=0.5, lo=0.0, hi=1.0)
"""HardSwish(x) = x * clip(x / 6 + 1/2, 0, 1): Howard et al., "Searching for MobileNetV3", arXiv 1905.02244, 5.2."""
LONGEST: Final = 6
"""More steps than any spelling of the gate has."""


class _Chain(NamedTuple):
    """Nodes from an input to a tensor, the last first, and the function that they compute."""

    nodes: tuple[onnx_ir.Node, ...]
    function: Clipped


class _Match(NamedTuple):
    last: onnx_ir.Node
    source: onnx_ir.Value
    inner: tuple[onnx_ir.Node, ...]


def wants_hardswish(model: Model) -> bool:
    """Whether raising the opset to 14 would let HardSwish stand for what the model spells out."""
    return model.ir.graph.opset_imports.get("", 1) < OPSET and any(
        _match(node) for graph in graphs(model.ir.graph) for node in graph
    )


def write_hardswish(model: Model) -> int:
    """Replace each spelling whose inner tensors nobody else reads; from opset 14 on."""
    if model.ir.graph.opset_imports.get("", 1) < OPSET:
        return 0
    changes = 0
    for graph in graphs(model.ir.graph):
        for node in tuple(graph):
            match = _match(node) if node.graph is graph else None
            if match is not None:
                _rewrite(model, match)
                changes += 1
    return changes


def _rewrite(model: Model, match: _Match) -> None:
    last = match.last
    last.resize_inputs(1)
    last.replace_input_with(0, match.source)
    last.op_type = "HardSwish"
    last.attributes.clear()
    for node in match.inner:
        absorb(model, node, into=last)


def _match(node: onnx_ir.Node) -> _Match | None:
    """Match a node as the last of a spelling: the product itself, or its scaling by 1/6."""
    if node.domain or node.op_type not in {"Mul", "Div"}:
        return None
    found = _match_product(node, Clipped())
    if found is not None:
        return _Match(node, found[0], found[1])
    for index, value in enumerate(node.inputs):
        scaling = step(node, Clipped(), index=index, rank=_rank(value))
        product = _writer(value)
        if scaling is not None and product is not None and product.op_type == "Mul":
            found = _match_product(product, scaling)
            return None if found is None else _Match(node, found[0], (product, *found[1]))
    return None


def _match_product(product: onnx_ir.Node, scaling: Clipped) -> tuple[onnx_ir.Value, tuple[onnx_ir.Node, ...]] | None:
    """The x and the inner nodes of a product x * gate(x), times a factor, in either order."""
    if product.domain or product.op_type != "Mul":
        return None
    for linear, gate in (product.inputs, product.inputs[::-1]):
        if linear is None or gate is None or tensor_of(linear) is not None or tensor_of(gate) is not None:
            continue
        for source, chain in _linear_chains(linear):
            gates = _chain(gate, source)
            factor = scaling.slope * chain.function.slope
            if gates is not None and gates.function.times(factor).is_close(GATE):
                return source, (*chain.nodes, *gates.nodes)
    return None


def _linear_chains(value: onnx_ir.Value) -> list[tuple[onnx_ir.Value, _Chain]]:
    """The tensor as x itself, and as a scaled x where a Mul or Div by a constant writes it."""
    found = [(value, _Chain((), Clipped()))] if _is_float(value) else []
    node = _writer(value)
    if node is not None and node.op_type in {"Mul", "Div"}:
        for index, source in enumerate(node.inputs):
            function = step(node, Clipped(), index=index, rank=_rank(source))
            if source is not None and function is not None and _is_float(source):
                found.append((source, _Chain((node,), function)))
    return found


def _chain(value: onnx_ir.Value, source: onnx_ir.Value) -> _Chain | None:
    """The steps that lead from `source` to a tensor through tensors with no other reader."""
    path: list[tuple[onnx_ir.Node, int]] = []
    current = value
    while current is not source:
        node = _writer(current)
        index = None if node is None else _varying_input(node)
        if node is None or index is None or len(path) == LONGEST:
            return None
        path.append((node, index))
        following = node.inputs[index]
        assert following is not None
        current = following
    function: Clipped | None = Clipped()
    for node, index in reversed(path):
        function = None if function is None else step(node, function, index=index, rank=_rank(source))
    return None if function is None else _Chain(tuple(node for node, _ in path), function)


def _varying_input(node: onnx_ir.Node) -> int | None:
    """The index of the one input that is no constant."""
    varying = [i for i, value in enumerate(node.inputs) if value is not None and tensor_of(value) is None]
    return varying[0] if len(varying) == 1 else None


def _writer(value: onnx_ir.Value | None) -> onnx_ir.Node | None:
    """The node that writes a tensor, if that has a single reader in the same scope."""
    return None if value is None or only_reader(value) is None else value.producer()


def _rank(value: onnx_ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


def _is_float(value: onnx_ir.Value) -> bool:
    import onnx_ir

    return value.dtype in (None, onnx_ir.DataType.FLOAT)
