"""Read a model as given, and refuse early what cannot be quantized."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from quantool.errors import ModelError
from quantool.graph.external import ExternalFiles, locate
from quantool.graph.model import Source
from quantool.graph.outline import outline
from quantool.graph.protos import DEFAULT_DOMAINS, graphs, nbytes, nodes, tensors
from quantool.graph.structure import copy_for_checker
from quantool.graph.wellformed import check, node_title

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from quantool.schema import AnyArray


#: a file from this size on is read without the weights in it
OUTLINED_FROM: Final = 512 * 1000 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model as given; `proto` has no external data loaded and is never changed.

    external: the files of its external data, or None. checker_error: what onnx.checker says of it, or None.
    Some models that ONNX Runtime runs fail the checker, so this is for comparing and refuses nothing.
    """

    proto: onnx.ModelProto
    source: Source
    external: ExternalFiles | None
    checker_error: str | None


def read(source: str | Path | onnx.ModelProto) -> Loaded:
    """Read a model from a file or take one in memory.

    Raises:
        ModelError: no such file, not an ONNX model, damaged, or a feature that would be lost.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        proto, digest, size = _read_file(path)
        where = str(path)
    else:
        path, proto, where = None, source, "the model"
        digest, size = _digest(proto)
    _refuse(proto, where)
    external = locate(proto, path)
    _refuse_damaged(proto)
    check(proto)
    return Loaded(
        proto=proto,
        source=Source(
            path=path,
            folder=path and (external.folder if external else path.parent),
            sha256=digest,
            opset=opset_of(proto),
            size_bytes=size + (external.beside(path) if external else 0),
        ),
        external=external,
        checker_error=checker_error(copy_for_checker(proto)),
    )


def opset_of(proto: onnx.ModelProto) -> int:
    """The version of ai.onnx that a model imports; 0 where it imports none."""
    return max((item.version for item in proto.opset_import if item.domain in DEFAULT_DOMAINS), default=0)


def checker_error(model: onnx.ModelProto | Path) -> str | None:
    """What onnx.checker finds wrong with a model or a model's file, or None."""
    from onnx import checker

    try:
        checker.check_model(str(model) if isinstance(model, Path) else model)
    except (checker.ValidationError, ValueError, RuntimeError) as err:
        return str(err).strip() or type(err).__name__
    return None


def already_quantized(proto: onnx.ModelProto) -> tuple[str, ...]:
    """Names of the nodes that compute with integers already, in all scopes and functions; each once."""
    found = (
        node.name or node_title(node)
        for node in nodes(proto)
        if node.domain in _QUANTIZED_DOMAINS and _is_quantized(node.op_type)
    )
    return tuple(dict.fromkeys(found))


def decode_tensor(data: bytes) -> AnyArray:
    """The array in a serialized TensorProto, as ``test_data_set_0/input_0.pb`` holds one.

    Raises:
        ValueError: the bytes are no tensor, or its data is elsewhere.
    """
    import onnx
    from onnx import numpy_helper

    try:
        tensor = onnx.TensorProto.FromString(data)
    except _decode_error() as err:
        raise ValueError("the bytes are no serialized TensorProto") from err
    if tensor.data_type == onnx.TensorProto.UNDEFINED or tensor.external_data:
        raise ValueError("the bytes hold no tensor with its data")
    array: np.ndarray[tuple[int, ...], np.dtype[np.generic]] = numpy_helper.to_array(tensor)
    return array


_QUANTIZED_DOMAINS = (*DEFAULT_DOMAINS, "com.microsoft")
_QUANTIZED = frozenset(
    {
        "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QGemm", "QAttention", "QEmbedLayerNormalization",
        "QMoE", "MatMulNBits", "MatMulBnb4", "MatMulFpQ4", "GatherBlockQuantized", "QuantizeBFP", "DequantizeBFP",
        "ConvInteger", "MatMulInteger", "MatMulInteger16", "MulInteger", "QuantizeWithOrder",
        "DequantizeWithOrder",
    }
)  # fmt: skip


def _is_quantized(op_type: str) -> bool:
    return op_type in _QUANTIZED or op_type.startswith(("QLinear", "QOrdered"))


