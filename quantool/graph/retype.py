"""The types of tensors after an edit: known for what Q/DQ write, forgotten where they no longer hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantool.graph.scopes import graphs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import onnx_ir


def infer_types(
    top: onnx_ir.Graph,
    added: Collection[onnx_ir.Node],
    *,
    formerly: Mapping[onnx_ir.Node, Mapping[int, onnx_ir.DataType | None]],
) -> None:
    """Type what added nodes write where they are Q, DQ or Cast, and untype what changed; on a sorted graph.

    formerly: node -> input index -> the element type it read before its input was set. A data mover that now
    reads integers writes integers, and so do its readers: a stale float type there would make the runtime
    refuse the model. Graph outputs keep their type, which is a promise to the user of the model.
    """
    changed: set[onnx_ir.Value] = set()
    for graph in graphs(top):
        for node in graph:
            if node in added:
                before = [output.dtype for output in node.outputs]
                _type_outputs(node)
                pairs = zip(node.outputs, before, strict=True)
                changed.update(output for output, dtype in pairs if dtype not in (None, output.dtype))
            elif _reads_another_type(node, formerly.get(node, {}), changed):
                outputs = [output for output in node.outputs if not output.is_graph_output()]
                for output in outputs:
                    output.type, output.shape = None, None
                changed.update(outputs)


def _reads_another_type(
    node: onnx_ir.Node, formerly: Mapping[int, onnx_ir.DataType | None], changed: Collection[onnx_ir.Value]
) -> bool:
    return any(
        value is not None and (value in changed or formerly.get(index, value.dtype) != value.dtype)
        for index, value in enumerate(node.inputs)
    )


def _type_outputs(node: onnx_ir.Node) -> None:
    import onnx_ir

    outputs = [output for output in node.outputs if not output.is_graph_output()]
    for output in outputs:
        output.type, output.shape = None, None
    dtype = _written_type(node)
    if dtype is None or not outputs or node.inputs[0] is None:
        return
    shape = node.inputs[0].shape
    outputs[0].type = onnx_ir.TensorType(dtype)
    outputs[0].shape = None if shape is None else shape.copy()


def _written_type(node: onnx_ir.Node) -> onnx_ir.DataType | None:
    """The element type of the first output, which has the shape of the first input, where the inputs tell."""
    import onnx_ir

    index = {"QuantizeLinear": 2, "DequantizeLinear": 1}.get(node.op_type)
    if index is not None and index < len(node.inputs):
        value = node.inputs[index]
        return None if value is None else value.dtype
    if node.op_type == "Cast":
        return onnx_ir.DataType(node.attributes["to"].as_int())
    return onnx_ir.DataType.UINT8 if node.op_type == "DynamicQuantizeLinear" else None
