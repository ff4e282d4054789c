"""One metric of two models on the same samples, and how sure their difference is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from quantool.metrics.named import Metric
from quantool.metrics.parts import Parts, Sample

#: resamplings behind an interval, and the rows that are drawn: more are summed in groups first
DRAWS: Final = 1000
MOST_ROWS: Final = 2000
#: the part of a normal distribution that 95 % lie within
Z95: Final = 1.959964


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A metric of the float and the quantized model.

    drop: how much worse the quantized one is; None where the float model has no finite value. interval: of the drop,
    or of the value where there is no drop, 95 %; None for one row. rows: independent samples.
    """

    name: str
    float_value: float
    value: float
    drop: float | None
    interval: tuple[float, float] | None
    rows: int

    @property
    def resolved(self) -> bool:
        """Whether the data tell the drop from none."""
        return self.interval is not None and not self.interval[0] <= 0.0 <= self.interval[1]

    def tells(self, limit: float) -> bool:
        """Whether the data tell on which side of a limit the drop or value is."""
        return self.interval is not None and not self.interval[0] < limit < self.interval[1]


class Paired:
    """Collects the parts of both models."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._float: list[Parts] = []
        self._test: list[Parts] = []

    def add(self, reference: Sample, test: Sample) -> None:
        """Fold in one sample: the float model's and the quantized model's."""
        self._float.append(self.metric.parts(reference))
        self._test.append(self.metric.parts(test))

    def result(self) -> Measured | None:
        """The figures; None without samples."""
        if not self._float:
            return None
        before, after = np.concatenate(self._float), np.concatenate(self._test)
        values = [float(self.metric.value(parts.sum(0))) for parts in (before, after)]
        drop = values[0] - values[1] if self.metric.higher else values[1] - values[0]
        known = math.isfinite(values[0])
        return Measured(
            name=self.metric.name,
            float_value=values[0],
            value=values[1],
            drop=drop if known else None,
            interval=self._interval(before if known else None, after),
            rows=len(before),
        )

    def _interval(self, before: Parts | None, after: Parts) -> tuple[float, float] | None:
        rows = len(after)
        if rows < 2:
            return None
        if before is not None and self.metric.share:
            if np.array_equal(before, after):
                return -3.0 / rows, 3.0 / rows  # none of n differed: at most 3/n do, 95 % of the time
            if _is_binary(before):
                return discordance(before[:, 0], after[:, 0])
        found = bootstrapped(self.metric, after)
        if before is not None:
            lost = bootstrapped(self.metric, before) - found
            found = lost if self.metric.higher else -lost
        low, high = np.percentile(found, (2.5, 97.5))
        return float(low), float(high)


def _is_binary(parts: Parts) -> bool:
    return parts.shape[1] == 2 and bool((parts[:, 1] == 1).all()) and bool(np.isin(parts[:, 0], (0, 1)).all())


def discordance(before: Parts, after: Parts) -> tuple[float, float]:
    """95 % of a difference of paired shares, from the rows that only one side has right (Bonett and Price 2012)."""
    count = len(before) + 2
    lost, won = (float((first > second).sum() + 1) / count for first, second in ((before, after), (after, before)))
    half = Z95 * math.sqrt((lost + won - (lost - won) ** 2) / count)
    return lost - won - half, lost - won + half


def bootstrapped(metric: Metric, parts: Parts) -> Parts:
    """The metric on rows drawn with replacement; the same draws for all parts of as many rows."""
    if len(parts) > MOST_ROWS:
        parts = np.stack([group.sum(0) for group in np.array_split(parts, MOST_ROWS)])
    drawn = np.random.default_rng(0).integers(0, len(parts), (DRAWS, len(parts)))
    counts = np.stack([np.bincount(row, minlength=len(parts)) for row in drawn]).astype(np.float64)
    return metric.value(counts @ parts)
