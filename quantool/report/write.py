"""Writing reports: the renderer by suffix, the checks before any work, and publishing in one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def check_paths(
    reports: Sequence[Path], *, output: Path | None = None, reads: Sequence[Path] = (), force: bool = False
) -> None:
    """Refuse reports that could not or must not be written, before any work.

    output: where the run writes its result; reads: what it reads. No report may replace either.

    Raises:
        OptionError: an unknown suffix, a missing folder, an existing file without `force`, or a path that the
            run reads or that is asked for twice.
    """
    written = set() if output is None else {output.resolve()}
    for path in reports:
        if path.suffix not in RENDERERS:
            what, fix = f"has the unknown suffix '{path.suffix}'", f"Use one of {', '.join(RENDERERS)}."
            raise OptionError("unknown-report", f"The report '{path}' {what}", where=f"--report {path}", fix=fix)
        if path.resolve() in written:
            what, fix = "is asked for twice", "Give the output and each report its own path."
            raise OptionError("report-twice", f"The report '{path}' {what}", where=f"--report {path}", fix=fix)
        written.add(path.resolve())
    if reports:
        from quantool.graph.destination import refuse_overwrite  # loads the graph package, so only where needed

        for path in reports:
            refuse_overwrite(path, reads=reads, force=force)


def write_reports(report: Report, paths: Sequence[Path]) -> None:
    """Render a report into each file by its suffix; each appears whole or not at all.

    Raises:
        OptionError: the system would not write one.
    """
    if not paths:
        return
    from quantool.graph.temporary import publish  # loads the graph package, so only where needed

    for path in paths:
        render: Callable[[Report], str] = import_module(RENDERERS[path.suffix]).render
        publish(path, render(report).encode("utf-8"), force=True)
