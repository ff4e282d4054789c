"""quantool merge."""

from __future__ import annotations

from quantool.cli.command import Command, Given, Outcome, outcome_of
from quantool.cli.options import RUN_OPTIONS
from quantool.errors import OptionError


def run(given: Given) -> Outcome:
    """Join the statistics of several calibrations."""
    from quantool import pipeline
    from quantool.requests import MergeRequest

    output = given.path("output")
    if output is None:
        what = "merge was not told where to write"
        raise OptionError("missing-option", what, where="--output", fix="Add -o ALL.qcal.")
    request = MergeRequest(parts=given.texts("files"), output=output, force=given.flag("force"))
    report = pipeline.merge(request).report
    return outcome_of(report, lambda screen: screen.summary(report, verbose=given.flag("verbose")))


COMMAND = Command(
    name="merge",
    help="Join .qcal files to that of one run over all their samples.",
    example="quantool merge s1.qcal s2.qcal s3.qcal -o all.qcal",
    arguments=("files...",),
    options=("output", "force", *RUN_OPTIONS),
    run=run,
)
