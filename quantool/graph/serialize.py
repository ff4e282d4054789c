"""A graph under work as bytes for ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantool.graph.scopes import paused_collector

if TYPE_CHECKING:
    from pathlib import Path

    import onnx

    from quantool.graph.model import Model


def deserialize(data: bytes) -> onnx.ModelProto:
    """The message that bytes of ours hold."""
    import onnx

    proto: onnx.ModelProto = onnx.ModelProto.FromString(data)
    return proto


def to_proto(model: Model) -> onnx.ModelProto:
    """The current graph as a message, with the types that the model as given tells and no inferred ones.

    The outputs' types too are those declared: a caller may count on a dimension without a number.

    Writing the type of every inner tensor would take half of the time and much of a small file.
    """
    import onnx_ir

    values = [*model.ir.graph.initializers.values(), *(value for node in model.ir.graph for value in node.outputs)]
    hidden = [v for v in values if not (v.name in model.described or v.is_graph_output() or v.metadata_props)]
    types = [(value, value.type, value.shape) for value in hidden]
    try:
        for value in hidden:
            value.type = value.shape = None
        proto = onnx_ir.to_proto(model.ir)
    finally:
        for value, kind, shape in types:
            value.type, value.shape = kind, shape
    for output in proto.graph.output:
        if output.name in model.returned:
            output.type.CopyFrom(model.returned[output.name])
    return proto


def serialize(model: Model) -> tuple[bytes, Path | None]:
    """The current graph as a serialized ModelProto, and the folder of its external data, or None without any.

    External tensors stay references, so weights are not rewritten: a session needs the folder as
    ``session.model_external_initializers_file_folder_path``.
    """
    import onnx_ir

    with paused_collector():
        data = to_proto(model).SerializeToString()
    tensors = (value.const_value for value in model.ir.graph.initializers.values())
    has_external = any(isinstance(tensor, onnx_ir.ExternalTensor) for tensor in tensors)
    return data, model.source.folder if has_external else None
