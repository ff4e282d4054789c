"""Compute what depends on constants alone: weights behind Transpose, Reshape, Cast or arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from quantool.graph.model import TRANSPOSE_OF
from quantool.graph.normalize.constants import add_constant, computed, integers, shape_of, tensor_of
from quantool.graph.normalize.ledger import absorb
from quantool.graph.scopes import graphs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx_ir

    from quantool.graph.model import Model
    from quantool.schema import AnyArray

SMALL: Final = 4096
"""Arithmetic on floats may make a constant that is larger than its inputs only up to this number of elements.

On integers it may not: their products are no weights, but tables that take more room than what makes them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """What a node would write: its shape and type, known before load() computes it."""

    shape: tuple[int, ...]
    dtype: onnx_ir.DataType
    load: Callable[[], AnyArray]


def fold_constants(model: Model) -> int:
    """Replace nodes whose inputs are all constants by a constant; large ones are computed when they are read.

    What the branches of an If compute alike from one large weight becomes one constant.
    """
    top = model.ir.graph
    changes = 0
    large: dict[object, onnx_ir.Value] = {}
    for graph in graphs(top):
        for node in tuple(graph):
            result = _evaluate(node)
            if result is None or node.outputs[0].is_graph_output():
                continue
            output, name = node.outputs[0], node.outputs[0].name
            output.name = None
            key = _key(node)
            constant = large.get(key)
            if constant is None:
                tensor = computed(result.load, dtype=result.dtype, shape=result.shape)
                constant = add_constant(top, name or "", tensor)
            if math.prod(result.shape) > SMALL:
                large[key] = constant
            source = node.inputs[0]
            if node.op_type == "Transpose" and len(result.shape) == 2 and source is not None:
                constant.meta[TRANSPOSE_OF] = source.name
            output.replace_all_uses_with(constant)
            absorb(model, node, into=None)
            changes += 1
    return changes


def _key(node: onnx_ir.Node) -> object:
    """What tells the results of two nodes apart: operator, attributes, and the very inputs."""
    attributes = sorted((name, str(attribute.value)) for name, attribute in node.attributes.items())
    return node.op_type, tuple(attributes), tuple(node.inputs)


def _evaluate(node: onnx_ir.Node) -> _Result | None:
    """The constant that a node writes, or None where it depends on more than constants or is of no known kind."""
    fold = FOLDS.get(node.op_type)
    if node.domain or fold is None or not node.inputs:
        return None
    tensors = [tensor_of(value) for value in node.inputs if value is not None]
    known = [tensor for tensor in tensors if tensor is not None and _is_plain(tensor.dtype)]
    return fold(node, known) if len(known) == len(node.inputs) else None


def _is_plain(dtype: onnx_ir.DataType) -> bool:
    """Whether NumPy computes with the type as ONNX Runtime does."""
    return dtype.name in {"FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "BOOL"} or (
        dtype.is_integer() and dtype.bitwidth >= 8
    )


def _moved(tensor: onnx_ir.TensorProtocol, shape: tuple[int, ...], move: Callable[[AnyArray], AnyArray]) -> _Result:
    return _Result(shape=shape, dtype=tensor.dtype, load=lambda: move(tensor.numpy()))


def _identity(_: onnx_ir.Node, inputs: list[onnx_ir.TensorProtocol]) -> _Result:
    return _moved(inputs[0], shape_of(inputs[0]), lambda array: array)


def _transpose(node: onnx_ir.Node, inputs: list[onnx_ir.TensorProtocol]) -> _Result:
    shape = shape_of(inputs[0])
    perm = tuple(node.attributes.get_ints("perm", tuple(reversed(range(len(shape))))))
    moved = tuple(shape[axis] for axis in perm)
    return _moved(inputs[0], moved, lambda array: np.ascontiguousarray(array.transpose(perm)))


