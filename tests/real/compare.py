"""quantool's default beside the incumbent's best on every real model: `python -m tests.real.compare -o FILE.md`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime

from tests.real import incumbent, measure
from tests.real.model import RealModel
from tests.real.zoo import ZOO

SQNR_MARGIN_DB = 0.5
RATIO_NOISE = 0.05
#: two shares that differ by exactly the resolution may miss it by a rounding error
ROUNDING = 1e-9
NOT_WORTH_IT = "not worth it"
#: quantool's mode and the incumbent's configuration of that name
DYNAMIC = "dynamic"
NOTHING_QUANTIZED = "nothing-quantized"

Quantize = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """What quantool's default came to: its report, and figures where it wrote a model."""

    report: dict[str, Any]
    figures: measure.Figures | None

    @property
    def verdict(self) -> str:
        """Return the report's verdict, or the error that stopped the run."""
        errors = [f"{error['code']}: {error['what']}" for error in self.report["errors"]]
        return str(self.report["verdict"] or "; ".join(errors))

    @property
    def coverage(self) -> float | None:
        """Return the share of nodes that are quantized; None where the report does not know."""
        coverage: dict[str, float] | None = self.report["coverage"]
        return None if coverage is None else coverage["nodes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One row: a model's float metric, quantool's default and every configuration of the incumbent.

    same_mode: quantool in the mode of the incumbent's best, where that is not the default.
    """

    model: RealModel
    float_metric: float
    ours: Ours
    theirs: tuple[incumbent.Outcome, ...]
    same_mode: Ours | None = None

    @property
    def best(self) -> incumbent.Outcome | None:
        return incumbent.best(self.model, list(self.theirs))


def measured(model: RealModel, quantize: Quantize, **options: str) -> Ours:
    """Quantize with the calibration data, nothing else by default, and measure what was written."""
    import quantool

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "quantized.onnx"
        try:
            result = quantize(str(model.path), data=list(model.calib()), output=str(target), **options)
        except quantool.QuantoolError as error:
            if error.report is None:
                raise
            return Ours(report=error.report.to_dict(), figures=None)
        return Ours(report=result.report.to_dict(), figures=measure.figures(model, target))


def compare(name: str, quantize: Quantize) -> Comparison:
    """Measure one model of the zoo three ways: float, quantool's default, the incumbent."""
    silence_incumbent()
    model = ZOO[name]()
    row = Comparison(
        model=model,
        float_metric=model.evaluate(measure.runner(model.path)),
        ours=measured(model, quantize),
        theirs=tuple(incumbent.outcomes(model)),
    )
    if row.best is None or row.best.config != DYNAMIC:
        return row
    return dataclasses.replace(row, same_mode=measured(model, quantize, mode=DYNAMIC))


def silence_incumbent() -> None:
    """Keep its advice and the runtime's remarks on its models out of the output."""
    logging.getLogger().setLevel(logging.ERROR)
    onnxruntime.set_default_logger_severity(3)


def metric_shortfall(row: Comparison) -> float:
    """Return by how much the task metric is worse than the incumbent's best, beyond the resolution; <= 0 is fine.

    Without a model of ours it is infinite, without one of theirs minus infinity.
    """
    best = row.best
    if best is None or best.figures is None:
        return -math.inf
    if row.ours.figures is None:
        return math.inf
    return -row.model.gain(row.ours.figures.metric, best.figures.metric) - row.model.resolution - ROUNDING


def sqnr_shortfall(row: Comparison) -> float:
    """Return by how many dB the SQNR is worse than the incumbent's best, beyond 0.5 dB; <= 0 is fine.

    Ranges of each sample's own are more exact than fixed ones, so that a dynamic best is held against the dynamic
    mode here too. Without a model of ours it is infinite, without one of theirs minus infinity.
    """
    best, ours = row.best, row.ours if row.same_mode is None else row.same_mode
    if best is None or best.figures is None:
        return -math.inf
    if ours.figures is None:
        return math.inf
    return best.figures.sqnr_db - ours.figures.sqnr_db - SQNR_MARGIN_DB


def is_declared_not_worth_it(row: Comparison) -> bool:
    """Return whether the report itself advises against the model, or says that there was nothing to quantize."""
    return row.ours.report["status"] == NOTHING_QUANTIZED or NOT_WORTH_IT in row.ours.verdict.lower()


COLUMNS = (
    "model",
    "task metric",
    "float",
    "quantool",
    "SQNR dB",
    "speed-up",
    "size",
    "coverage",
    "incumbent's best",
    "SQNR dB",
    "speed-up",
    "size",
    "its configuration",
    "verdict",
)


def table(rows: Sequence[Comparison]) -> str:
    """Return the comparison as a Markdown table; a figure in which the incumbent is ahead is bold on its side."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    shown = [one for row in rows for one in (row, _as_row(row)) if one is not None]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in shown]
    return "\n".join(lines) + "\n"


def _as_row(row: Comparison) -> Comparison | None:
    """Return quantool in the incumbent's best mode as a row of its own."""
    if row.same_mode is None:
        return None
    model = dataclasses.replace(row.model, name=f"{row.model.name} (`--mode {DYNAMIC}`)")
    return dataclasses.replace(row, model=model, ours=row.same_mode, same_mode=None)


def _cells(row: Comparison) -> list[str]:
    best = row.best
    theirs = None if best is None else best.figures
    pairs = zip(_figures(theirs), _where_they_lead(row), strict=True)
    their_cells = [f"**{cell}**" if leads else cell for cell, leads in pairs]
    return [
        row.model.name,
        f"{row.model.metric} (± {row.model.resolution:.4f})",
        f"{row.float_metric:.4f}",
        *_figures(row.ours.figures),
        "-" if row.ours.coverage is None else f"{row.ours.coverage:.0%}",
        *their_cells,
        row.theirs[0].error or "failed" if best is None else best.config,
        row.ours.verdict.replace("|", "\\|"),
    ]


def _where_they_lead(row: Comparison) -> list[bool]:
    """Return whether the incumbent is ahead in metric, SQNR, speed-up and size, each beyond its noise."""
    ours, theirs = row.ours.figures, None if row.best is None else row.best.figures
    if ours is None or theirs is None:
        return [theirs is not None] * 4
    return [
        metric_shortfall(row) > 0,
        theirs.sqnr_db - ours.sqnr_db - SQNR_MARGIN_DB > 0,
        theirs.speedup > ours.speedup * (1 + RATIO_NOISE),
        theirs.size_ratio < ours.size_ratio * (1 - RATIO_NOISE),
    ]


def _figures(figures: measure.Figures | None) -> list[str]:
    if figures is None:
        return ["-", "-", "-", "-"]
    sqnr = "exact" if math.isinf(figures.sqnr_db) else f"{figures.sqnr_db:.1f}"
    return [f"{figures.metric:.4f}", sqnr, f"{figures.speedup:.2f}", f"{figures.size_ratio:.2f}"]


def document(rows: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return the comparison as strict JSON data; an SQNR of exact outputs is null."""
    return [
        {
            "model": row.model.name,
            "metric": row.model.metric,
            "resolution": row.model.resolution,
            "float": row.float_metric,
            "quantool": {
                "figures": _finite(row.ours.figures),
                "coverage": row.ours.coverage,
                "verdict": row.ours.verdict,
            },
            "incumbent": [
                {"config": outcome.config, "figures": _finite(outcome.figures), "error": outcome.error}
                for outcome in row.theirs
            ],
            "incumbent_best": None if row.best is None else row.best.config,
        }
        for row in rows
    ]


def _finite(figures: measure.Figures | None) -> dict[str, float | None] | None:
    if figures is None:
        return None
    return {name: value if math.isfinite(value) else None for name, value in dataclasses.asdict(figures).items()}


def write(rows: Sequence[Comparison], target: Path) -> None:
    """Write the table to `target`, and the data beside it as JSON."""
    target.write_text(table(rows), encoding="utf-8")
    text = json.dumps(document(rows), indent=1, allow_nan=False)
    target.with_suffix(".json").write_text(text + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare the models named on the command line, or all of them."""
    import quantool

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"any of {', '.join(ZOO)}; all by default")
    parser.add_argument("-o", "--output", type=Path, help="Markdown file to write, with a .json beside it")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.models) - set(ZOO))
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}; there are {', '.join(ZOO)}")
    rows = [compare(name, quantool.quantize) for name in options.models or ZOO]
    print(table(rows))
    if options.output is not None:
        write(rows, options.output)


if __name__ == "__main__":
    main()
