"""Measure calibration statistics and range search as ratios: to plain min and max, np.histogram, and a plain search.

Run by hand: ``python tests/perf/calibration.py --check``. Times are CPU time of the process, each figure the median of
rounds in which the sides run in turn. ``--check`` fails where a ratio is beyond the one that the project promises.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[2]))

from calibrators import CALIBRATORS, Histogram, estimate_expected_many
from quantool.collect import CollectRequest, collect
from quantool.schema import Grid

BINS = 2048  # of the incumbent's collector
THRESHOLDS = 128
MOST_OF_SEARCH = 50.0  # milliseconds of CPU time for 500 tensors

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """Activations of one sample: so many tensors of so many elements, and the ratios promised for them."""

    name: str
    kind: str
    tensors: int
    elements: int
    samples: int
    full: bool = False
    most_of_extrema: float | None = None
    least_of_histogram: float | None = None


CASES = [
    Case("extrema, 2 M", "extrema", 4, 2_000_000, 2, most_of_extrema=1.5),
    Case("extrema, 10 k", "extrema", 200, 10_000, 8),
    Case("histogram of an eighth, 2 M", "histogram", 4, 2_000_000, 2, most_of_extrema=5, least_of_histogram=5),
    Case("histogram of an eighth, 200 k", "histogram", 20, 200_000, 4, least_of_histogram=4),
    Case("histogram of all, 2 M", "histogram", 4, 2_000_000, 2, full=True, least_of_histogram=1.2),
    Case("histogram of all, 60 k", "histogram", 60, 60_000, 6, least_of_histogram=1),
    Case("histogram of all, 10 k", "histogram", 200, 10_000, 8),
]


def medians(sides: list[Callable[[], object]], rounds: int) -> list[float]:
    """Median CPU seconds of each side, the sides run in turn."""
    return times(sides, rounds, statistics.median)


def times(sides: list[Callable[[], object]], rounds: int, average: Callable[[list[float]], float]) -> list[float]:
    """CPU seconds of each side, the sides run in turn; a ratio is the median's, a bound in seconds the least's."""
    for side in sides:
        side()
    rows: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, found in zip(sides, rows, strict=True):
            start = time.process_time()
            side()
            found.append(time.process_time() - start)
    return [average(found) for found in rows]


def collection(case: Case, rounds: int) -> tuple[float, float, float]:
    """Nanoseconds an element; times plain min and max; np.histogram over ours."""
    generator = np.random.default_rng(0)
    different = [generator.standard_normal((1, case.elements), np.float32) for _ in range(min(case.tensors, 8))]
    sample = {f"t{i}": different[i % len(different)] for i in range(case.tensors)}
    request = CollectRequest(kinds=dict.fromkeys(sample, case.kind), batched=frozenset(sample), full=case.full)

    def ours() -> None:
        collect(((i, sample) for i in range(case.samples)), request)

    def extrema() -> None:
        for _ in range(case.samples):
            for array in sample.values():
                array.min(), array.max()

    def histogram() -> None:
        for _ in range(case.samples):
            for array in sample.values():
                np.histogram(array, BINS, range=(-8, 8))

    mine, least, theirs = medians([ours, extrema, histogram], rounds)
    return mine / (case.samples * case.tensors * case.elements) * 1e9, mine / least, theirs / mine


def activations(tensors: int, elements: int = 100_000) -> list[Float32]:
    """One-sided, two-sided, SiLU-like and sparse tensors in turn."""
    generator = np.random.default_rng(0)
    found = []
    for index in range(tensors):
        x = generator.standard_normal(elements, np.float32) * np.float32(1 + index % 7)
        shapes = (np.maximum(x, 0), x, x / (1 + np.exp(-x)), np.where(generator.random(elements) < 0.9, 0, x))
        found.append(shapes[index % 4].astype(np.float32))
    return found


def search(rounds: int, tensors: int = 500) -> tuple[dict[str, float], float]:
    """Milliseconds of the default calibrator and of mse for all tensors, and a plain search over the default."""
    data = activations(tensors)
    states = [Histogram().observe(x) for x in data]
    grid, some = Grid.of("uint8"), max(tensors // 25, 1)
    binned = [np.histogram(x, BINS) for x in data[:some]]

    def expected() -> None:
        estimate_expected_many(states, grid, covering=[False] * tensors)

    def mse() -> None:
        CALIBRATORS["mse"].estimate_many(states, grid)

    def plain() -> None:
        for counts, ends in binned:
            middles = (ends[1:] + ends[:-1]) / 2
            errors = []
            for threshold in ends[-1] * np.linspace(0.1, 1, THRESHOLDS):
                scale = threshold / 255
                errors.append((counts * (np.clip(np.rint(middles / scale), 0, 255) * scale - middles) ** 2).sum())
            np.argmin(errors)

    ours, searched, theirs = times([expected, mse, plain], rounds, min)
    return {"default": ours * 1e3, "mse": searched * 1e3}, theirs / some * tensors / ours


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds a figure (default 5)")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a promised ratio is not reached")
    options = parser.parse_args()
    missed = 0
    print(f"{'case':32s} {'ns/elt':>7s}  of min and max    np.histogram over it")
    for case in CASES:
        nanoseconds, of_extrema, of_histogram = collection(case, options.rounds)
        bad_extrema = case.most_of_extrema is not None and of_extrema > case.most_of_extrema
        bad_histogram = case.least_of_histogram is not None and of_histogram < case.least_of_histogram
        missed += bad_extrema + bad_histogram
        left = f"{of_extrema:.2f}{' ABOVE ' + str(case.most_of_extrema) if bad_extrema else ''}"
        right = f"{of_histogram:.2f}{' BELOW ' + str(case.least_of_histogram) if bad_histogram else ''}"
        print(f"{case.name:32s} {nanoseconds:7.2f}  {left:16s}  {right}")
    searches, gain = search(options.rounds)
    for name, milliseconds in searches.items():
        missed += milliseconds > MOST_OF_SEARCH
        above = f" ABOVE {MOST_OF_SEARCH}" if milliseconds > MOST_OF_SEARCH else ""
        print(f"range search of 500 tensors, {name}: {milliseconds:.1f} ms{above}")
    print(f"a plain search of as many over the default: {gain:.1f}")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
