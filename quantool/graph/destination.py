"""Whether a file may be written, asked before any work."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from quantool.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def refuse_overwrite(output: Path, *, reads: Sequence[Path] = (), force: bool = False) -> None:
    """Refuse an output that cannot be written, exists without `force`, or is a file that the run reads.

    reads: files and folders; a symbolic or hard link to one of them, or to a file in such a folder, counts as it.

    Raises:
        OptionError: the reason, naming the path.
    """
    folder = output.parent
    if not folder.is_dir():
        _refuse("no-folder", output, f"lies in no folder: '{folder}' does not exist", "Make the folder first.")
    if output.is_dir():
        _refuse("output-is-folder", output, "is a folder", "Give the path of a file.")
    if not os.access(folder, os.W_OK | os.X_OK):
        _refuse("output-unwritable", output, f"lies in the read-only folder '{folder}'", "Choose another folder.")
    if not os.path.lexists(output):
        return
    if output.exists():
        source = next((path for path in reads if _is_read(output, path)), None)
        if source is not None:
            _refuse("output-is-input", output, f"is read by this run, as '{source}'", "Choose another output.")
    if not force:
        raise already_there(output)


def refuse_full_disk(folder: Path, needed: int) -> None:
    """Refuse a folder whose file system has less room than a result of this size in bytes needs.

    Raises:
        OptionError: ``disk-full``, with what is needed and what is free.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OptionError(
            "disk-full",
            f"the result takes at least {needed / 1e9:.2f} GB, the disk has {free / 1e9:.2f} GB free",
            where=str(folder),
            fix=f"Free {(needed - free) / 1e9:.2f} GB there, or choose another folder with -o.",
        )


def already_there(output: Path) -> OptionError:
    """The error for an output that exists and may not be replaced."""
    return OptionError(
        "output-exists",
        f"the output '{output}' exists already",
        where=str(output),
        fix="Add --force to replace it, or choose another output.",
    )


def unwritable(output: Path, error: OSError) -> OptionError:
    """The error for an output that the system would not write."""
    return OptionError(
        "output-unwritable",
        f"the output '{output}' cannot be written: {error.strerror or error}",
        where=str(output),
        fix="Free space, or choose a folder that you may write to.",
    )


def _is_read(output: Path, read: Path) -> bool:
    return any(output.samefile(path) for path in _files(read))


def _files(path: Path) -> Iterator[Path]:
    """A path itself, and all that is in it where it is a folder."""
    if path.exists():
        yield path
    if path.is_dir():
        yield from (inner for inner in path.rglob("*") if inner.exists())


def _refuse(code: str, output: Path, what: str, fix: str) -> NoReturn:
    raise OptionError(code, f"the output '{output}' {what}", where=str(output), fix=fix)
