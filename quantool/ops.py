"""The operator table: one row an operator, what planning must know about its inputs and its scales.

A row says which inputs are activations, where the weight, its channel axis and the bias are, and how the output's
scale comes about. What a target really executes as integers stands in targets/*.toml, not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from quantool.schema import NodeFact


class Role(StrEnum):
    """What a node may be in a quantized graph."""

    ANCHOR = "anchor"  # has weights: worth quantizing by itself
    FOLLOWER = "follower"  # an integer kernel exists, worth it only between integers
    MOVER = "mover"  # moves or selects values: shares its input's parameters and vanishes
    ISLAND = "island"  # like a mover, but the runtime has only a float kernel (Pad)
    RECTIFIER = "rectifier"  # Relu, Clip: absorbed where saturation does the same


class ScaleRule(StrEnum):
    """Where the scale of an output comes from."""

    OWN = "own"
    SAME = "same as the input"
    FIXED = "fixed range"


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operator. activations: input indices, or None for all; weight, bias: input indices, or None."""

    role: Role | None
    rule: ScaleRule = ScaleRule.OWN
    activations: tuple[int, ...] | None = (0,)
    weight: int | None = None
    weight_axis: int | None = None
    bias: int | None = None
    fixed: tuple[float, float] | None = None


_MOVER = Op(role=Role.MOVER, rule=ScaleRule.SAME)

#: (domain, operator) -> row. The inputs follow the newest ai.onnx signature.
OPS: Final = MappingProxyType(
    {
        ("", "Conv"): Op(role=Role.ANCHOR, weight=1, weight_axis=0, bias=2),
        ("", "ConvTranspose"): Op(role=Role.ANCHOR, weight=1, weight_axis=1, bias=2),
        ("", "MatMul"): Op(role=Role.ANCHOR, weight=1, weight_axis=-1),
        ("", "Gemm"): Op(role=Role.ANCHOR, weight=1, weight_axis=1, bias=2),
        ("", "LSTM"): Op(role=Role.ANCHOR, weight=1, weight_axis=1),
        ("", "GRU"): Op(role=Role.ANCHOR, weight=1, weight_axis=1),
        ("", "RNN"): Op(role=Role.ANCHOR, weight=1, weight_axis=1),
        ("com.microsoft", "Attention"): Op(role=Role.ANCHOR, weight=1, weight_axis=1, bias=2),
        ("", "Add"): Op(role=Role.FOLLOWER, activations=None),
        ("", "Mul"): Op(role=Role.FOLLOWER, activations=None),
        ("", "AveragePool"): Op(role=Role.FOLLOWER),
        ("", "GlobalAveragePool"): Op(role=Role.FOLLOWER),
        ("", "LeakyRelu"): Op(role=Role.FOLLOWER),
        ("", "Sigmoid"): Op(role=Role.FOLLOWER, rule=ScaleRule.FIXED, fixed=(0.0, 1.0)),
        ("", "Softmax"): Op(role=Role.FOLLOWER, rule=ScaleRule.FIXED, fixed=(0.0, 1.0)),
        ("", "HardSigmoid"): Op(role=None, rule=ScaleRule.FIXED, fixed=(0.0, 1.0)),
        ("", "Concat"): Op(role=Role.FOLLOWER, activations=None),
        ("", "Where"): Op(role=Role.FOLLOWER, activations=(1, 2)),
        ("", "MaxPool"): _MOVER,
        ("", "Reshape"): _MOVER,
        ("", "Transpose"): _MOVER,
        ("", "Flatten"): _MOVER,
        ("", "Squeeze"): _MOVER,
        ("", "Unsqueeze"): _MOVER,
        ("", "Slice"): _MOVER,
        ("", "Gather"): _MOVER,
        ("", "Expand"): _MOVER,
        ("", "Tile"): _MOVER,
        ("", "Split"): _MOVER,
        ("", "DepthToSpace"): _MOVER,
        ("", "SpaceToDepth"): _MOVER,
        ("", "ReduceMax"): _MOVER,
        ("", "ReduceMin"): _MOVER,
        ("", "Resize"): _MOVER,
        ("", "Pad"): Op(role=Role.ISLAND, rule=ScaleRule.SAME),
        ("", "Relu"): Op(role=Role.RECTIFIER),
        ("", "Clip"): Op(role=Role.RECTIFIER),
    }
)

UNKNOWN: Final = Op(role=None)


def op_of(node: NodeFact) -> Op:
    """The row of a node's operator, or UNKNOWN."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return OPS.get((domain, node.op_type), UNKNOWN)


def activation_inputs(node: NodeFact) -> tuple[int, ...]:
    """Indices of the inputs that carry activations, absent ones left out."""
    row = op_of(node).activations
    wanted = range(len(node.inputs)) if row is None else row
    return tuple(i for i in wanted if i < len(node.inputs) and node.inputs[i])


def inner_axis(node: NodeFact) -> int:
    """The axis of a matrix that a product sums over, or that holds the elements of a looked-up row."""
    return 1 if node.op_type == "Gather" or node.attributes.get("transB", 0) else 0


def weight_axis(node: NodeFact, rank: int) -> int | None:
    """The channel axis of a node's weight of that rank, or None where one scale must do.

    Gemm: 0 with transB, else 1. MatMul: the columns of a matrix; batched weights take one scale, because no
    runtime reads a scale for each column of a stack of matrices from DequantizeLinear.
    """
    row = op_of(node)
    if row.weight_axis is None:
        return None
    if node.op_type == "Gemm":
        return 0 if node.attributes.get("transB", 0) else 1
    if node.op_type == "MatMul":
        return 1 if rank == 2 else None
    if node.op_type == "ConvTranspose" and node.attributes.get("group", 1) != 1:
        return None
    return row.weight_axis
