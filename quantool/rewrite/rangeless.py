"""Forms that need no ranges: dynamic quantization and weights alone. One writer a kernel.

The dynamic product is written in ai.onnx operators (DynamicQuantizeLinear-11, MatMulInteger-10); the runtime fuses
them, and MatMuls that read one tensor share its quantization.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import numpy as np

from quantool.edits import AddNode, Edit
from quantool.elements import ELEMENTS
from quantool.rewrite import nbits
from quantool.rewrite.builder import Builder
from quantool.rewrite.lookups import write_embedding
from quantool.rewrite.naming import stem
from quantool.schema import NodeFact, WeightParams

_FLOAT: Final = 1  # TensorProto.FLOAT, the target type of Cast
_CONTRIB: Final = "com.microsoft"


def rewrite_rangeless(build: Builder) -> list[Edit]:
    """Edits for a dynamic or weight-only model; weights that share codes are stored once."""
    for node in build.facts.nodes:
        decision = build.plan.decisions[node.name]
        if decision.quantized:
            WRITERS[decision.kernel](build, node)
    for use in build.plan.barriers:
        reader = build.facts.by_name[use.node]
        build.read(reader, use.index, build.copy(reader.inputs[use.index], reader=reader))
    return build.all_edits()


def _write_product(build: Builder, node: NodeFact) -> None:
    """Y = float(MatMulInteger(q(a), w)) * (scale_a * scale_w) + bias, for MatMul and Gemm."""
    weight = build.parameters.weights[node.name, 1]
    transposed = bool(node.attributes.get("transB", 0))
    codes = build.constants.codes(weight, transposed=True) if transposed else build.codes(weight)
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    _write_integer(build, node, (codes, bias), "MatMulInteger", channel_shape=(-1,))


def _write_convolution(build: Builder, node: NodeFact) -> None:
    """Y = float(ConvInteger(q(x), w)) * (scale_x * scale_w) + bias. Only where the user asks: it is slow."""
    weight = build.parameters.weights[node.name, 1]
    codes = build.constants.codes(weight)
    rank = len(weight.shape) - 2
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    if bias:
        shape = build.constants.array(f"shape|{rank}", "bias_shape", np.array([-1, *(1,) * rank], np.int64))
        bias = build.node("Reshape", (bias, shape), build.named(bias, "per_channel"), near=node.name)
    _write_integer(build, node, (codes, bias), "ConvInteger", channel_shape=(-1, *(1,) * rank))


def _write_integer(
    build: Builder, node: NodeFact, operands: tuple[str, str], op_type: str, *, channel_shape: tuple[int, ...]
) -> None:
    """Quantize the input at run time, multiply integers, scale back, add the bias. operands: codes, bias or ""."""
    codes, bias = operands
    weight = build.parameters.weights[node.name, 1]
    x, output = node.inputs[0], node.outputs[0]
    quantized, scale, zero_point = build.quantized_at_run_time(x, near=node.name, scope=node.scope)
    inputs = [quantized, codes, zero_point]
    if weight.params.zero_point.any():
        inputs.append(_zero_point(build, weight, whole=op_type == "ConvInteger"))
    attributes = node.attributes if op_type == "ConvInteger" else {}
    total = build.node(op_type, tuple(inputs), build.named(output, "integer"), attributes=attributes, near=node.name)
    total = build.node("Cast", (total,), build.named(output, "cast"), attributes={"to": _FLOAT}, near=node.name)
    values = weight.params.scale.reshape(channel_shape) if weight.params.scale.ndim else weight.params.scale
    own = build.constants.array(f"{weight.key}|{channel_shape}|scale", f"{weight.spec.tensor}_scale", values)
    factor = build.node("Mul", (scale, own), build.named(output, "scale"), near=node.name)
    build.remove(node)
    product = build.named(output, "product") if bias else output
    build.node("Mul", (total, factor), product, near=node.name)
    if bias:
        build.node("Add", (product, bias), output, near=node.name)


def _zero_point(build: Builder, weight: WeightParams, *, whole: bool) -> str:
    """Store a weight's zero points; whole: as the one number that all channels share."""
    if not whole:
        return build.constants.parameters(weight.key, weight.spec.tensor, weight.params)[1]
    values = np.unique(weight.params.zero_point)
    assert values.size == 1
    stored = values.reshape(()).astype(weight.spec.dtype)
    return build.constants.array(f"{weight.key}|one zero", f"{stem(weight.spec.tensor)}_zero_point", stored)