def _reshaped(tensor: onnx_ir.TensorProtocol, shape: tuple[int, ...]) -> _Result | None:
    if math.prod(shape) != math.prod(shape_of(tensor)):
        return None
    return _moved(tensor, shape, lambda array: array.reshape(shape))


def _reshape(node: onnx_ir.Node, inputs: list[onnx_ir.TensorProtocol]) -> _Result | None:
    before, wanted = shape_of(inputs[0]), integers(node.inputs[1])
    if wanted is None:
        return None
    if not node.attributes.get_int("allowzero", 0):
        wanted = tuple(before[axis] if dim == 0 else dim for axis, dim in enumerate(wanted))
    known = math.prod(dim for dim in wanted if dim != -1)
    rest = math.prod(before) // known if known else 0
    return _reshaped(inputs[0], tuple(rest if dim == -1 else dim for dim in wanted))


def _flatten(node: onnx_ir.Node, inputs: list[onnx_ir.TensorProtocol]) -> _Result | None:
    shape = shape_of(inputs[0])
    axis = node.attributes.get_int("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return _reshaped(inputs[0], (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _axes(node: onnx_ir.Node) -> tuple[int, ...] | None:
    """The axes of (Un)squeeze: an attribute below opset 13, an input from there on."""
    if len(node.inputs) > 1:
        return integers(node.inputs[1])
    axes = node.attributes.get_ints("axes")
    return None if axes is None else tuple(axes)


def _squeeze(node: onnx_ir.Node, inputs: list[onnx_ir.TensorProtocol]) -> _Result | None:
    shape, axes = shape_of(inputs[0]), _axes(node)
    dropped = (
        {axis for axis, dim in enumerate(shape) if dim == 1}
        if axes is None
        else {axis % max(len(shape), 1) for axis in axes}
    )
    return _reshaped(inputs[0], tuple(dim for axis, dim in enumerate(shape) if axis not in dropped))


def _unsqueeze(node: onnx_ir.Node, inputs: list[onnx_ir.TensorProtocol]) -> _Result | None:
    shape, axes = list(shape_of(inputs[0])), _axes(node)
    if axes is None:
        return None
    rank = len(shape) + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        shape.insert(axis, 1)
    return _reshaped(inputs[0], tuple(shape))


def _cast(node: onnx_ir.Node, inputs: list[onnx_ir.TensorProtocol]) -> _Result | None:
    import onnx_ir

    dtype = onnx_ir.DataType(node.attributes["to"].as_int())
    # Fractions to integers are left to the runtime: what it does outside the range is its own affair.
    if not _is_plain(dtype) or (inputs[0].dtype.is_floating_point() and not dtype.is_floating_point()):
        return None
    return _Result(shape=shape_of(inputs[0]), dtype=dtype, load=lambda: inputs[0].numpy().astype(dtype.numpy()))


def _arithmetic(node: onnx_ir.Node, inputs: list[onnx_ir.TensorProtocol]) -> _Result | None:
    a, b = inputs
    if a.dtype != b.dtype or a.dtype.name not in {"FLOAT", "DOUBLE", "INT32", "INT64"}:
        return None
    if node.op_type == "Div" and a.dtype.is_integer():
        return None
    shapes = shape_of(a), shape_of(b)
    shape = np.broadcast_shapes(*shapes)
    allowed = SMALL if a.dtype.is_floating_point() else 0
    if math.prod(shape) > max(allowed, *map(math.prod, shapes)):
        return None
    compute = ARITHMETIC[node.op_type]

    def load() -> AnyArray:
        with np.errstate(all="ignore"):
            result: AnyArray = compute(a.numpy(), b.numpy())
        return result

    return _Result(shape=shape, dtype=a.dtype, load=load)


ARITHMETIC: Final[Mapping[str, np.ufunc]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
}
FOLDS: Final[Mapping[str, Callable[[onnx_ir.Node, list[onnx_ir.TensorProtocol]], _Result | None]]] = {
    "Identity": _identity,
    "Cast": _cast,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    **dict.fromkeys(ARITHMETIC, _arithmetic),
}
