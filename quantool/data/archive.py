"""Arrays in .npy files and .npz archives, read row by row, without pickle."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from quantool.errors import DataError
from quantool.schema import AnyArray

_UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, KeyError, zipfile.BadZipFile, zlib.error)
_SUFFIX = ".npy"


@dataclass(frozen=True, slots=True)
class Layout:
    """What an array's header says."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[np.generic]


class RowReader:
    """An open array, of which no more rows than asked for are in memory; those before are skipped.

    Raises:
        DataError: by each method, where the file is damaged.
    """

    __slots__ = ("_file", "_layout", "_path", "_start", "_whole")

    def __init__(self, path: Path, file: IO[bytes], layout: Layout) -> None:
        self._path = path
        self._file = file
        self._layout = layout
        self._start = file.tell()
        self._whole: AnyArray | None = None

    def rows(self, first: int, count: int) -> AnyArray:
        """Some rows of axis 0; going back to earlier ones costs as much as reading anew."""
        shape = (count, *self._layout.shape[1:])
        if not self._layout.fortran or len(shape) == 1:
            return self._read(shape, skipped=first * math.prod(shape[1:]))
        # Column-major rows are scattered over the file.
        if self._whole is None:
            self._whole = self.all()
        return self._whole[first : first + count]

    def all(self) -> AnyArray:
        """The whole array, of any rank."""
        if self._layout.fortran:
            return self._read(self._layout.shape[::-1]).T
        return self._read(self._layout.shape)

    def _read(self, shape: tuple[int, ...], *, skipped: int = 0) -> AnyArray:
        try:
            return self._found(shape, skipped)
        except _UNREADABLE as error:
            raise _damaged(self._path, error) from error

    def _found(self, shape: tuple[int, ...], skipped: int) -> AnyArray:
        dtype = self._layout.dtype
        wanted = math.prod(shape) * dtype.itemsize
        self._file.seek(self._start + skipped * dtype.itemsize)
        content = self._file.read(wanted)
        if len(content) != wanted:
            raise EOFError(f"the array ends after {len(content)} of {wanted} bytes")
        return np.frombuffer(content, dtype).reshape(shape)


def layouts(path: Path) -> dict[str, Layout]:
    """The header of each array of an .npz archive by name, or of a .npy file under "".

    Raises:
        DataError: missing, damaged, or holding pickled objects.
    """
    with opened(path) as arrays:
        return {name: layout for name, (layout, _) in arrays.items()}


@contextmanager
def row_readers(path: Path, names: Iterable[str]) -> Iterator[dict[str, RowReader]]:
    """Open some arrays of a file for reading side by side.

    Raises:
        DataError: the file is damaged, also while rows are read.
    """
    with opened(path) as arrays, ExitStack() as stack:
        yield {name: RowReader(path, stack.enter_context(arrays[name][1]()), arrays[name][0]) for name in names}


@contextmanager
def opened(path: Path) -> Iterator[dict[str, tuple[Layout, Callable[[], IO[bytes]]]]]:
    """Each array's layout, and what opens it behind its header. Trouble with the file becomes a DataError."""
    try:
        with ExitStack() as stack:
            if path.suffix.lower() == _SUFFIX:
                found: dict[str, Callable[[], IO[bytes]]] = {"": lambda: path.open("rb")}
            else:
                archive = stack.enter_context(zipfile.ZipFile(path))
                found = {
                    info.filename.removesuffix(_SUFFIX): _opener(archive, info)
                    for info in archive.infolist()
                    if info.filename.endswith(_SUFFIX)
                }
            yield {name: (_layout_of(opener), _behind_header(opener)) for name, opener in found.items()}
    except _UNREADABLE as error:
        raise _damaged(path, error) from error


def _opener(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[], IO[bytes]]:
    return lambda: archive.open(info)


def _behind_header(opener: Callable[[], IO[bytes]]) -> Callable[[], IO[bytes]]:
    def behind() -> IO[bytes]:
        file = opener()
        _header(file)
        return file

    return behind


def _layout_of(opener: Callable[[], IO[bytes]]) -> Layout:
    with opener() as file:
        return _header(file)


def _header(file: IO[bytes]) -> Layout:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds pickled Python objects, which may run code and are not read")
    return Layout(shape, fortran, dtype)


def _damaged(path: Path, error: BaseException) -> DataError:
    reason = f"{error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)
    return DataError(
        "data-unreadable",
        f"the file is no readable {path.suffix} file: {reason}",
        where=str(path),
        fix="Write it again with np.savez(path, **arrays) or np.save(path, array), numbers only.",
    )
