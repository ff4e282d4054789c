"""Writing reports: the renderer by suffix, the checks before any work, and publishing in one step."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Final

from quantool.errors import OptionError
from quantool.report.model import Report

RENDERERS: Final[dict[str, str]] = {
    ".json": "quantool.report.json",
    ".html": "quantool.report.html",
    ".md": "quantool.report.markdown",
    ".xml": "quantool.report.junit",
}
"""Suffix -> the module whose `render` writes it, imported only when it is asked for."""


def check_paths(reports: Iterable[Path], *, reads: Iterable[Path] = (), force: bool = False) -> None:
    """Refuse reports that could not or must not be written, before any work.

    reads: files that the run reads, which no report may replace.

    Raises:
        OptionError: an unknown suffix, a missing folder, an existing file without `force`, or a path that the
            run reads or that is asked for twice.
    """
    sources = [path for path in reads if path.exists()]
    seen: set[Path] = set()
    for path in reports:
        problem = _problem(path, force=force)
        if problem is None and any(path.exists() and path.samefile(source) for source in sources):
            problem = "report-is-input", "is a file that the run reads", "Choose another path."
        if problem is None and path.absolute() in seen:
            problem = "report-twice", "is asked for twice", "Give each report its own path."
        if problem is not None:
            code, what, fix = problem
            raise OptionError(code, f"The report '{path}' {what}", where=f"--report {path}", fix=fix)
        seen.add(path.absolute())


def _problem(path: Path, *, force: bool) -> tuple[str, str, str] | None:
    if path.suffix not in RENDERERS:
        return "unknown-report", f"has the unknown suffix '{path.suffix}'", f"Use one of {', '.join(RENDERERS)}."
    if not path.parent.is_dir():
        return "no-folder", f"lies in no folder: '{path.parent}' does not exist", "Make the folder first."
    if path.is_dir():
        return "report-is-folder", "is a folder", "Give the path of a file."
    if path.exists() and not force:
        return "report-exists", "exists already", "Add --force to replace it, or choose another path."
    return None


def write_reports(report: Report, paths: Iterable[Path]) -> None:
    """Render a report into each file by its suffix; each appears whole or not at all."""
    for path in paths:
        render: Callable[[Report], str] = import_module(RENDERERS[path.suffix]).render
        _publish(path, render(report))


def _publish(path: Path, text: str) -> None:
    hidden = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with hidden.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        hidden.replace(path)
    except OSError as error:
        what = f"The report '{path}' cannot be written: {error.strerror}"
        fix = "Free space or choose a folder that you may write to."
        raise OptionError("report-unwritable", what, where=f"--report {path}", fix=fix) from error
    finally:
        hidden.unlink(missing_ok=True)
