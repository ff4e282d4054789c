"""quantool check."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from quantool.cli.command import Command, Given, Outcome, outcome_of
from quantool.cli.options import FILES, GATES, RUN_OPTIONS, Option
from quantool.errors import OptionError

OWN: Final[dict[str, Option]] = {
    "baseline": Option(panel=FILES, metavar="LAST.json", help="Hold the report against this one, of an earlier run."),
    "tolerance": Option(
        panel=GATES, metavar="NAME=VALUE", many=True,
        help="Let this get worse by VALUE: an amount (sqnr=0.5), a share of the baseline (speedup=10%), or off. "
             "Repeatable. Default: nodes=0, integer-nodes=0 (counts), sqnr=0.5, channel-sqnr=1 (dB), agreement=0.005, "
             "kl=0.005 (nats), metric=0.005 (its own unit), size=1%, speedup=10%, latency=off (ms), coverage=0, "
             "weight-coverage=0 (fractions).",
    ),
}  # fmt: skip


def run(given: Given) -> Outcome:
    """Fail where a run is worse than an earlier one."""
    from quantool import pipeline
    from quantool.requests import CheckRequest

    baseline = given.path("baseline")
    if baseline is None:
        what = "check was not told what to compare with"
        raise OptionError("missing-option", what, where="--baseline", fix="Add --baseline LAST.json.")
    current = Path(given.text("report_file"))
    request = CheckRequest(report=current, baseline=baseline, tolerances=given.texts("tolerance"))
    report = pipeline.check(request)
    return outcome_of(report, lambda screen: screen.summary(report, verbose=given.flag("verbose")))


COMMAND = Command(
    name="check",
    help="Fail where a run's report is worse than an earlier one.",
    example="quantool check report.json --baseline last.json --tolerance speedup=20%",
    arguments=("report_file",),
    options=("baseline", "tolerance", "report", "force", *RUN_OPTIONS),
    run=run,
    own=OWN,
)
