"""The range that leaves out a fixed share of the elements."""

from __future__ import annotations

from calibrators.statistic import Statistic, range_between, spread_of
from quantool.schema import Grid, Range

PERCENTILE = 99.99


def estimate_percentile(state: Statistic, grid: Grid, *, percentile: float = PERCENTILE) -> Range:
    """The middle `percentile` percent of the elements, half of the rest left out at each end.

    Exact to within the bucket that holds the percentile, which is at most 1/128 of its value wide.

    Args:
        state: a histogram or moving averages.
        grid: the same range serves every grid.
        percentile: above 0, at most 100.

    Raises:
        ValueError: percentile out of bounds.
        QuantoolError: the statistic holds no histogram.
    """
    del grid
    if not 0.0 < percentile <= 100.0:
        raise ValueError(f"percentile={percentile} must be above 0 and at most 100")
    seen = spread_of(state)
    if state.extrema.count == 0 or percentile == 100.0:
        return range_between(state, state.extrema.minimum, state.extrema.maximum)
    tail = (100.0 - percentile) / 200.0
    return range_between(state, seen.quantile(tail), seen.quantile(1.0 - tail))
