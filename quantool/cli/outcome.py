"""From a run to what is printed, which reports are written, and the exit code."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from quantool.cli.command import Given, Outcome, outcome_of
from quantool.cli.github import append_summary, runs_there, safe_document, safe_page
from quantool.errors import OptionError, QuantoolError

if TYPE_CHECKING:
    from quantool.report.console import Screen
    from quantool.report.model import Report


class InternalError(QuantoolError):
    """A defect of quantool itself: no result, and nothing the user did wrong."""

    exit_code = 3


def failure(given: Given, error: Exception) -> Outcome:
    """The outcome of a run that an error ended, whatever error it is."""
    from quantool.report import model

    if given.flag("debug"):
        traceback.print_exception(error)
    report = model.Report.failed(given.command, _as_quantool_error(error, given), model=given.model)
    verbose = given.flag("verbose")
    return outcome_of(
        report, lambda screen: screen.summary(report, verbose=verbose) if report.nodes or report.check else None
    )


def finish(given: Given, outcome: Outcome, reports: Sequence[Path]) -> int:
    """Write the reports asked for, print what came out, and give the exit code."""
    outcome = outcome.asked_by(given.line)
    report = outcome.report
    if report is not None and reports:
        from quantool.report.write import write_reports

        try:
            write_reports(report, reports)
        except OptionError as error:
            error.report = report  # what was done is done, and is told
            return finish(given, failure(given, error), ())
    if report is not None and report.errors:
        _emit(sys.stderr, _page(lambda screen: screen.failures(report.errors), sys.stderr))
    if report is not None and runs_there():
        _tell_github(given, report)
    if given.flag("json"):
        from quantool.report.json import document

        written = _emit(sys.stdout, safe_document(document(outcome.document())))
    else:
        written = given.flag("quiet") or _emit(sys.stdout, _page(outcome.show, sys.stdout))
    return outcome.exit_code if written else 2


def interrupted(stop: KeyboardInterrupt) -> int:
    """Say that a signal ended the run, and what the run has to say to that; gives the exit code of the signal."""
    _emit(sys.stderr, "\n".join(("interrupted", *getattr(stop, "__notes__", ()), "")))
    number = next(iter(stop.args), signal.SIGINT)
    return 128 + int(number)


def _as_quantool_error(error: Exception, given: Given) -> QuantoolError:
    if isinstance(error, QuantoolError):
        return error
    if isinstance(error, OSError) and error.filename is not None:
        what = f"'{error.filename}' cannot be used: {error.strerror}"
        return QuantoolError(
            "file-unusable", what, where=str(error.filename), fix="Check the path and its permissions."
        )
    what = f"quantool failed inside: {type(error).__name__}: {error}"
    return InternalError(
        "internal-error",
        what,
        where=f"quantool {given.command}",
        fix="Run again with --debug and report what it shows.",
    )


def _page(fill: Callable[[Screen], None], stream: TextIO) -> str:
    from quantool.report.console import Screen

    screen = Screen(terminal=stream.isatty())
    fill(screen)
    return safe_page(screen.text())


def _tell_github(given: Given, report: Report) -> None:
    from quantool.report.github import annotated

    _emit(sys.stderr, annotated(report, quiet=given.flag("quiet")))
    trouble = append_summary(report)
    if trouble is not None:
        _emit(sys.stderr, f"warning: {trouble}\n")


def _emit(stream: TextIO, text: str) -> bool:
    """Write all of a text; False where the stream cannot hold it. A reader that left has what it wanted."""
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except OSError as error:
        _detach(stream)
        if isinstance(error, BrokenPipeError):
            return True
        if stream is not sys.stderr:
            _emit(sys.stderr, f"error: standard output cannot be written: {error.strerror}\n")
        return False
    return True


def _detach(stream: TextIO) -> None:
    """Point a broken stream to nowhere, so that the interpreter's last flush does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
