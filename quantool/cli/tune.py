"""quantool tune."""

from __future__ import annotations

import sys
from typing import Final

from quantool.cli.command import Command, Given, Outcome, outcome_of
from quantool.cli.options import DIVISION, FILES, MODEL_OUTPUT, OPTIONS, RUN, RUN_OPTIONS, Option

#: options of quantize that a search decides or that have no place in one
_DECIDED: Final = (
    "verify_data",
    "ranges",
    "mode",
    "effort",
    "collect",
    "no_verify",
    "io",
    "memory",
    "target_size",
    *RUN_OPTIONS,
)

OWN: Final = {
    "output": MODEL_OUTPUT,
    "eval": Option(
        panel=FILES, metavar="E", many=True,
        help="Judge candidates on this, labels in arrays 'label...' beside the inputs. Repeatable. Default: at most "
             "16 samples held out of --data.",
    ),
    "budget": Option(panel=RUN, metavar="MINUTES", kind=float, help="Start no new candidate after this time."),
    "min_sqnr": Option(
        panel=OPTIONS["min_sqnr"].panel, metavar="DB", kind=float,
        help="Look for this SQNR of every output, in dB. Default without another target: 30.",
    ),
}  # fmt: skip


def run(given: Given) -> Outcome:
    """Search, make the winner, and write it with its recipe."""
    from quantool import pipeline
    from quantool.requests import TuneRequest

    silent = given.flag("quiet") or given.flag("json")
    request = TuneRequest(
        model=given.text("model"),
        recipe=given.recipe(),
        data=given.data(),
        eval_data=given.data("eval"),
        budget=given.number("budget", float),
        output=given.path("output"),
        write=True,
        force=given.flag("force"),
        reads=given.reads(),
        reports=given.paths("report"),
        progress=given.progress,
        detailed=given.detailed,
        told=None if silent else _tell,
    )
    report = pipeline.tune(request).report
    return outcome_of(report, lambda screen: screen.summary(report, verbose=given.flag("verbose")))


def _tell(line: str) -> None:
    """Progress, on the stream of messages."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


COMMAND = Command(
    name="tune",
    help="Search for the recipe that meets a target; write its model.",
    example="quantool tune m.onnx --data c.npz --eval e.npz --metric top1 --max-drop 0.01",
    arguments=("model",),
    options=(
        *(name for name in OPTIONS if name not in (*_DECIDED, *DIVISION)),
        "eval",
        "budget",
        *RUN_OPTIONS,
    ),
    run=run,
    own=OWN,
)