def _read_file(path: Path) -> tuple[onnx.ModelProto, str, int]:
    """The model in a file, the file's hash and its size; large weights of a large file stay in it."""
    if path.is_file() and path.stat().st_size >= OUTLINED_FROM:
        with contextlib.suppress(ValueError), path.open("rb") as file:
            proto = _parse(outline(path), path)
            return proto, hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size
    data = _read_bytes(path)
    return _parse(data, path), hashlib.sha256(data).hexdigest(), len(data)


def _read_bytes(path: Path) -> bytes:
    if path.is_dir():
        _fail("model-is-folder", "the path is a folder", path, "Give the path of the .onnx file in it.")
    try:
        data = path.read_bytes()
    except FileNotFoundError as err:
        raise ModelError("model-not-found", "there is no such file", where=str(path), fix="Check the path.") from err
    except (OSError, ValueError) as err:
        raise ModelError(
            "model-unreadable", f"the file cannot be read: {err}", where=str(path), fix="Check its permissions."
        ) from err
    if not data:
        _fail("model-empty", "the file is empty", path, "Copy or export the model again.")
    if data.startswith(b"version https://git-lfs"):
        _fail("model-is-pointer", "the file is a Git LFS pointer, not the model", path, "Run `git lfs pull`.")
    return data


def _parse(data: bytes, path: Path) -> onnx.ModelProto:
    import onnx

    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except _decode_error() as err:
        what = (
            "the file is text, not a binary ONNX model" if _is_text(data) else "the file is truncated or no ONNX model"
        )
        raise ModelError("model-damaged", what, where=str(path), fix="Copy or export the model again.") from err
    if not proto.HasField("graph"):
        _fail("not-a-model", "the file holds no ONNX graph", path, "Copy or export the model again.")
    return proto


def _decode_error() -> type[Exception]:
    from google.protobuf import message  # type: ignore[import-untyped] # protobuf ships no stubs

    error: type[Exception] = message.DecodeError
    return error


def _is_text(data: bytes) -> bool:
    return all(byte >= 32 or byte in b"\t\r\n" for byte in data[:512])


def _digest(proto: onnx.ModelProto) -> tuple[str, int]:
    try:
        data = proto.SerializeToString(deterministic=True)
    except ValueError as err:
        raise ModelError(
            "model-too-large",
            f"the model in memory cannot be serialized: {err}",
            where="the model",
            fix="Save it with external data and give the path.",
        ) from err
    return hashlib.sha256(data).hexdigest(), len(data)


def _refuse(proto: onnx.ModelProto, where: str) -> None:
    import onnx

    known, opset = onnx.defs.onnx_opset_version(), opset_of(proto)
    problems = (
        (proto.ir_version == 0, "no-ir-version", "ir_version is missing or 0"),
        (not proto.graph.node, "graph-empty", "the graph has no nodes"),
        (not proto.opset_import, "no-opset-import", "the model imports no opset; it may be truncated"),
        (opset > known, "opset-too-new", f"opset {opset} is newer than {known}, the newest that onnx knows here"),
        (bool(proto.training_info), "training-info", "the model holds training information, which would be lost"),
        (
            any(graph.sparse_initializer for graph in graphs(proto.graph)),
            "sparse-initializer",
            "the model holds sparse initializers, which would be lost",
        ),
    )
    for wrong, code, what in problems:
        if wrong:
            _fail(code, what, where, "Export the model again for inference, with dense weights.")


def _refuse_damaged(proto: onnx.ModelProto) -> None:
    """Refuse tensors whose data is shorter than their dimensions say, without copying the data."""
    for tensor in tensors(proto):
        if tensor.HasField("raw_data") and tensor.ByteSize() < nbytes(tensor):
            raise ModelError(
                "tensor-damaged",
                f"tensor '{tensor.name}' holds less than the {nbytes(tensor)} bytes that its shape needs",
                where=f"tensor '{tensor.name}'",
                fix="The file is damaged: export the model again.",
            )


def _fail(code: str, what: str, where: str | Path, fix: str) -> NoReturn:
    raise ModelError(code, what, where=str(where), fix=fix)
