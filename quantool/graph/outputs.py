"""Further outputs of a serialized model, without building a graph."""

from __future__ import annotations

from collections.abc import Sequence


def with_outputs(model_bytes: bytes, names: Sequence[str]) -> bytes:
    """The same model with tensors of its main graph as further outputs, after its own.

    Types are left out: ONNX Runtime infers them, also where onnx cannot. Parts of a message that follow each
    other merge by protobuf's own rules, so the outputs are appended and no weight is serialized again.
    """
    import onnx

    own = {output.name for output in onnx.load_model_from_string(model_bytes).graph.output}
    wanted = [name for name in dict.fromkeys(names) if name not in own]
    further = onnx.GraphProto(output=[onnx.ValueInfoProto(name=name) for name in wanted])
    appended: bytes = onnx.ModelProto(graph=further).SerializeToString()
    return model_bytes + appended
