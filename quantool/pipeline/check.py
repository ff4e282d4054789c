"""check: a run's report against that of an earlier run."""

from __future__ import annotations

from pathlib import Path

from quantool.errors import DataError, GateError
from quantool.regression import QUANTITIES, changes_between, refuse_other_run, run_notes, tolerances_of
from quantool.report.changes import sentence, title
from quantool.report.model import Change, CheckInfo, Outcome, Report
from quantool.report.read import read_report
from quantool.report.wording import plural
from quantool.requests import CheckRequest

DEFAULTS = {quantity.name: quantity.tolerance for quantity in QUANTITIES}


def check(request: CheckRequest) -> Report:
    """Compare two reports, and list what got worse and better.

    Raises DataError where they cannot be compared, OptionError for a tolerance, and GateError, with the report of all
    comparisons, where something got worse than allowed.
    """
    tolerances = tolerances_of(request.tolerances, DEFAULTS)
    now, before = (_read(source) for source in (request.report, request.baseline))
    where = _named(request.baseline)
    refuse_other_run(before, now, where=where)
    changes = changes_between(before, now, tolerances)
    if all(change.baseline is None for change in changes):
        what = f"The baseline, a report of '{before.command}', has no figure to compare"
        raise DataError("nothing-to-compare", what, where=where, fix="Give reports of quantize, compare or tune.")
    report = Report(
        command="check",
        model=now.model,
        verdict=_verdict(changes),
        warnings=tuple(run_notes(before, now, where=where)),
        check=CheckInfo(of=now.command, report=_named(request.report), baseline=where, changes=changes),
    )
    failed = [change for change in changes if not change.passed]
    if failed:
        raise _regression(failed, report)
    return report


def _read(source: Path | Report) -> Report:
    return source if isinstance(source, Report) else read_report(source)


def _named(source: Path | Report) -> str:
    return "in memory" if isinstance(source, Report) else str(source)


def _verdict(changes: tuple[Change, ...]) -> str:
    """What failed and what improved, in one sentence or two."""
    failed = [title(change) for change in changes if not change.passed]
    better = [title(change) for change in changes if change.outcome is Outcome.IMPROVED]
    judged = sum(change.outcome is not Outcome.NOT_JUDGED and change.baseline is not None for change in changes)
    said = f"No regression in {plural(judged, 'comparison')}."
    if failed:
        said = f"Worse than the baseline: {', '.join(failed)}."
    return f"{said} Improved: {', '.join(better)}." if better else said


def _regression(failed: list[Change], report: Report) -> GateError:
    return GateError(
        "regression",
        f"{plural(len(failed), 'comparison')} failed: {'; '.join(sentence(change) for change in failed)}",
        where=", ".join(dict.fromkeys(change.quantity for change in failed)),
        fix="Find what changed, allow more with --tolerance NAME=VALUE, or take the new report as the baseline.",
        report=report,
    )
