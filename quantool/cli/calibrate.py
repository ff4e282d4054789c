"""quantool calibrate."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from quantool.cli.command import Command, Given, Outcome, outcome_of
from quantool.cli.options import DIVISION, RUN_OPTIONS
from quantool.errors import OptionError


def run(given: Given) -> Outcome:
    """Gather statistics once, to decide later."""
    from quantool import pipeline
    from quantool.requests import CalibrateRequest, shard_of

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
        shard=shard_of(given.values.get("shard")),
        workers=given.number("workers", int),
        scheduler=None if given.values.get("scheduler") is None else given.text("scheduler"),
        resume=given.flag("resume"),
    )
    with _termination_interrupts():
        report = pipeline.calibrate(request).report
    return outcome_of(report, lambda screen: screen.summary(report, verbose=given.flag("verbose")))


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    """Let the signal to terminate end the run like Ctrl-C: it says how to go on, and takes its workers along."""
    if threading.current_thread() is not threading.main_thread():  # no other may set a handler
        yield
        return
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _interrupt(number: int, _: object) -> None:
    raise KeyboardInterrupt(number)


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
        *DIVISION,
        *RUN_OPTIONS,
    ),
    run=run,
)
