"""A file that nobody sees until it is published in one step."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quantool.graph.destination import already_there, unwritable

if TYPE_CHECKING:
    import io

DESCRIPTORS: Final = Path("/proc/self/fd")
"""Where Linux shows open files under their numbers; an unnamed file gets its name through it."""


class TemporaryFile:
    """A new file in a folder, without a name where the system can do that, else hidden.

    An unnamed file vanishes with the process, however that ends. A hidden one that a killed run left is removed
    by the next run that writes the same name; a lock tells it from one that is still being written.

    Attributes:
        file: the open file, to be written and read.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._hidden: Path | None = None
        _remove_left_over(folder, name)
        descriptor = _open_unnamed(folder)
        if descriptor is None:
            self._hidden = self._hidden_path()
            descriptor = os.open(self._hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        self.file: io.BufferedRandom = os.fdopen(descriptor, "w+b")
        _lock(descriptor)

    def sync(self) -> None:
        """Wait until the content is on the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def publish(self, name: str, *, replace: bool) -> None:
        """Give the file its name in one step, once its content is on the disk.

        Raises:
            FileExistsError: the name is taken and `replace` is not set.
        """
        self.sync()
        if sys.platform == "win32":  # where an open file cannot be renamed
            self.file.close()
        target = self._folder / name
        if not replace or not os.path.lexists(target):
            self._publish_new(target)
        else:
            if self._hidden is None:
                self._hidden = self._hidden_path()
                _name_unnamed(self.file.fileno(), self._hidden)
            self._hidden.replace(target)
            self._hidden = None
        self.file.close()

    def _publish_new(self, target: Path) -> None:
        if self._hidden is None:
            _name_unnamed(self.file.fileno(), target)
            return
        try:
            os.link(self._hidden, target)
            self._hidden.unlink()
        except FileExistsError:
            raise
        except OSError:  # no hard links here; what appears at the target in this instant would be replaced
            if os.path.lexists(target):
                raise FileExistsError(target) from None
            self._hidden.rename(target)
        self._hidden = None

    def discard(self) -> None:
        """Close the file and leave nothing of it, unless it was published."""
        self.file.close()
        if self._hidden is not None:
            self._hidden.unlink(missing_ok=True)
            self._hidden = None

    def _hidden_path(self) -> Path:
        return self._folder / f".{self._name}.quantool-{secrets.token_hex(4)}"


def publish(target: Path, content: bytes, *, force: bool) -> None:
    """Write a file that appears whole or not at all.

    Raises:
        OptionError: it exists and `force` is not set, or the system would not write it.
    """
    try:
        temporary = TemporaryFile(target.parent, target.name)
        try:
            temporary.file.write(content)
            temporary.publish(target.name, replace=force)
        finally:
            temporary.discard()
    except FileExistsError as error:
        raise already_there(target) from error
    except OSError as error:
        raise unwritable(target, error) from error


def _open_unnamed(folder: Path) -> int | None:
    """A new file without a name, or None where the system or the file system has no such thing."""
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None or not DESCRIPTORS.is_dir():
        return None
    try:
        return os.open(folder, flag | os.O_RDWR, 0o666)
    except (PermissionError, FileNotFoundError, NotADirectoryError):
        raise
    except OSError:
        return None


def _name_unnamed(descriptor: int, target: Path) -> None:
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        # Only with a folder does Python call linkat, which follows the link that /proc shows.
        os.link(f"{DESCRIPTORS}/{descriptor}", target.absolute(), src_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _remove_left_over(folder: Path, name: str) -> None:
    for path in sorted(folder.glob(f".{glob.escape(name)}.quantool-*")):
        with contextlib.suppress(OSError), path.open("r+b") as file:
            _lock(file.fileno(), strict=True)
            path.unlink()


def _lock(descriptor: int, *, strict: bool = False) -> None:
    """Lock a file that is being written; with `strict`, fail where another process does that."""
    if sys.platform == "win32":  # where nobody can remove an open file anyway
        return
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if strict:
            raise
