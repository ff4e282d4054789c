"""quantool tensor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from quantool.cli.command import Command, Given, Outcome, envelope
from quantool.cli.options import DATA, FILES, METHOD, RUN_OPTIONS, Option
from quantool.errors import OptionError

if TYPE_CHECKING:
    from quantool.requests import TensorParameter

#: options that this command alone has, or that take other values here
OWN: Final[dict[str, Option]] = {
    "output": Option(
        panel=FILES, metavar="OUT.npy", flags=("-o", "--output"),
        help="Write the codes (with --dequantize the values) to this file. Default: print figures alone.",
    ),
    "formula": Option(
        panel=METHOD, metavar="onnx|onnx-symmetric|tf-min-combined|tf-min-first|tf-scaled|directml",
        help="Quantize as this operator does.",
    ),
    "type": Option(
        panel=METHOD, metavar="TYPE",
        help="Write codes of this type: int8, uint4, float8_e4m3fn ...; TensorFlow's qint8, quint8 ... too.",
    ),
    "range": Option(
        panel=METHOD, metavar="LO:HI",
        help="Compute the scale from this range; LO and HI are numbers or .npy files. Default: the array's own.",
    ),
    "scale": Option(panel=METHOD, metavar="VALUE|FILE.npy", help="Take this scale in place of a range."),
    "zero_point": Option(panel=METHOD, metavar="VALUE|FILE.npy", help="Take this zero point with --scale. Default: 0."),
    "axis": Option(
        panel=METHOD, metavar="A", kind=int, help="Give each slice along this axis its own scale. Default: one for all."
    ),
    "block_size": Option(
        panel=METHOD, metavar="B", kind=int, help="Give each block of B values along the axis its own scale (axis 1)."
    ),
    "round_mode": Option(
        panel=METHOD, metavar="half-to-even|half-away-from-zero",
        help="Round ties this way: ONNX and DirectML to even, TensorFlow as asked. Default: away from zero.",
    ),
    "ensure_minimum_range": Option(
        panel=METHOD, metavar="X", kind=float,
        help="Widen the range to X times max(1, |lo|, |hi|) at least. Default: 0.",
    ),
    "feature_level": Option(
        panel=METHOD, metavar="1.0|2.1|3.0|6.0|6.2", help="Allow what this DirectML level allows. Default: 6.2."
    ),
    "opset": Option(panel=METHOD, metavar="N", kind=int, help="Compute as ONNX does at this opset. Default: 23."),
    "dequantize": Option(panel=DATA, kind=bool, help="Go back: IN.npy holds codes, and values are written."),
}  # fmt: skip


def run(given: Given) -> Outcome:
    """Apply a formula to an array."""
    from quantool import pipeline
    from quantool.requests import TensorRequest

    request = TensorRequest(
        input=Path(given.text("in_npy")),
        formula=_required(given, "formula"),
        dtype=_required(given, "type"),
        output=given.path("output"),
        force=given.flag("force"),
        bounds=_bounds(given),
        scale=_parameter(given, "scale"),
        zero_point=_parameter(given, "zero_point"),
        axis=given.number("axis", int),
        block_size=given.number("block_size", int),
        round_mode=_round_mode(given),
        narrow_range=given.flag("narrow_range"),
        ensure_minimum_range=given.number("ensure_minimum_range", float) or 0.0,
        feature_level=None if given.values["feature_level"] is None else given.text("feature_level"),
        opset=given.number("opset", int),
        dequantize=given.flag("dequantize"),
    )
    found = pipeline.tensor(request)
    return Outcome(
        exit_code=0,
        document=lambda: envelope(given.command, found.to_dict()),
        show=lambda screen: screen.tensor(found),
    )


def _required(given: Given, name: str) -> str:
    if given.values[name] is None:
        what = f"tensor was not told the {name}"
        raise OptionError("missing-option", what, where=f"--{name}", fix=f"Add --{name} {OWN[name].metavar}.")
    return given.text(name)


def _parameter(given: Given, name: str) -> TensorParameter | None:
    return None if given.values[name] is None else _number_or_file(given.text(name), "--" + name.replace("_", "-"))


def _number_or_file(text: str, flag: str) -> TensorParameter:
    if text.lower().endswith(".npy"):
        return Path(text)
    try:
        return float(text)
    except ValueError:
        fix = "Give a number or a .npy file."
        raise OptionError("bad-value", f"{flag} is '{text}'", where=flag, fix=fix) from None


def _bounds(given: Given) -> tuple[TensorParameter, TensorParameter] | None:
    if given.values["range"] is None:
        return None
    lo, colon, hi = given.text("range").partition(":")
    if not colon:
        what = f"--range is '{lo}'"
        raise OptionError("bad-value", what, where="--range", fix="Give two bounds with a colon, as -1.5:3.")
    return _number_or_file(lo, "--range"), _number_or_file(hi, "--range")


def _round_mode(given: Given) -> str | None:
    """TensorFlow's name of a rounding, which may be spelled as options are."""
    if given.values["round_mode"] is None:
        return None
    return given.text("round_mode").replace("-", "_").upper()


COMMAND = Command(
    name="tensor",
    help="Quantize one array by one formula, to check it by hand.",
    example="quantool tensor w.npy -o q.npy --formula onnx --type int8",
    arguments=("in_npy",),
    options=(
        "output",
        "force",
        "formula",
        "type",
        "range",
        "scale",
        "zero_point",
        "axis",
        "block_size",
        "round_mode",
        "narrow_range",
        "ensure_minimum_range",
        "feature_level",
        "opset",
        "dequantize",
        *RUN_OPTIONS,
    ),
    run=run,
    own=OWN,
)
