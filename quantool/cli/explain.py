"""quantool explain."""

from __future__ import annotations

from quantool.cli.command import Command, Given, Outcome, outcome_of
from quantool.cli.options import METHOD_OPTIONS, RUN_OPTIONS


def run(given: Given) -> Outcome:
    """Plan, and change nothing."""
    from quantool import pipeline
    from quantool.requests import ExplainRequest

    report = pipeline.explain(ExplainRequest(model=given.text("model"), recipe=given.recipe()))
    return outcome_of(report, lambda screen: screen.explanation(report))


COMMAND = Command(
    name="explain",
    help="List every node: quantized, or why not and what would help.",
    example="quantool explain model.onnx --target cpu-x64",
    arguments=("model",),
    options=("recipe", *METHOD_OPTIONS, *RUN_OPTIONS),
    run=run,
)
