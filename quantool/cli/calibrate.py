"""quantool calibrate."""

from __future__ import annotations

from quantool.cli.command import Command, Given, Outcome, outcome_of
from quantool.cli.options import RUN_OPTIONS
from quantool.errors import OptionError


def run(given: Given) -> Outcome:
    """Gather statistics once, to decide later."""
    from quantool import pipeline
    from quantool.requests import CalibrateRequest

    output = given.path("output")
    if output is None:
        what = "calibrate was not told where to write"
        raise OptionError("missing-option", what, where="--output", fix="Add -o FILE.qcal.")
    request = CalibrateRequest(
        model=given.text("model"),
        recipe=given.recipe(),
        data=given.data(),
        output=output,
        force=given.flag("force"),
        reads=given.reads(),
        progress=given.progress,
    )
    report = pipeline.calibrate(request).report
    return outcome_of(report, lambda screen: screen.summary(report, verbose=given.flag("verbose")))


COMMAND = Command(
    name="calibrate",
    help="Gather statistics in one pass, for any later --ranges.",
    example="quantool calibrate model.onnx --data calib.npz -o model.qcal",
    arguments=("model",),
    options=(
        "output",
        "data",
        "recipe",
        "force",
        "target",
        "calibrator",
        "collect",
        "include",
        "exclude",
        "include_op",
        "exclude_op",
        "samples",
        "batch_size",
        "preprocess",
        "seed",
        "allow_nonfinite",
        "memory",
        "threads",
        *RUN_OPTIONS,
    ),
    run=run,
)
