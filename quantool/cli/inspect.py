"""quantool inspect."""

from __future__ import annotations

from pathlib import Path

from quantool.cli.command import Command, Given, Outcome, envelope
from quantool.cli.options import RUN_OPTIONS


def run(given: Given) -> Outcome:
    """Describe a model, or a file of statistics."""
    from quantool import pipeline
    from quantool.requests import InspectRequest

    path = Path(given.text("model"))
    if path.suffix == ".qcal":
        statistics = pipeline.inspect_stats(path)
        return Outcome(
            exit_code=0,
            document=lambda: envelope(given.command, statistics.to_dict()),
            show=lambda screen: screen.statistics(statistics),
        )
    found = pipeline.inspect(InspectRequest(model=given.text("model")))
    return Outcome(
        exit_code=0,
        document=lambda: envelope(given.command, found.to_dict()),
        show=lambda screen: screen.inspection(found),
    )


COMMAND = Command(
    name="inspect",
    help="Describe a model, or the statistics in a .qcal file.",
    example="quantool inspect model.onnx",
    arguments=("model",),
    options=RUN_OPTIONS,
    run=run,
)
