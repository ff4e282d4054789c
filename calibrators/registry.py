"""The calibrators by name: what each collects, and how it reads a range from that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy.typing as npt

from calibrators.entropy import estimate_entropy
from calibrators.extrema import Extrema
from calibrators.histogram import Histogram
from calibrators.minmax import estimate_minmax, estimate_moving_average
from calibrators.moving_average import MovingAverage
from calibrators.mse import estimate_mse_many
from calibrators.percentile import estimate_percentile
from calibrators.statistic import STATISTICS, Statistic
from quantool.schema import Grid, Range

S = TypeVar("S", Extrema, Histogram, MovingAverage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrator:
    """A statistic and an estimator that reads it.

    Attributes:
        needs: the kind of statistic that is enough, a key of STATISTICS. Any kind that holds more will do.
        estimate_many: (states, grid) -> the range of each, whatever the others; raises QuantoolError where a state
            holds too little.
    """

    needs: str
    estimate_many: Callable[[Sequence[Statistic], Grid], list[Range]]

    def estimate(self, state: Statistic, grid: Grid) -> Range:
        """The range of one tensor."""
        return self.estimate_many([state], grid)[0]

    def zero(self) -> Statistic:
        """The statistic of nothing."""
        return STATISTICS[self.needs]()

    def observe(self, state: S, array: npt.ArrayLike) -> S:
        """The statistic of everything seen so far and `array`."""
        return state.observe(array)

    def merge(self, a: S, b: S) -> S:
        """The statistic of both together.

        Raises:
            QuantoolError: moving averages, which depend on the order of the samples.
        """
        return a.merge(b)


def _one_by_one(estimate: Callable[[Statistic, Grid], Range]) -> Callable[[Sequence[Statistic], Grid], list[Range]]:
    return lambda states, grid: [estimate(state, grid) for state in states]


CALIBRATORS: dict[str, Calibrator] = {
    "mse": Calibrator(needs=Histogram.kind, estimate_many=estimate_mse_many),
    "minmax": Calibrator(needs=Extrema.kind, estimate_many=_one_by_one(estimate_minmax)),
    "percentile": Calibrator(needs=Histogram.kind, estimate_many=_one_by_one(estimate_percentile)),
    "entropy": Calibrator(needs=Histogram.kind, estimate_many=_one_by_one(estimate_entropy)),
    "moving-average": Calibrator(needs=MovingAverage.kind, estimate_many=_one_by_one(estimate_moving_average)),
}
