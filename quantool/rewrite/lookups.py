"""Lookups of rows from a table that is stored as integers, in operators of ai.onnx: no float table is left."""

from __future__ import annotations

from typing import Final

import numpy as np

from quantool.rewrite.builder import Builder
from quantool.rewrite.naming import stem
from quantool.schema import AttributeValue, NodeFact, WeightParams

#: onnx.TensorProto.DataType by name, the target type of Cast
_TYPES: Final = {"float32": 1, "float16": 10, "bfloat16": 16}


def write_embedding(build: Builder, node: NodeFact) -> None:
    """Gather the codes of rows, and their scales and zero points, and dequantize the rows alone.

    A scale a row needs no operator newer than opset 13: (Cast(codes) - Cast(zero points)) * scales.
    """
    weight = build.parameters.weights[node.name, 0]
    rows = _gather(build, node, build.codes(weight), "quantized")
    if weight.params.axis is None or weight.params.block_size:
        _dequantize(build, node, weight, rows)
    else:
        _scale_rows(build, node, weight, rows)
    build.remove(node)


def _gather(build: Builder, node: NodeFact, table: str, suffix: str) -> str:
    name = build.named(node.outputs[0], suffix)
    return build.node("Gather", (table, node.inputs[1]), name, attributes={"axis": 0}, near=node.name)


def _scale_rows(build: Builder, node: NodeFact, weight: WeightParams, rows: str) -> None:
    """One scale a row: cast, take off the zero points where there are any, multiply."""
    base, output, params = stem(weight.spec.tensor), node.outputs[0], weight.params
    cast = {"to": _TYPES[weight.spec.scale_type]}
    values = build.node("Cast", (rows,), build.named(output, "cast"), attributes=cast, near=node.name)
    if params.zero_point.any():
        zeros = params.zero_point.reshape(-1, 1).astype(np.dtype(weight.spec.scale_type))
        table = build.constants.array(f"{weight.key}|row zeros", f"{base}_zero_point", zeros)
        middle = _gather(build, node, table, "zero_point")
        values = build.node("Sub", (values, middle), build.named(output, "centred"), near=node.name)
    scales = params.scale.reshape(-1, 1).astype(np.dtype(weight.spec.scale_type))
    steps = _gather(build, node, build.constants.array(f"{weight.key}|row scales", f"{base}_scale", scales), "scale")
    build.node("Mul", (values, steps), output, near=node.name)


def _dequantize(build: Builder, node: NodeFact, weight: WeightParams, rows: str) -> None:
    """Blocks along the rows, or one scale for the whole table.

    A copy stands behind: ONNX Runtime takes a DequantizeLinear before a MatMul for an activation of one scale.
    """
    _, scales, zero_points = build.weight_name(weight)
    attributes: dict[str, AttributeValue] = {}
    inputs = [rows, scales, zero_points]
    if weight.params.block_size:
        attributes = {"axis": -1, "block_size": weight.params.block_size}
        inputs = [rows, _gather(build, node, scales, "scale")]
        if weight.params.zero_point.any():
            inputs.append(_gather(build, node, zero_points, "zero_point"))
    view = build.named(node.outputs[0], "dequantized")
    build.node("DequantizeLinear", tuple(inputs), view, attributes=attributes, near=node.name)
    build.node("Sum", (view,), node.outputs[0], near=node.name)
