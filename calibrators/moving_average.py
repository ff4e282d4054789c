"""The ordered statistic: an exponential moving average of each sample's extrema."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy.typing as npt

from calibrators.extrema import Extrema
from calibrators.histogram import Histogram
from quantool.errors import QuantoolError

DECAY = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingAverage:
    """Averages of minima and maxima in which each sample weighs `decay` times the one after it.

    The averages are sums divided by the sum of the weights, so that the first samples are not drawn to
    zero: Kingma and Ba, Adam, arXiv:1412.6980, section 3 (correction of the initialization bias).

    Attributes:
        histogram: the unordered statistic of the same samples, for the share of clipped elements.
        samples: how many samples, empty ones not counted.
        decay: weight of a sample against the next one.
        weight: sum of the weights.
        minima: weighted sum of the samples' minima.
        maxima: weighted sum of the samples' maxima.
    """

    kind: ClassVar[str] = "moving-average"

    histogram: Histogram = field(default_factory=Histogram)
    samples: int = 0
    decay: float = DECAY
    weight: float = 0.0
    minima: float = 0.0
    maxima: float = 0.0

    @property
    def extrema(self) -> Extrema:
        """Counts and exact extrema of every element."""
        return self.histogram.extrema

    @property
    def average_minimum(self) -> float:
        """The average of the minima, 0 where there are none."""
        return self.minima / self.weight if self.samples else 0.0

    @property
    def average_maximum(self) -> float:
        """The average of the maxima, 0 where there are none."""
        return self.maxima / self.weight if self.samples else 0.0

    def observe(self, array: npt.ArrayLike) -> MovingAverage:
        """The statistic after one more sample; without a finite element it changes no average."""
        return self.follow(Histogram().observe(array))

    def follow(self, sample: Histogram) -> MovingAverage:
        """The statistic after one more sample, given that sample's own histogram."""
        histogram = self.histogram.merge(sample)
        if sample.extrema.count == 0:
            return replace(self, histogram=histogram)
        return MovingAverage(
            histogram=histogram,
            samples=self.samples + 1,
            decay=self.decay,
            weight=self.weight * self.decay + 1.0,
            minima=self.minima * self.decay + sample.extrema.minimum,
            maxima=self.maxima * self.decay + sample.extrema.maximum,
        )

    def beside(self, other: MovingAverage) -> MovingAverage:
        """The statistic of two tensors that share a scale: all of their elements, and the wider averages."""
        first, second = (self, other) if self.samples else (other, self)
        lowest, highest = first.average_minimum, first.average_maximum
        if second.samples:
            lowest, highest = min(lowest, second.average_minimum), max(highest, second.average_maximum)
        return replace(
            first,
            histogram=self.histogram.merge(other.histogram),
            minima=lowest * first.weight,
            maxima=highest * first.weight,
        )

    def merge(self, other: MovingAverage) -> MovingAverage:
        """The other one where this one is empty, and the reverse.

        Raises:
            QuantoolError: both hold samples, whose common order is unknown.
        """
        if other == MovingAverage(decay=other.decay):
            return self
        if self == MovingAverage(decay=self.decay):
            return other
        raise QuantoolError(
            "moving-average-merge",
            f"moving averages of {self.samples} and {other.samples} samples cannot be merged: "
            "they depend on the order of the samples",
            where="calibrator moving-average",
            fix="Calibrate in one run, or use mse, minmax, percentile or entropy, whose statistics merge.",
        )
