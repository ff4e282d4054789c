"""Every option of the command line, once: what it is called, takes and means.

A default that stands here is only shown; the code that decides it is `quantool.recipe`, and a test holds the two
together (recipe is not imported here, because help must not load NumPy).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import typer

from quantool.cli.complete import completion_of

FILES: Final = "Files"
METHOD: Final = "Method"
CHOICE: Final = "What is quantized"
DATA: Final = "Data"
GATES: Final = "Gates (a gate that fails is exit code 1)"
RUN: Final = "Run"
#: the order in which help shows them
PANELS: Final = (FILES, METHOD, CHOICE, DATA, GATES, RUN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option. kind: str, int, float or bool (a flag); many: repeatable; default: as shown in help.

    Typer hands numbers over as texts, and `Given` converts them, so that an error can name the text.
    """

    panel: str
    help: str
    metavar: str = ""
    kind: type = str
    many: bool = False
    default: str = ""
    flags: tuple[str, ...] = ()


OPTIONS: Final[dict[str, Option]] = {
    "output": Option(
        panel=FILES, metavar="FILE", flags=("-o", "--output"),
        help="Write the result to this file (required); it appears whole or not at all.",
    ),
    "data": Option(
        panel=FILES, metavar="D", many=True,
        help="Read samples from this: .npz, .npy, a folder of either, of ONNX test_data_set_* or of images, .jsonl, "
             "package.module:callable, or 'random'. Repeatable: more samples, or the other inputs, matched by name. "
             "Default: what stands beside the model.",
    ),
    "verify_data": Option(
        panel=FILES, metavar="D", many=True,
        help="Verify on this. Repeatable. Default: at most 16 samples held out of --data.",
    ),
    "recipe": Option(panel=FILES, metavar="FILE.toml", help="Read options and [[rules]] there; options here win."),
    "ranges": Option(panel=FILES, metavar="FILE.qcal", help="Take the ranges of this calibration: runs no data."),
    "collect": Option(
        panel=DATA, metavar="full|gram", many=True,
        help="Collect more: full counts every element of large tensors (an eighth by default), gram adds the second "
             "moments of every layer's input, for GPTQ without data. Repeatable.",
    ),
    "shard": Option(
        panel=DATA, metavar="I/N",
        help="Count only samples I-1, I-1+N, I-1+2N ... (I from 1); `quantool merge` joins the files of all N shards.",
    ),
    "workers": Option(
        panel=RUN, metavar="N", kind=int, help="Divide the samples among N processes of this machine."
    ),
    "scheduler": Option(
        panel=RUN, metavar="ADDRESS",
        help="Divide the samples among the workers of the Dask scheduler at this address, as tcp://host:8786.",
    ),
    "resume": Option(
        panel=RUN, kind=bool, help="Go on where an interrupted run with the same options stopped."
    ),
    "report": Option(
        panel=FILES, metavar="FILE", many=True,
        help="Write a report: .json, .html, .md or .xml (JUnit). Repeatable; written on failure too.",
    ),
    "shard_size": Option(
        panel=FILES, metavar="SIZE",
        help="Put constants into files of external data of at most this size each: 512M, 2G. Default: one such file, "
             "where the model is too large for one message or its own weights are outside it.",
    ),
    "force": Option(panel=FILES, kind=bool, help="Replace files that exist."),
    "mode": Option(
        panel=METHOD, metavar="auto|static|dynamic|weight-only", default="auto",
        help="Choose how: auto is static with data; without, dynamic for MatMul and Gemm and weight-only for the rest.",
    ),
    "format": Option(
        panel=METHOD, metavar="qdq|qoperator",
        help="Write a static model this way. Default: qdq, which weights alone take where it is named.",
    ),
    "target": Option(
        panel=METHOD, metavar="NAME", default="cpu-x64", help="Quantize for this runtime: see `quantool targets`."
    ),
    "weights": Option(
        panel=METHOD, metavar="TYPE", help="Store weights as int8, uint8, int4 ... Default: what the target runs best."
    ),
    "target_size": Option(
        panel=METHOD, metavar="SIZE|Xbpw",
        help="Mix int4 and int8 weights (from --weights up) so that the whole result takes at most this: 500M, 4.5G, "
             "or 4.5bpw, bits per weight. Chooses weight-only mode.",
    ),
    "activations": Option(
        panel=METHOD, metavar="TYPE", help="Compute on uint8, int8, uint16 ... Default: what the target runs best."
    ),
    "granularity": Option(
        panel=METHOD, metavar="tensor|channel|block:N",
        help="Give weights one scale each, one a channel, or one a block. Default: channel; 4 and 2 bits block:32.",
    ),
    "calibrator": Option(
        panel=METHOD, metavar="mse|minmax|percentile|entropy|moving-average",
        help="Choose ranges by this criterion. Default: mse, or minmax where it measures better.",
    ),
    "formula": Option(
        panel=METHOD, metavar="onnx|onnx-symmetric|tf-min-first|tf-scaled|tf-min-combined",
        help="Turn ranges into scales by this formula. Default: onnx.",
    ),
    "narrow_range": Option(panel=METHOD, kind=bool, help="Leave out the lowest code, as -128 of int8."),
    "effort": Option(
        panel=METHOD, metavar="fast|balanced|max", default="balanced",
        help="Try more to keep accuracy: fast tries nothing, balanced several ways on held-out samples, max all "
             "ways, in two to five times the time of balanced.",
    ),
    "io": Option(
        panel=METHOD, metavar="float|quantized", default="float",
        help="Let graph inputs and outputs hold these; quantized is refused for now.",
    ),
    "include": Option(
        panel=CHOICE, metavar="GLOB", many=True,
        help="Quantize only the nodes whose names match, and these even where policy would keep them in float. "
             "Repeatable.",
    ),
    "exclude": Option(
        panel=CHOICE, metavar="GLOB", many=True, help="Keep the nodes whose names match in float; wins over --include. "
        "Repeatable.",
    ),
    "include_op": Option(
        panel=CHOICE, metavar="TYPE", many=True, help="As --include, by operator type: LSTM, Conv. Repeatable."
    ),
    "exclude_op": Option(panel=CHOICE, metavar="TYPE", many=True, help="As --exclude, by operator type. Repeatable."),
    "samples": Option(panel=DATA, metavar="N", kind=int, help="Use at most N samples, the first ones. Default: all."),
    "batch_size": Option(
        panel=DATA, metavar="N", kind=int, help="Feed N rows at a time where the batch is symbolic. Default: 1."
    ),
    "preprocess": Option(
        panel=DATA, metavar="PRESET|KEY=VALUE,...",
        help="Turn a folder of images into inputs: imagenet, yolo-letterbox, caffe, 0-1, -1-1, or, after one or "
             "alone, a list as resize=256,crop=224 of resize, crop, pad, size, scale, mean=R/G/B, std=R/G/B, "
             "layout=nchw|nhwc, channels=rgb|bgr.",
    ),
    "seed": Option(panel=DATA, metavar="N", kind=int, default="0", help="Seed --data random."),
    "allow_nonfinite": Option(panel=DATA, kind=bool, help="Skip NaN and infinity in data, counted."),
    "memory": Option(
        panel=DATA, metavar="SIZE",
        help="Stay within this much private memory: 512M, 2G. Slower, and speed is not measured.",
    ),
    "threads": Option(panel=DATA, metavar="N", kind=int, help="Use N threads. Default: what the runtime chooses."),
    "min_sqnr": Option(panel=GATES, metavar="DB", kind=float, help="Demand this SQNR of every output, in dB."),
    "min_agreement": Option(
        panel=GATES, metavar="X", kind=float, help="Demand this share of equal top-1 answers, 0 to 1."
    ),
    "min_speedup": Option(panel=GATES, metavar="X", kind=float, help="Demand float time / new time of at least this."),
    "max_size_ratio": Option(panel=GATES, metavar="X", kind=float, help="Demand new size / old size of at most this."),
    "min_coverage": Option(
        panel=GATES, metavar="X", kind=float, help="Demand this share of multiply-adds as integers, 0 to 1."
    ),
    "max_drop": Option(
        panel=GATES, metavar="X", kind=float,
        help="Allow at most this drop of --metric from the float model, in its own unit: of top1, 0.005 is half a "
             "point. Judged on the samples that verify.",
    ),
    "metric": Option(
        panel=GATES, metavar="NAME",
        help="Measure this on the samples that verify, with a 95 % interval: top1, top5, f1, iou, cer (they need an "
             "array 'labels' beside the inputs), perplexity (on token ids), kl, top1-agreement, top5-agreement, "
             "cosine, sqnr, mse, or package.module:callable.",
    ),
    "keep": Option(panel=GATES, kind=bool, help="Write the model although a gate fails; the exit code stays 1."),
    "no_verify": Option(panel=RUN, kind=bool, help="Skip the comparison with the float model; the verdict says so."),
    "json": Option(panel=RUN, kind=bool, help="Print one JSON document, on failure too."),
    "quiet": Option(panel=RUN, kind=bool, help="Print nothing but errors (and the document of --json)."),
    "verbose": Option(panel=RUN, kind=bool, flags=("-v", "--verbose"), help="Print every name and every warning."),
    "debug": Option(panel=RUN, kind=bool, help="Show the traceback of an error."),
}  # fmt: skip

