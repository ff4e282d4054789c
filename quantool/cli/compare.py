"""quantool compare."""

from __future__ import annotations

from quantool.cli.command import Command, Given, Outcome, outcome_of
from quantool.cli.options import RUN_OPTIONS


def run(given: Given) -> Outcome:
    """Run both models on the same samples."""
    from quantool import pipeline
    from quantool.requests import CompareRequest

    request = CompareRequest(
        float_model=given.text("float_model"),
        quantized_model=given.text("quantized_model"),
        recipe=given.recipe(),
        data=given.data(),
        progress=given.progress,
        detailed=given.detailed,
    )
    report = pipeline.compare(request)
    return outcome_of(report, lambda screen: screen.summary(report, verbose=given.flag("verbose")))


COMMAND = Command(
    name="compare",
    help="Compare a quantized model with its float model on samples.",
    example="quantool compare model.onnx model.int8.onnx --data eval.npz",
    arguments=("float_model", "quantized_model"),
    options=(
        "data",
        "report",
        "force",
        "samples",
        "batch_size",
        "preprocess",
        "seed",
        "threads",
        "min_sqnr",
        "min_agreement",
        "min_speedup",
        "max_size_ratio",
        "max_drop",
        "metric",
        *RUN_OPTIONS,
    ),
    run=run,
)
