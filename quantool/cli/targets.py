"""quantool targets."""

from __future__ import annotations

from quantool.cli.command import Command, Given, Outcome, envelope
from quantool.cli.options import RUN_OPTIONS

SHOWN = ("name", "description", "activations", "weights", "verified_with", "source")


def run(given: Given) -> Outcome:
    """List what --target takes."""
    from quantool.targets import load_all

    rows = [{key: str(getattr(target, key)) for key in SHOWN} for target in load_all()]
    header = [key.replace("_", " ") for key in SHOWN[:-1]]
    return Outcome(
        exit_code=0,
        document=lambda: envelope(given.command, {"targets": rows}),
        show=lambda screen: screen.rows(header, [[row[key] for key in SHOWN[:-1]] for row in rows]),
    )


COMMAND = Command(
    name="targets",
    help="List the runtimes that --target takes.",
    example="quantool targets --json",
    arguments=(),
    options=RUN_OPTIONS,
    run=run,
)
