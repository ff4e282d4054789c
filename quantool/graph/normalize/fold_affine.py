"""Fold what scales and shifts channels, BatchNormalization, Mul, Div, Add and Sub, into the layer before it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from quantool.graph.allocator import NameAllocator
from quantool.graph.normalize.channels import channel_count, scale_and_shift
from quantool.graph.normalize.constants import float_tensor, shape_of
from quantool.graph.normalize.ledger import absorb_reader, only_reader
from quantool.graph.scopes import graphs

if TYPE_CHECKING:
    import onnx_ir
    from numpy.typing import NDArray

    from quantool.graph.model import Model


class _Affine(NamedTuple):
    """y * scale + shift, one number per channel."""

    scale: NDArray[np.float64]
    shift: NDArray[np.float64]


def fold_affine(model: Model) -> int:
    """Fold per-channel factors and terms into the constants of a Conv, ConvTranspose, Gemm or MatMul.

    BatchNormalization: scale = gamma / sqrt(variance + epsilon), shift = beta - mean * scale (Ioffe and Szegedy,
    "Batch Normalization", arXiv 1502.03167, algorithm 2). Only where the layer's output has no other reader.
    """
    names = NameAllocator(model)
    changes = 0
    for graph in graphs(model.ir.graph):
        for node in tuple(graph):
            if node.domain or node.op_type not in {"Conv", "ConvTranspose", "Gemm", "MatMul"}:
                continue
            while (affine := _next_affine(node)) is not None:
                reader = only_reader(node.outputs[0])
                assert reader is not None
                scale_and_shift(model.ir.graph, node, scale=affine.scale, shift=affine.shift, fresh=names.fresh)
                absorb_reader(model, reader, into=node)
                changes += 1
    return changes


def _next_affine(node: onnx_ir.Node) -> _Affine | None:
    """What the only reader of a layer does to its channels, or None."""
    reader = only_reader(node.outputs[0])
    channels = None if reader is None or reader.domain else channel_count(node)
    if reader is None or channels is None:
        return None
    if reader.op_type == "BatchNormalization":
        affine = _batch_norm(node, reader)
    elif node.op_type in {"Conv", "ConvTranspose"}:
        affine = _arithmetic(node, reader, channels)
    else:
        return None
    if affine is None or affine.scale.shape != (channels,):
        return None
    return affine if np.isfinite(affine.scale).all() and np.isfinite(affine.shift).all() else None


def _batch_norm(node: onnx_ir.Node, norm: onnx_ir.Node) -> _Affine | None:
    statistics = [float_tensor(value) for value in norm.inputs[1:5]]
    tensors = [tensor.numpy().astype(np.float64) for tensor in statistics if tensor is not None]
    if len(tensors) < 4 or norm.inputs[0] is not node.outputs[0] or _is_training(norm):
        return None
    if node.op_type == "MatMul" and not _writes_matrix(node):
        return None
    gamma, beta, mean, variance = tensors
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + norm.attributes.get_float("epsilon", 1e-5))
        return _Affine(scale, beta - mean * scale)


def _is_training(norm: onnx_ir.Node) -> bool:
    """Below opset 14 further outputs mean training, later an attribute; spatial=0 has statistics per element."""
    return (
        any(output.name for output in norm.outputs[1:])
        or norm.attributes.get_int("training_mode", 0) != 0
        or norm.attributes.get_int("spatial", 1) != 1
    )


def _writes_matrix(matmul: onnx_ir.Node) -> bool:
    """BatchNormalization works along axis 1, which is that of the columns for matrices alone."""
    left = matmul.inputs[0]
    return left is not None and left.shape is not None and len(left.shape) == 2


def _arithmetic(node: onnx_ir.Node, reader: onnx_ir.Node, channels: int) -> _Affine | None:
    if reader.op_type not in {"Add", "Sub", "Mul", "Div"}:
        return None
    [(_, index)] = node.outputs[0].uses()
    constant = _per_channel(reader.inputs[1 - index], channels=channels, rank=_rank(node))
    if constant is None or (index == 1 and reader.op_type == "Div"):
        return None
    ones, zeros = np.ones(channels), np.zeros(channels)
    match reader.op_type, index:
        case "Add", _:
            return _Affine(ones, constant)
        case "Sub", 0:
            return _Affine(ones, -constant)
        case "Sub", _:
            return _Affine(-ones, constant)
        case "Mul", _:
            return _Affine(constant, zeros)
    with np.errstate(all="ignore"):
        return _Affine(1 / constant, zeros)


def _rank(node: onnx_ir.Node) -> int:
    weight = float_tensor(node.inputs[1])
    assert weight is not None
    return len(shape_of(weight))


def _per_channel(value: onnx_ir.Value | None, *, channels: int, rank: int) -> NDArray[np.float64] | None:
    """A constant that is one number, or one for each channel at axis 1 of a tensor of `rank` axes."""
    tensor = float_tensor(value)
    if tensor is None:
        return None
    shape = shape_of(tensor)
    padded = (1,) * (rank - len(shape)) + shape
    if len(shape) > rank or math.prod(padded) not in (1, padded[1]) or padded[1] not in (1, channels):
        return None
    return np.broadcast_to(tensor.numpy().astype(np.float64).reshape(-1), (channels,))
