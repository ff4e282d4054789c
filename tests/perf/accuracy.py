"""Accuracy and time at each effort beside the incumbent's best: ``python -m tests.perf.accuracy [NAME ...]``.

Every sample model and, after ``bash .ci/real-setup.sh``, every real one: the task metric of float, of the incumbent's
best configuration (see tests/real/incumbent.py) and of quantool at each effort, with the worst output's SQNR on
evaluation samples and the seconds of the run. ``--check`` fails where the default is below the best by more than the
evaluation can resolve.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import quantool
from tests.real import incumbent, measure
from tests.real.compare import Ours, measured, silence_incumbent
from tests.real.model import Feed, RealModel, chance_of_shares, top1_accuracy
from tests.real.zoo import ZOO

SAMPLE_MODELS = Path(__file__).parents[2] / "sample_models"
DIGITS = ("digits_mlp", "digits_cnn", "digits_depthwise", "digits_transformer")
EFFORTS, DEFAULT = ("fast", "balanced", "max"), "balanced"
EVALUATED_FOR_SQNR = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model. ours: effort -> what it came to; seconds: effort -> of the run."""

    model: RealModel
    float_metric: float
    best: incumbent.Outcome | None
    ours: dict[str, Ours]
    seconds: dict[str, float]


def digits(name: str) -> RealModel:
    """A sample model as one of the bed."""
    path = SAMPLE_MODELS / f"{name}.onnx"
    calibration, evaluation = (np.load(path.with_suffix(f".{kind}.npz")) for kind in ("calib", "eval"))
    (key,) = [key for key in evaluation.files if key != "labels"]
    rows, labels = evaluation[key], evaluation["labels"]

    def feeds(array: np.ndarray) -> list[Feed]:
        return [{key: row[None]} for row in array]

    return RealModel(
        name=name,
        path=path,
        calib=lambda: feeds(calibration[key]),
        eval_feeds=lambda: feeds(rows[:EVALUATED_FOR_SQNR]),
        evaluate=lambda run: top1_accuracy(run, feeds(rows), labels, output="scores"),
        metric="accuracy",
        higher_is_better=True,
        resolution=chance_of_shares(len(rows)),
    )


def models() -> dict[str, Callable[[], RealModel]]:
    """Every model by name."""
    return {**{name: lambda name=name: digits(name) for name in DIGITS}, **ZOO}


def row_of(model: RealModel, efforts: Sequence[str]) -> Row:
    """Measure one model."""
    ours, seconds = {}, {}
    for effort in efforts:
        start = time.perf_counter()
        ours[effort] = measured(model, quantool.quantize, effort=effort)
        seconds[effort] = time.perf_counter() - start
    return Row(
        model=model,
        float_metric=model.evaluate(measure.runner(model.path)),
        best=incumbent.best(model, list(incumbent.outcomes(model))),
        ours=ours,
        seconds=seconds,
    )


def table(rows: Sequence[Row], efforts: Sequence[str]) -> Iterator[str]:
    """Lines of Markdown."""
    titles = ["model", "metric", "float", "incumbent's best", *efforts, "seconds"]
    yield f"| {' | '.join(titles)} |"
    yield f"|{' --- |' * len(titles)}"
    for row in rows:
        figures = [None if row.best is None else row.best.figures, *(row.ours[effort].figures for effort in efforts)]
        cells = ["nothing" if f is None else f"{f.metric:.4f} ({f.sqnr_db:.1f} dB)" for f in figures]
        times = " / ".join(f"{row.seconds[effort]:.0f}" for effort in efforts)
        yield f"| {' | '.join([row.model.name, row.model.metric, f'{row.float_metric:.4f}', *cells, times])} |"


def gains(rows: Sequence[Row], effort: str) -> list[float]:
    """DB above the incumbent's best, for models where both have a result that is not exact."""
    pairs = [(row.ours[effort].figures, None if row.best is None else row.best.figures) for row in rows]
    found = [ours.sqnr_db - theirs.sqnr_db for ours, theirs in pairs if ours is not None and theirs is not None]
    return [gain for gain in found if np.isfinite(gain)]


def below(row: Row, effort: str) -> bool:
    """Whether the task metric is worse than the incumbent's best by more than the evaluation resolves."""
    figures, best = row.ours[effort].figures, None if row.best is None else row.best.figures
    if best is None:
        return False
    return figures is None or row.model.gain(figures.metric, best.metric) < -row.model.resolution


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models; default: all")
    parser.add_argument("--efforts", default=",".join(EFFORTS), help=f"default {','.join(EFFORTS)}")
    parser.add_argument("--check", action="store_true", help="exit with 1 where the default is below the best")
    options = parser.parse_args()
    efforts = options.efforts.split(",")
    silence_incumbent()
    rows = []
    for name in options.names or models():
        rows.append(row_of(models()[name](), efforts))
        print(list(table(rows[-1:], efforts))[-1], flush=True)
    print()
    print("\n".join(table(rows, efforts)))
    for effort in efforts:
        found = gains(rows, effort)
        if found:
            print(f"{effort}: {statistics.fmean(found):+.1f} dB on average over {len(found)} models")
    missed = [row.model.name for row in rows if DEFAULT in efforts and below(row, DEFAULT)]
    if missed:
        print(f"below the incumbent's best: {', '.join(missed)}")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
