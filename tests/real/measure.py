"""What is measured of a model: outputs through ONNX Runtime, SQNR against the float model, CPU time as a ratio."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from tests.real.model import Feed, RealModel, Run

LATENCY_BUDGET_SECONDS = 2.0
FEWEST_ROUNDS, MOST_ROUNDS = 5, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one quantized model is worth beside its float model."""

    metric: float
    sqnr_db: float
    speedup: float
    size_ratio: float


def figures(model: RealModel, path: Path) -> Figures:
    """Measure the quantized model at `path` on the evaluation data of `model`."""
    reference, quantized = runner(model.path), runner(path)
    feeds = model.eval_feeds()
    return Figures(
        metric=model.evaluate(quantized),
        sqnr_db=worst_sqnr(reference, quantized, feeds),
        speedup=speedup(reference, quantized, feeds),
        size_ratio=path.stat().st_size / model.path.stat().st_size,
    )


def runner(path: Path) -> Run:
    """Return a function that runs the model on one thread and gives its outputs by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feed: dict(zip(names, session.run(names, dict(feed)), strict=True))


def worst_sqnr(reference: Run, other: Run, feeds: Sequence[Feed]) -> float:
    """Return the SQNR in dB, pooled over the feeds, of the float output that suffered most; inf where all are equal.

    10 log10(sum y^2 / sum (y - y')^2) for each output; outputs of integers and outputs that are all zero say nothing.
    """
    signal: dict[str, float] = {}
    noise: dict[str, float] = {}
    for feed in feeds:
        expected, got = reference(feed), other(feed)
        for name, y in expected.items():
            if y.dtype.kind == "f":
                wide = y.astype(np.float64)
                signal[name] = signal.get(name, 0.0) + float(np.sum(wide**2))
                noise[name] = noise.get(name, 0.0) + float(np.sum((wide - got[name]) ** 2))
    return min(_decibel(signal[name], noise[name]) for name in signal if signal[name] > 0.0)


def _decibel(signal: float, noise: float) -> float:
    return math.inf if noise == 0.0 else 10.0 * math.log10(signal / noise)


def speedup(reference: Run, other: Run, feeds: Sequence[Feed]) -> float:
    """Return the CPU time of `reference` over that of `other`: the median over rounds that interleave both."""
    ratios: list[float] = []
    started = time.process_time()
    for index in range(MOST_ROUNDS):
        feed = feeds[index % len(feeds)]
        # The order alternates so that neither always finds the caches as the other left them.
        order = (reference, other) if index % 2 else (other, reference)
        spent = {run: _cpu_seconds(run, feed) for run in order}
        ratios.append(spent[reference] / spent[other])
        if index >= FEWEST_ROUNDS and time.process_time() - started > LATENCY_BUDGET_SECONDS:
            break
    return statistics.median(ratios)


def _cpu_seconds(run: Run, feed: Feed) -> float:
    started = time.process_time()
    run(feed)
    return time.process_time() - started
