"""quantool quantize."""

from __future__ import annotations

from quantool.cli.command import Command, Given, Outcome, outcome_of
from quantool.cli.options import MODEL_OUTPUT, OPTIONS


def run(given: Given) -> Outcome:
    """Quantize, verify, publish."""
    from quantool import pipeline
    from quantool.requests import QuantizeRequest

    request = QuantizeRequest(
        model=given.text("model"),
        recipe=given.recipe(),
        data=given.data(),
        verify_data=given.data("verify_data"),
        output=given.path("output"),
        write=True,
        force=given.flag("force"),
        reads=given.reads(),
        reports=given.paths("report"),
        progress=given.progress,
        detailed=given.detailed,
    )
    report = pipeline.quantize(request).report
    return outcome_of(report, lambda screen: screen.summary(report, verbose=given.flag("verbose")))


COMMAND = Command(
    name="quantize",
    help="Quantize a model, verify it, and say whether it was worth it.",
    example="quantool quantize model.onnx --data calib.npz -o model.int8.onnx",
    arguments=("model",),
    options=tuple(OPTIONS),
    run=run,
    own={"output": MODEL_OUTPUT},
)
