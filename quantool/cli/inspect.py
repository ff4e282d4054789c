"""quantool inspect."""

from __future__ import annotations

from quantool.cli.command import Command, Given, Outcome, envelope
from quantool.cli.options import RUN_OPTIONS


def run(given: Given) -> Outcome:
    """Describe a model."""
    from quantool import pipeline
    from quantool.requests import InspectRequest

    found = pipeline.inspect(InspectRequest(model=given.text("model")))
    return Outcome(
        exit_code=0,
        document=lambda: envelope(given.command, found.to_dict()),
        show=lambda screen: screen.inspection(found),
    )


COMMAND = Command(
    name="inspect",
    help="Describe a model and how much of it could be quantized.",
    example="quantool inspect model.onnx",
    arguments=("model",),
    options=RUN_OPTIONS,
    run=run,
)
