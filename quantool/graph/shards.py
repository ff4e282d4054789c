"""External data: constants computed one after the other into files without a name, each named by its content."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from quantool.graph.destination import already_there, unwritable
from quantool.graph.temporary import TemporaryFile
from quantool.kernels.packing import pack_lowbit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    import onnx_ir

    from quantool.schema import AnyArray

ALIGNMENT_BYTES: Final = 4096
"""Where tensors start in external data, so that runtimes can map them."""
AHEAD_BYTES: Final = 64 * 1024 * 1024
"""Constants are computed ahead of the one that is written while all of them together take no more than this."""

Named = tuple[str, "onnx_ir.TensorProtocol"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a constant stands: in which file, and its offset and length in bytes."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file of external data. name: holds the hash of its content."""

    file: TemporaryFile
    name: str
    digest: str

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return os.fstat(self.file.file.fileno()).st_size

    def mapped(self) -> mmap.mmap:
        """Its content, which can be read before and after the file has a name."""
        return mmap.mmap(self.file.file.fileno(), 0, access=mmap.ACCESS_READ)

    def publish(self, folder: Path) -> bool:
        """Put the file into the folder; False where the same content is there already under its name."""
        target = folder / self.name
        try:
            self.file.publish(self.name, replace=False)
        except FileExistsError as error:
            with target.open("rb") as present:
                if hashlib.file_digest(present, "sha256").hexdigest() == self.digest:
                    return False
            raise already_there(target) from error
        except OSError as error:
            raise unwritable(target, error) from error
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalData:
    """The constants outside the model's file. places: where each stands."""

    shards: tuple[Shard, ...]
    places: Mapping[str, Place]

    def publish(self, folder: Path) -> list[Path]:
        """Put all files into the folder, and return those that were not there yet; none where one cannot be put."""
        for shard in self.shards:
            shard.file.sync()
        new: list[Path] = []
        try:
            new.extend(folder / shard.name for shard in self.shards if shard.publish(folder))
        except BaseException:
            withdraw(new)
            raise
        return new

    def discard(self) -> None:
        """Leave nothing of files that were not published."""
        for shard in self.shards:
            shard.file.discard()


def withdraw(published: Iterable[Path]) -> None:
    """Remove files that were put in place for a model that was not."""
    for path in published:
        path.unlink(missing_ok=True)


def write_external(
    tensors: Iterable[Named], destination: Path, *, shard_bytes: int | None = None, threads: int = 1
) -> ExternalData:
    """Write constants, in their order and each aligned, to files beside a destination.

    shard_bytes: a file ends before it would grow beyond this; a constant that is larger stands alone. threads: of
    those that compute the next constants while one is written; the files are the same whatever their number.
    """
    writer = _Writer(destination, shard_bytes)
    try:
        for name, content in _contents(tensors, threads):
            writer.add(name, content)
        return writer.finished()
    except BaseException:
        writer.discard()
        raise


class _Writer:
    """Writes constants to one file after the other, and counts their hashes on the way."""

    def __init__(self, destination: Path, shard_bytes: int | None) -> None:
        self._destination = destination
        self._limit = shard_bytes
        self._shards: list[Shard] = []
        self._places: dict[str, Place] = {}
        self._held: dict[str, tuple[int, int]] = {}
        self._size = 0
        self._begin()

    def add(self, name: str, content: memoryview) -> None:
        """Write one constant."""
        offset = -(-self._size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if self._limit is not None and self._held and offset + len(content) > self._limit:
            self._end()
            self._begin()
            offset = 0
        for part in (bytes(offset - self._size), content):
            self._file.file.write(part)
            self._hash.update(part)
        self._size = offset + len(content)
        self._held[name] = (offset, len(content))

    def finished(self) -> ExternalData:
        """All files; one at least, that can be mapped even if nothing refers to it."""
        if not self._held:
            self.add("", memoryview(b"\0"))
        self._end()
        return ExternalData(shards=tuple(self._shards), places=self._places)

    def discard(self) -> None:
        """Leave nothing of what was written."""
        for shard in self._shards:
            shard.file.discard()
        self._file.discard()

    def _begin(self) -> None:
        self._file = TemporaryFile(self._destination.parent, self._destination.name)
        self._hash, self._size = hashlib.sha256(), 0

    def _end(self) -> None:
        self._file.file.flush()
        digest = self._hash.hexdigest()
        name = f"{self._destination.stem}.{digest[:16]}.data"
        self._shards.append(Shard(file=self._file, name=name, digest=digest))
        self._places.update({held: Place(name, *place) for held, place in self._held.items() if held})
        self._held = {}


def _contents(tensors: Iterable[Named], threads: int) -> Iterator[tuple[str, memoryview]]:
    """Each constant's bytes, in order; with several threads the next ones are computed ahead, within bounds."""
    if threads == 1:
        for name, tensor in tensors:
            yield name, content_of(tensor)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[tuple[str, int, Future[memoryview]]] = deque()
        for name, tensor in tensors:
            while waiting and sum(size for _, size, _ in waiting) + tensor.nbytes > AHEAD_BYTES:
                yield _next(waiting)
            waiting.append((name, tensor.nbytes, pool.submit(content_of, tensor)))
            if len(waiting) > threads:
                yield _next(waiting)
        while waiting:
            yield _next(waiting)


def _next(waiting: deque[tuple[str, int, Future[memoryview]]]) -> tuple[str, memoryview]:
    name, _, future = waiting.popleft()
    return name, future.result()


def content_of(tensor: onnx_ir.TensorProtocol) -> memoryview:
    """A constant as raw data holds it, without a copy where its array is laid out so."""
    array: AnyArray = np.ascontiguousarray(tensor.numpy())
    packed = pack_lowbit(array) if tensor.dtype.bitwidth < 8 else array.reshape(-1).view(np.uint8)
    return packed.data