RUN_OPTIONS: Final = ("json", "quiet", "verbose", "debug")

#: of the commands that write a model
MODEL_OUTPUT: Final = replace(
    OPTIONS["output"],
    help="Write the model to this file; it appears whole or not at all. Default: beside the model, as NAME.int8.onnx.",
)

#: how a calibration is divided, which changes nothing that it finds
DIVISION: Final = ("shard", "workers", "scheduler", "resume")

NOT_IN_RECIPE: Final = frozenset(
    ("output", "data", "verify_data", "recipe", "report", "force", *DIVISION, *RUN_OPTIONS)
)

METHOD_OPTIONS: Final = tuple(name for name, option in OPTIONS.items() if option.panel in (METHOD, CHOICE))

RECIPE_OPTIONS: Final = tuple(name for name in OPTIONS if name not in NOT_IN_RECIPE)


def signature(arguments: Iterable[str], options: Mapping[str, Option]) -> inspect.Signature:
    """The signature that Typer reads a command's arguments and options from.

    An argument ``NAME...`` takes several, and one ``NAME?`` may be left out.
    """
    parameters = [_argument(name) for name in arguments]
    for name, option in options.items():
        shown = f" [default: {option.default}]" if option.default else ""
        info = typer.Option(
            None,
            *(option.flags or ("--" + name.replace("_", "-"),)),
            help=option.help + shown,
            metavar=option.metavar or None,
            rich_help_panel=option.panel,
            autocompletion=completion_of(name, option.metavar),
        )
        annotation = bool | None if option.kind is bool else list[str] | None if option.many else str | None
        parameters.append(_parameter(name, annotation, info))
    return inspect.Signature(parameters)


def _argument(name: str) -> inspect.Parameter:
    if name.endswith("..."):
        return _parameter(name.removesuffix("..."), list[str], typer.Argument(metavar=name.upper()))
    if name.endswith("?"):
        name = name.removesuffix("?")
        return _parameter(name, str | None, typer.Argument(None, metavar=name.upper()))
    return _parameter(name, str, typer.Argument(metavar=name.upper()))


def _parameter(name: str, annotation: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
