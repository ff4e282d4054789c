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

    return onnx.ModelProto.FromString(data)


def serialize(model: Model) -> tuple[bytes, Path | None]:
    """The current graph as a serialized ModelProto, and the folder of its external data, or None without any.

    External tensors stay references, so weights are not rewritten: a session needs the folder as
    ``session.model_external_initializers_file_folder_path``.
    """
    import onnx_ir

    with paused_collector():
        data = onnx_ir.to_proto(model.ir).SerializeToString()
    tensors = (value.const_value for value in model.ir.graph.initializers.values())
    has_external = any(isinstance(tensor, onnx_ir.ExternalTensor) for tensor in tensors)
    return data, model.source.folder if has_external else None
