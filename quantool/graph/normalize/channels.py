"""Scaling and shifting the output channels of a Conv, ConvTranspose, Gemm or MatMul through its constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quantool.graph.normalize.constants import computed, float_tensor, set_constant, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir
    from numpy.typing import NDArray

    from quantool.schema import AnyArray

    Float64s = NDArray[np.float64]


def channel_count(node: onnx_ir.Node) -> int | None:
    """How many output channels a node with constant weights (and bias, if any) has, or None if it cannot be scaled."""
    weight = float_tensor(node.inputs[1]) if len(node.inputs) > 1 else None
    if weight is None or not _has_foldable_bias(node):
        return None
    shape = shape_of(weight)
    match node.op_type:
        case "Conv":
            return shape[0]
        case "ConvTranspose":
            return shape[1] * node.attributes.get_int("group", 1)
        case "Gemm":
            return shape[0] if node.attributes.get_int("transB", 0) else shape[1]
        case "MatMul" if len(shape) == 2:
            return shape[1]
    return None


def _has_foldable_bias(node: onnx_ir.Node) -> bool:
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return True
    bias = float_tensor(node.inputs[2])
    if bias is None:
        return False
    shape = shape_of(bias)
    return node.op_type != "Gemm" or all(dim == 1 for dim in shape[:-1])


def scale_and_shift(
    top: onnx_ir.Graph,
    node: onnx_ir.Node,
    *,
    scale: Float64s,
    shift: Float64s,
    fresh: Callable[[str], str],
) -> None:
    """Make a node write y * scale + shift, channel by channel: W' = W * scale, b' = b * scale + shift in float64.

    scale, shift: one number per output channel. A MatMul becomes a Gemm, which has a bias.
    """
    _scale_weight(top, node, scale=scale, fresh=fresh)
    terms = _bias(node, len(scale)) * scale + shift
    if not terms.any() and (len(node.inputs) < 3 or node.inputs[2] is None):
        return
    weight = float_tensor(node.inputs[1])
    assert weight is not None
    bias = computed(lambda: terms, dtype=weight.dtype, shape=terms.shape)
    if node.op_type == "MatMul":
        node.op_type = "Gemm"
    if node.op_type == "Gemm":
        node.attributes.pop("beta", None)
    set_constant(top, node, 2, tensor=bias, name=lambda: fresh(f"{node.outputs[0].name}_bias"))


def _scale_weight(top: onnx_ir.Graph, node: onnx_ir.Node, *, scale: Float64s, fresh: Callable[[str], str]) -> None:
    value = node.inputs[1]
    assert value is not None
    weight = value.const_value
    assert weight is not None
    if (scale == 1).all():
        return
    shape = shape_of(weight)
    factors = _per_channel(node, scale, shape)

    def load() -> AnyArray:
        return _times(weight.numpy(), factors, shape)

    tensor = computed(load, dtype=weight.dtype, shape=shape)
    set_constant(top, node, 1, tensor=tensor, name=lambda: fresh(f"{value.name}_scaled"))


def _per_channel(node: onnx_ir.Node, scale: Float64s, shape: tuple[int, ...]) -> Float64s:
    """The factors in a shape that broadcasts to the weight, whose first axis is cut into groups (ConvTranspose)."""
    match node.op_type:
        case "Conv":
            return scale.reshape(-1, *[1] * (len(shape) - 1))
        case "ConvTranspose":
            return scale.reshape(node.attributes.get_int("group", 1), 1, shape[1], *[1] * (len(shape) - 2))
        case _:
            transposed = node.attributes.get_int("transB", 0)
            return scale.reshape(-1, 1) if transposed else scale.reshape(1, -1)


def _times(weight: AnyArray, factors: Float64s, shape: tuple[int, ...]) -> Float64s:
    """Weight times factors in float64; factors of one axis more cut the weight's first axis into groups."""
    if factors.ndim > len(shape):
        weight = weight.reshape(factors.shape[0], -1, *shape[1:])
    product: Float64s = np.multiply(weight, factors, dtype=np.float64)
    return product.reshape(shape)


def _bias(node: onnx_ir.Node, channels: int) -> Float64s:
    """What a node adds to each channel: zeros without a bias, beta times C for Gemm."""
    bias = float_tensor(node.inputs[2]) if len(node.inputs) > 2 else None
    if bias is None:
        return np.zeros(channels)
    beta = node.attributes.get_float("beta", 1.0) if node.op_type == "Gemm" else 1.0
    values = bias.numpy().astype(np.float64).reshape(-1) * beta
    return np.broadcast_to(values, (channels,))
