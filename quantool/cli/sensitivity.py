"""quantool sensitivity."""

from __future__ import annotations

from typing import Final

from quantool.cli.command import Command, Given, Outcome, envelope
from quantool.cli.options import DATA, FILES, METHOD_OPTIONS, RUN_OPTIONS, Option
from quantool.errors import OptionError

SHOWN: Final = 20

#: options that this command alone has, or that take other values here
OWN: Final[dict[str, Option]] = {
    "output": Option(
        panel=FILES, metavar="RECIPE.toml", flags=("-o", "--output"),
        help="Write a recipe that leaves those operators in float which are better left there.",
    ),
    "top": Option(panel=DATA, metavar="N", kind=int, default=str(SHOWN), help="Print the N worst; --json has all."),
}  # fmt: skip


def run(given: Given) -> Outcome:
    """Measure what rounding each operator costs."""
    from quantool import pipeline
    from quantool.requests import SensitivityRequest

    top = given.number("top", int)
    if top is not None and top < 1:
        raise OptionError("bad-value", f"--top is {top}", where="--top", fix="Give 1 or more.")
    request = SensitivityRequest(
        model=given.text("model"),
        recipe=given.recipe(),
        data=given.data(),
        output=given.path("output"),
        force=given.flag("force"),
        reads=given.reads(),
        progress=given.progress,
    )
    found = pipeline.sensitivity(request)
    return Outcome(
        exit_code=0,
        document=lambda: envelope(given.command, found.to_dict()),
        show=lambda screen: screen.sensitivity(found, top=top or SHOWN),
    )


COMMAND = Command(
    name="sensitivity",
    help="Rank operators by the error that each causes.",
    example="quantool sensitivity model.onnx --data calib.npz -o model.toml",
    arguments=("model",),
    options=(
        "output",
        "data",
        "recipe",
        "force",
        *METHOD_OPTIONS,
        "samples",
        "batch_size",
        "preprocess",
        "seed",
        "allow_nonfinite",
        "threads",
        "top",
        *RUN_OPTIONS,
    ),
    run=run,
    own=OWN,
)
