"""Which files a source is read from, so that no run replaces what it reads."""

from __future__ import annotations

from pathlib import Path

from quantool.data.folder import ARRAY_SUFFIXES, data_sets_in, visible
from quantool.data.images import IMAGE_SUFFIXES


def files_read(*sources: object) -> tuple[Path, ...]:
    """The files behind sources: a file itself, of a folder only those that are read, of feeds in memory none.

    A model may lie in the folder of its data, and so may its result.
    """
    parts = [part for source in sources for part in (source if isinstance(source, list | tuple) else (source,))]
    return tuple(file for part in parts if isinstance(part, str | Path) for file in _files(Path(part)))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if sets := data_sets_in(path):
        return [file for folder in sets for file in sorted(folder.glob("input_*.pb"))]
    return visible(path, ARRAY_SUFFIXES) or visible(path, IMAGE_SUFFIXES)
