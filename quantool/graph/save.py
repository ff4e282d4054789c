"""Write a model beside its destination, let others look at it, and put it in place in one step."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

from quantool.errors import ModelError, QuantoolError, VerificationError
from quantool.graph.destination import already_there, refuse_full_disk, refuse_overwrite, unwritable
from quantool.graph.load import checker_error
from quantool.graph.scopes import paused_collector
from quantool.graph.serialize import to_proto
from quantool.graph.shards import ExternalData, withdraw, write_external
from quantool.graph.temporary import TemporaryFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    import onnx
    import onnx_ir

    from quantool.graph.model import Model

INLINE_LIMIT_BYTES: Final = 1_900_000_000
"""Constants beyond this go to external data: a protobuf message ends at 2 GiB."""
EXTERNAL_FROM_BYTES: Final = 1024
"""Smaller constants stay in the model even then: shapes and axes, which loaders want to see at once."""
NO_PROVENANCE: Final[Mapping[str, str]] = MappingProxyType({})


class Pending:
    """A model that is written but not in place; a context manager that leaves nothing unless committed.

    Attributes:
        path: where it will be.
        sha256: of the model file.
        size_bytes: of the model and its external data.
        external: name of each external data file -> its content, mapped; empty without external data. ONNX Runtime
            takes it as ``add_external_initializers_from_files_in_memory``, since the files have no names yet.
    """

    def __init__(self, path: Path, *, force: bool, model: TemporaryFile, data: ExternalData | None) -> None:
        self.path = path
        self._force = force
        self._model = model
        self._data = data
        self.sha256 = _digest(model)
        shards = () if data is None else data.shards
        self.size_bytes = _size(model) + sum(shard.size_bytes for shard in shards)
        self.external: Mapping[str, mmap.mmap] = {shard.name: shard.mapped() for shard in shards}

    def read(self) -> bytes:
        """The bytes of the model file."""
        self._model.file.seek(0)
        return self._model.file.read()

    def commit(self) -> Path:
        """Publish the external data, then the model.

        Raises:
            OptionError: the destination has appeared meanwhile, or cannot be written.
        """
        published: list[Path] = []
        try:
            if self._data is not None:
                self._model.sync()
                published = self._data.publish(self.path.parent)
            self._model.publish(self.path.name, replace=self._force)
        except BaseException as error:
            withdraw(published)
            if isinstance(error, FileExistsError):
                raise already_there(self.path) from error
            if isinstance(error, OSError):
                raise unwritable(self.path, error) from error
            raise
        return self.path

    def discard(self) -> None:
        """Leave nothing behind that was not committed."""
        for content in self.external.values():
            with contextlib.suppress(BufferError):  # a session still looks at it; it goes with the session
                content.close()
        self._model.discard()
        if self._data is not None:
            self._data.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


def write_temporary(
    model: Model,
    destination: Path,
    *,
    force: bool = False,
    provenance: Mapping[str, str] = NO_PROVENANCE,
    external: bool | None = None,
    shard_bytes: int | None = None,
    threads: int = 1,
) -> Pending:
    """Write a model to a file without a name in the folder of its destination.

    provenance: entries for metadata_props, under ``quantool.*``. external: whether constants go to a file of
    their own, beside the model and named by its content; by default where they would not fit into one, or where
    shard_bytes, the most that one such file should hold, is given. Large constants are computed and written one at
    a time then, by `threads` threads.

    Raises:
        OptionError: the destination cannot be written, has no room, or exists without `force`.
    """
    refuse_overwrite(destination, force=force)
    size = _size_of_constants(model)
    refuse_full_disk(destination.parent, size)
    is_external = shard_bytes is not None or size > INLINE_LIMIT_BYTES if external is None else external
    file: TemporaryFile | None = None
    data: ExternalData | None = None
    try:
        if is_external:
            data = write_external(_large_constants(model), destination, shard_bytes=shard_bytes, threads=threads)
        proto = _proto(model, provenance, data=data)
        file = TemporaryFile(destination.parent, destination.name)
        file.file.write(proto.SerializeToString(deterministic=True))
        file.file.flush()
        return Pending(destination, force=force, model=file, data=data)
    except BaseException as error:
        for written in (file, data):
            if written is not None:
                written.discard()
        if isinstance(error, OSError):
            raise unwritable(destination, error) from error
        raise


def model_proto(model: Model, *, provenance: Mapping[str, str] = NO_PROVENANCE) -> onnx.ModelProto:
    """The model as one message with all constants inside.

    Raises:
        ModelError: it is too large for that.
    """
    size_bytes = _size_of_constants(model)
    if size_bytes > INLINE_LIMIT_BYTES:
        raise ModelError(
            "model-too-large",
            f"the constants take {size_bytes / 1e9:.1f} GB, more than one message holds",
            where="the result",
            fix="Have it written to a file: external data has no such limit.",
        )
    return _proto(model, provenance, data=None)


def check(data: bytes, before: str | None, *, has_external: bool = False) -> None:
    """Run onnx.checker on a written model, as far as the model as given passed it.

    before: what the checker said of the model as given, or None; ONNX Runtime runs models that fail it.
    has_external: tensors in external data count as inputs, because the checker would look for the file.

    Raises:
        VerificationError: the result fails and the model as given did not.
    """
    import onnx

    if before is not None:
        return
    proto = onnx.ModelProto.FromString(data)
    if has_external:
        _external_as_inputs(proto.graph)
    problem = checker_error(proto)
    if problem is not None:
        raise VerificationError(
            "checker-failed",
            f"the result fails onnx.checker, which the model as given passed: {problem}",
            where="the result",
            fix="This is a fault of quantool: please report it, with the model.",
        )


def _external_as_inputs(graph: onnx.GraphProto) -> None:
    import onnx

    kept = []
    for tensor in graph.initializer:
        if tensor.data_location == tensor.EXTERNAL:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            kept.append(tensor)
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _large_constants(model: Model) -> Iterator[tuple[str, onnx_ir.TensorProtocol]]:
    import onnx_ir

    for name, value in model.ir.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.dtype == onnx_ir.DataType.STRING:
            continue
        if tensor.nbytes >= EXTERNAL_FROM_BYTES:
            yield name, tensor


def _size_of_constants(model: Model) -> int:
    tensors = (value.const_value for value in model.ir.graph.initializers.values())
    return sum(int(tensor.nbytes) for tensor in tensors if tensor is not None)


def _proto(model: Model, provenance: Mapping[str, str], *, data: ExternalData | None) -> onnx.ModelProto:
    """The model as a message; what `data` holds is referred to, everything else is inside."""
    import onnx_ir

    with paused_collector(), _referring(model, data):
        try:
            proto = to_proto(model)
        except onnx_ir.serde.SerdeError as error:
            raise _our_cause(error) from error
        _embed(model, proto, data=data)
    entries = {entry.key: entry.value for entry in proto.metadata_props} | dict(sorted(provenance.items()))
    del proto.metadata_props[:]
    for key, value in entries.items():
        proto.metadata_props.add(key=key, value=value)
    return proto


@contextlib.contextmanager
def _referring(model: Model, data: ExternalData | None) -> Iterator[None]:
    """Let constants refer to external data while the model is serialized."""
    import onnx_ir

    values = model.ir.graph.initializers
    places = {} if data is None else data.places
    before = {name: values[name].const_value for name in places}
    try:
        for name, place in places.items():
            tensor = before[name]
            assert tensor is not None
            shape = onnx_ir.Shape(tensor.shape.numpy())
            values[name].const_value = onnx_ir.ExternalTensor(
                place.file, place.offset, place.length, tensor.dtype, shape=shape, name=name
            )
        yield
    finally:
        for name, tensor in before.items():
            values[name].const_value = tensor


def _embed(model: Model, proto: onnx.ModelProto, *, data: ExternalData | None) -> None:
    """Put constants into the message that still refer to the external data of the model as given."""
    places = {} if data is None else data.places
    for tensor in proto.graph.initializer:
        if tensor.data_location == tensor.EXTERNAL and tensor.name not in places:
            given = model.ir.graph.initializers[tensor.name].const_value
            assert given is not None
            tensor.raw_data = given.tobytes()
            tensor.ClearField("data_location")
            del tensor.external_data[:]


def _our_cause(error: BaseException) -> BaseException:
    """The error of ours that made serializing fail, such as a constant that cannot be computed, or `error`."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, QuantoolError):
            return cause
        cause = cause.__cause__
    return error


def _digest(file: TemporaryFile) -> str:
    file.file.seek(0)
    return hashlib.file_digest(file.file, "sha256").hexdigest()


def _size(file: TemporaryFile) -> int:
    return os.fstat(file.file.fileno()).st_size
