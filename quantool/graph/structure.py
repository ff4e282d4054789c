"""The structure of a model without its large weights, so that copying and converting it costs little."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantool.graph.external import entry, is_external
from quantool.graph.protos import nbytes, tensors

if TYPE_CHECKING:
    from pathlib import Path

    import onnx

    from quantool.graph.external import ExternalFiles
    from quantool.graph.load import Loaded

# Shapes, axes and the like stay in the structure, because inference and conversion read their values.
SMALL_BYTES = 4096


def copy_without_weights(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, onnx.TensorProto]]:
    """Copy a model but for the data of large initializers of the main graph.

    Returns the copy, where each of them is a stub with external data, and the tensors left out by name.
    They still belong to `model`, which is not changed.
    """
    import onnx

    copy = onnx.ModelProto()
    _copy_fields(model, copy, leave_out="graph")
    _copy_fields(model.graph, copy.graph, leave_out="initializer")
    weights: dict[str, onnx.TensorProto] = {}
    for tensor in model.graph.initializer:
        target = copy.graph.initializer.add()
        if is_large(tensor):
            weights[tensor.name] = tensor
            make_stub(tensor, target)
        else:
            target.CopyFrom(tensor)
    return copy, weights


def is_outlined(loaded: Loaded) -> bool:
    """Whether the model's file was read without the weights in it."""
    own = None if loaded.source.path is None else loaded.source.path.resolve()
    return loaded.external is not None and own in loaded.external.files.values()


def given_bytes(loaded: Loaded) -> bytes:
    """The model as given, serialized, whose external tensors refer to real files in the source's folder."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(loaded.proto)
    if loaded.external is not None:
        resolve_external(copy, loaded.external)
    data: bytes = copy.SerializeToString()
    return data


def copy_for_checker(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model with empty tensors for its large and external ones, which onnx.checker need not read.

    It would read the whole file once more, and it refuses symbolic links, as model hubs make them.
    """
    copy, _ = copy_without_weights(model)
    for tensor in tensors(copy):
        if is_external(tensor):
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")
            tensor.dims[:] = [0]
    return copy


def is_large(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor holds so much data itself that it is better left out of copies."""
    return not is_external(tensor) and max(nbytes(tensor), tensor.ByteSize()) > SMALL_BYTES


def make_stub(tensor: onnx.TensorProto, target: onnx.TensorProto) -> None:
    """Make `target` describe `tensor` without its data."""
    target.name, target.data_type, target.data_location = tensor.name, tensor.data_type, tensor.EXTERNAL
    target.dims.extend(tensor.dims)
    target.external_data.add(key="location", value="held in memory")


def resolve_external(model: onnx.ModelProto, external: ExternalFiles) -> None:
    """Load small external tensors, and let the others point to the real files from `external.folder`; in place.

    ONNX Runtime refuses symbolic links that leave the folder it is given, so links are resolved here.
    """
    for tensor in tensors(model):
        if not is_external(tensor) or tensor.external_data[0].value == "held in memory":
            continue
        place, size = entry(tensor), nbytes(tensor)
        real = external.files[place.location]
        del tensor.external_data[:]
        if size <= SMALL_BYTES:
            tensor.ClearField("data_location")
            tensor.raw_data = _read(real, place.offset, size)
            continue
        location = real.relative_to(external.folder).as_posix()
        for key, value in (("location", location), ("offset", place.offset), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))


def _read(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def _copy_fields(source: object, target: object, *, leave_out: str) -> None:
    for field, value in source.ListFields():  # type: ignore[attr-defined] # both are protobuf messages
        if field.name == leave_out:
            continue
        if isinstance(value, int | str | bytes):
            setattr(target, field.name, value)
        elif hasattr(value, "extend"):
            getattr(target, field.name).extend(value)
        else:
            getattr(target, field.name).CopyFrom(value)
