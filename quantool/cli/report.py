"""quantool report."""

from __future__ import annotations

from quantool.cli.command import Command, Given, Outcome, envelope
from quantool.cli.options import RUN_OPTIONS
from quantool.errors import OptionError


def run(given: Given) -> Outcome:
    """Render a report again, in the form that the output's suffix names."""
    from pathlib import Path

    from quantool.report.read import read_report
    from quantool.report.write import check_paths, write_reports

    output, source = given.path("output"), Path(given.text("report_file"))
    if output is None:
        what = "report was not told what to write"
        raise OptionError("missing-option", what, where="--output", fix="Add -o R.html, R.md or R.xml.")
    check_paths((output,), reads=(source,), force=given.flag("force"))
    found = read_report(source)
    write_reports(found, (output,))
    document = envelope("report", {"report": str(source), "output": {"path": str(output)}})
    return Outcome(exit_code=0, document=lambda: document, show=lambda screen: screen.verbatim(f"Wrote {output}."))


COMMAND = Command(
    name="report",
    help="Render a saved report as a page, Markdown or JUnit XML.",
    example="quantool report report.json -o report.html",
    arguments=("report_file",),
    options=("output", "force", *RUN_OPTIONS),
    run=run,
)
