"""What the kinds of statistic have in common, and how an estimator gets the kind it needs."""

from __future__ import annotations

import math

import numpy as np

from calibrators.distribution import Distribution, distribution
from calibrators.extrema import Extrema
from calibrators.histogram import Histogram
from calibrators.moving_average import MovingAverage
from quantool.errors import QuantoolError
from quantool.schema import Range

Statistic = Extrema | Histogram | MovingAverage

#: the largest float32: scales and what they are computed from are float32
_LARGEST = float(np.finfo(np.float32).max)

# Kinds by name: what a request for statistics may ask for.
STATISTICS: dict[str, type[Extrema] | type[Histogram] | type[MovingAverage]] = {
    Extrema.kind: Extrema,
    Histogram.kind: Histogram,
    MovingAverage.kind: MovingAverage,
}


def histogram_of(state: Statistic) -> Histogram:
    """The histogram that a statistic holds.

    Raises:
        QuantoolError: it holds extrema only.
    """
    match state:
        case Histogram():
            return state
        case MovingAverage():
            return state.histogram
        case Extrema():
            raise _missing("a histogram", state)


def averages_of(state: Statistic) -> MovingAverage:
    """The moving averages that a statistic holds.

    Raises:
        QuantoolError: it holds none.
    """
    if isinstance(state, MovingAverage):
        return state
    raise _missing("moving averages", state)


def _missing(needed: str, state: Statistic) -> QuantoolError:
    return QuantoolError(
        "statistic-missing",
        f"the calibrator reads {needed}, and only {state.kind!r} was collected",
        where="statistics",
        fix="Calibrate again with this calibrator, or use minmax, which reads every statistic.",
    )


def range_between(
    state: Statistic, lo: float, hi: float, *, isolated: float = 0.0, clipped: float | None = None
) -> Range:
    """The range lo..hi, widened to hold zero and kept within float32, with what the statistic says about it.

    isolated: weight of the elements left out as outliers, in counted elements. clipped: the share of the elements
    outside, where the caller knows it.
    """
    seen = state.extrema
    if seen.count == 0:
        return Range(lo=0.0, hi=0.0, observed_min=0.0, observed_max=0.0)
    lo, hi = max(min(lo, 0.0), -_LARGEST), min(max(hi, 0.0), _LARGEST)
    if lo <= seen.minimum and hi >= seen.maximum:
        clipped = 0.0
    elif clipped is None:
        clipped = spread_of(state).share_outside(lo, hi)
    # Counts are exact below 2^53, so that only a true fraction rounds up.
    outliers = math.ceil(isolated * seen.count / histogram_of(state).counted - 1e-6) if isolated else 0
    return Range(
        lo=lo, hi=hi, observed_min=seen.minimum, observed_max=seen.maximum,
        clipped_share=clipped, outliers=outliers,
    )  # fmt: skip


def spread_of(state: Statistic) -> Distribution:
    """The distribution of a statistic that holds a histogram."""
    return distribution(histogram_of(state))