def _write_attention(build: Builder, node: NodeFact) -> None:
    """com.microsoft Attention -> QAttention, its input quantized at run time."""
    weight = build.parameters.weights[node.name, 1]
    quantized, scale, zero_point = build.quantized_at_run_time(node.inputs[0], near=node.name, scope=node.scope)
    codes, weight_scale, weight_zero_point = build.weight_name(weight)
    optional = [*node.inputs[3:5], "", ""][:2]
    inputs = (quantized, codes, node.inputs[2], scale, weight_scale, optional[0], zero_point)
    _replace(build, node, "QAttention", (*inputs, weight_zero_point, optional[1]))


def _write_lstm(build: Builder, node: NodeFact) -> None:
    """LSTM -> DynamicQuantizeLSTM: weights [directions, inputs, 4 x hidden], one scale a gate row."""
    names: list[str] = []
    parameters: list[str] = []
    for index in (1, 2):
        weight = build.parameters.weights[node.name, index]
        names.append(build.constants.codes(weight, transposed=True))
        parameters.extend(_gate_parameters(build, weight))
    optional = [*node.inputs[3:], "", "", "", "", ""][:5]
    _replace(build, node, "DynamicQuantizeLSTM", (node.inputs[0], *names, *optional, *parameters))


def _gate_parameters(build: Builder, weight: WeightParams) -> tuple[str, str]:
    """Scale and zero point as [directions, 4 x hidden]."""
    scale = weight.params.scale[..., 0]
    zero_point = np.zeros(scale.shape, weight.spec.dtype)
    return (
        build.constants.array(f"{weight.key}|gates", f"{weight.spec.tensor}_scale", scale),
        build.constants.array(f"{weight.key}|gates zero", f"{weight.spec.tensor}_zero_point", zero_point),
    )


def _replace(build: Builder, node: NodeFact, op_type: str, inputs: tuple[str, ...]) -> None:
    """Write a fused operator of the runtime in a node's place, all outputs kept.

    An LSTM whose layout is given as the default 0 loses that attribute: DynamicQuantizeLSTM has none.
    """
    build.require(_CONTRIB)
    build.remove(node)
    build.edits.append(
        AddNode(
            op_type=op_type,
            domain=_CONTRIB,
            name=node.name,
            inputs=inputs,
            outputs=node.outputs,
            attributes={name: value for name, value in node.attributes.items() if name != "layout"},
            near=node.name,
        )
    )


def _write_weight(build: Builder, node: NodeFact) -> None:
    """Read the weight through DequantizeLinear.

    ONNX Runtime 1.32 turns 2-bit weights into those of MatMulNBits wrongly where the columns are no multiple of 4: a
    copy keeps them apart.
    """
    index = next(i for i in range(len(node.inputs)) if (node.name, i) in build.parameters.weights)
    weight = build.parameters.weights[node.name, index]
    view = build.dequantized_weight(weight)
    if node.op_type in ("MatMul", "Gemm") and ELEMENTS[weight.params.dtype].bits == 2 and weight.shape[-1] % 4:
        view = build.copy(view, reader=node)
    build.read(node, index, view)


Writer = Callable[[Builder, NodeFact], None]

#: kernel of a decision -> what writes it
WRITERS: Final = MappingProxyType(
    {
        "DynamicQuantizeMatMul": _write_product,
        "ConvInteger": _write_convolution,
        "QAttention": _write_attention,
        "DynamicQuantizeLSTM": _write_lstm,
        "DequantizeLinear": _write_weight,
        "GatherRows": write_embedding,
        "MatMulNBits": nbits.write_product,
        "GatherBlockQuantized": nbits.write_lookup,
    }
)
