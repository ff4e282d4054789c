"""Measure calibration as ratios: CPU time a sample against plain inference, and whole runs against the incumbent.

Run by hand: ``python -m tests.perf.collection --check`` (after ``bash .ci/real-setup.sh`` for the real models;
``--samples-only`` leaves them out). One thread; each figure is the median of rounds in which the sides run in turn. The
goals are geometric means over the models: extrema only at most 1.5 times plain inference, all statistics at most 2.2.
``tap`` fetches the tensors and drops them, ``quantize`` is what quantize collects, ``file`` what a .qcal file holds.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from onnxruntime import quantization

import quantool
from quantool import targets
from quantool.collect import CollectRequest, collect
from quantool.graph.outputs import with_outputs
from quantool.pipeline.calibration.statistics import collect_request, file_request, wanted_by
from quantool.pipeline.source import FloatModel, normalized_model, read_float
from quantool.plan import make_plan
from quantool.recipe import Recipe
from quantool.runtime import Session
from quantool.schema import Feed, Mode

SAMPLE_MODELS = Path(__file__).parents[2] / "sample_models"
MOST_EXTREMA, MOST_FULL = 1.5, 2.2
METHODS = {
    "MinMax": quantization.CalibrationMethod.MinMax,
    "Percentile": quantization.CalibrationMethod.Percentile,
    "Entropy": quantization.CalibrationMethod.Entropy,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model and some feeds."""

    name: str
    path: Path
    feeds: Sequence[Feed]


def sample_models() -> Iterator[Subject]:
    for path in sorted(SAMPLE_MODELS.glob("*.onnx")):
        data = np.load(path.with_suffix(".calib.npz"))
        names = [name for name in data.files if not name.startswith("label")]
        count = min(32, *(len(data[name]) for name in names))
        yield Subject(
            name=path.stem, path=path, feeds=[{name: data[name][i : i + 1] for name in names} for i in range(count)]
        )


def real_models() -> Iterator[Subject]:
    from tests.real.zoo import ZOO

    for name, build in ZOO.items():
        model = build()
        yield Subject(name=name, path=Path(model.path), feeds=[dict(feed) for feed in model.calib()[:32]])


def medians(sides: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Median CPU seconds of each side, the sides run in turn."""
    for side in sides:
        side()
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, found in zip(sides, times, strict=True):
            start = time.process_time()
            side()
            found.append(time.process_time() - start)
    return [statistics.median(found) for found in times]


def ratios(subject: Subject, rounds: int) -> dict[str, float]:
    """CPU time a sample as a multiple of plain inference; sessions are loaded before."""
    recipe = Recipe(threads=1)
    loaded = read_float(subject.path)
    source = normalized_model(loaded, None, opset=21, recipe=recipe)
    plan = make_plan(source.facts, recipe, target=targets.load(recipe.target), mode=Mode.STATIC)
    run = collect_request(source, wanted_by(plan), recipe)
    if not run.kinds:  # nothing static about it
        return {}
    requests = {
        "tap": replace(run, kinds=dict.fromkeys(run.kinds, "none")),
        "extrema": replace(run, kinds=dict.fromkeys(run.kinds, "extrema")),
        "quantize": run,
        "file": file_request(source, wanted_by(plan), recipe),
    }
    plain = Session(replace(source.given, threads=1))
    sides: list[Callable[[], object]] = [lambda: [plain.run(feed) for feed in subject.feeds]]
    sides += [collection(source, request, subject.feeds) for request in requests.values()]
    base, *found = medians(sides, rounds)
    return {name: seconds / base for name, seconds in zip(requests, found, strict=True)}


def collection(source: FloatModel, request: CollectRequest, feeds: Sequence[Feed]) -> Callable[[], object]:
    """A run of calibration whose session is loaded already."""
    assert isinstance(source.normalized.model, bytes)
    names = list(request.tensors)
    session = Session(replace(source.normalized, model=with_outputs(source.normalized.model, names)))
    only_tap = "none" in request.kinds.values()

    def work() -> None:
        stream = ((i, session.run(feed, names, sample=i)) for i, feed in enumerate(feeds))
        if only_tap:
            for _ in stream:
                pass
        else:
            collect(stream, request)

    return work


class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]  # the incumbent ships no types
    """Feeds as the incumbent wants them."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)


def against_incumbent(subject: Subject) -> dict[str, float]:
    """CPU time of the incumbent's calibration over ours, loading included on both sides; ours serves all methods.

    Nothing where the incumbent fails, as on samples of several shapes.
    """
    recipe = Recipe(threads=1)

    def ours() -> None:
        quantool.calibrate(subject.path, data=subject.feeds, recipe=recipe)

    with tempfile.TemporaryDirectory() as folder:
        sides: list[Callable[[], object]] = [ours]
        for name, method in METHODS.items():
            target = str(Path(folder) / f"{name}.onnx")

            def theirs(method: object = method, target: str = target) -> None:
                calibrator = quantization.create_calibrator(
                    str(subject.path), augmented_model_path=target, calibrate_method=method
                )
                calibrator.collect_data(Reader(subject.feeds))
                calibrator.compute_data()

            sides.append(theirs)
        try:
            mine, *found = medians(sides, 1)
        except ValueError as error:
            print(f"{subject.name}: the incumbent fails: {error}")
            return {}
    return {name: seconds / mine for name, seconds in zip(METHODS, found, strict=True)}


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def show(title: str, table: dict[str, dict[str, float]]) -> dict[str, float]:
    """Print a table of ratios and their geometric means, which it returns."""
    columns = list(next(iter(table.values())))
    means = {column: geometric_mean([row[column] for row in table.values()]) for column in columns}
    print(f"\n{title}\n{'':18s}" + "".join(f"{column:>12s}" for column in columns))
    for name, row in {**table, "geometric mean": means}.items():
        print(f"{name:18s}" + "".join(f"{row[column]:12.2f}" for column in columns))
    return means


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds a figure (default 3)")
    parser.add_argument("--samples-only", action="store_true", help="leave the real models out")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a goal is not reached")
    options = parser.parse_args()
    subjects = [*sample_models(), *(() if options.samples_only else real_models())]
    found = {one.name: row for one in subjects if (row := ratios(one, options.rounds))}
    means = show("CPU time a sample, times plain inference", found)
    theirs = {one.name: row for one in subjects if (row := against_incumbent(one))}
    show("CPU time of the incumbent, times ours", theirs)
    missed = means["extrema"] > MOST_EXTREMA or means["quantize"] > MOST_FULL
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
