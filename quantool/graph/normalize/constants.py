"""Constants of a graph: reading them, and replacing them by computed ones that exist only while they are read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir

    from quantool.schema import AnyArray

EAGER_ELEMENTS: Final = 2**16
"""Computed constants up to this size are kept; larger ones are computed anew each time they are read."""


def tensor_of(value: onnx_ir.Value | None) -> onnx_ir.TensorProtocol | None:
    """The tensor behind a value that no input can override, else None."""
    if value is None or not value.is_initializer() or value.is_graph_input():
        return None
    return value.const_value


def shape_of(tensor: onnx_ir.TensorProtocol) -> tuple[int, ...]:
    """A constant's shape in plain numbers."""
    return tuple(int(dim) for dim in tensor.shape.numpy())


def float_tensor(value: onnx_ir.Value | None) -> onnx_ir.TensorProtocol | None:
    """The tensor of a float32 or float64 constant, else None: folding in 16 bits would add an error of its own."""
    import onnx_ir

    tensor = tensor_of(value)
    allowed = (onnx_ir.DataType.FLOAT, onnx_ir.DataType.DOUBLE)
    return tensor if tensor is not None and tensor.dtype in allowed else None


def integers(value: onnx_ir.Value | None) -> tuple[int, ...] | None:
    """The elements of a constant of integers, such as axes or pads, else None."""
    tensor = tensor_of(value)
    if tensor is None or not tensor.dtype.is_integer():
        return None
    return tuple(int(element) for element in tensor.numpy().reshape(-1))


def scalar(value: onnx_ir.Value | None, *, rank: int | None) -> float | None:
    """The one element of a float constant that broadcasts to any shape of `rank` axes, else None."""
    tensor = float_tensor(value)
    if tensor is None or math.prod(shape_of(tensor)) != 1 or len(shape_of(tensor)) > (1 if rank is None else rank):
        return None
    return float(tensor.numpy().reshape(()))


def computed(
    load: Callable[[], AnyArray], *, dtype: onnx_ir.DataType, shape: tuple[int, ...]
) -> onnx_ir.TensorProtocol:
    """A tensor from a function: at once where it is small, else whenever it is read."""
    import onnx_ir

    def make() -> onnx_ir.TensorProtocol:
        with np.errstate(over="ignore"):
            return onnx_ir.Tensor(np.asarray(load()).astype(dtype.numpy(), copy=False), dtype=dtype)

    if math.prod(shape) <= EAGER_ELEMENTS:
        return make()
    return onnx_ir.LazyTensor(make, dtype=dtype, shape=onnx_ir.Shape(shape))


def add_constant(top: onnx_ir.Graph, name: str, tensor: onnx_ir.TensorProtocol) -> onnx_ir.Value:
    """Store a tensor at the top, where every scope sees it."""
    import onnx_ir

    value = onnx_ir.Value(
        name=name,
        type=onnx_ir.TensorType(tensor.dtype),
        shape=onnx_ir.Shape(tensor.shape.numpy()),
        const_value=tensor,
    )
    top.register_initializer(value)
    return value


def set_constant(
    top: onnx_ir.Graph, node: onnx_ir.Node, index: int, *, tensor: onnx_ir.TensorProtocol, name: Callable[[], str]
) -> None:
    """Make a node read another constant: in place where nobody else reads the old one, else under a new name."""
    import onnx_ir

    value = node.inputs[index] if index < len(node.inputs) else None
    is_own = value is not None and len(value.uses()) == 1 and not value.is_graph_output()
    if value is not None and is_own and tensor_of(value) is not None:
        value.const_value = tensor
        value.shape, value.type = onnx_ir.Shape(tensor.shape.numpy()), onnx_ir.TensorType(tensor.dtype)
        return
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, add_constant(top, name(), tensor))
