"""The ranges that extrema give: of everything observed, or averaged over the samples."""

from __future__ import annotations

from calibrators.statistic import Statistic, averages_of, range_between
from quantool.schema import Grid, Range


def estimate_minmax(state: Statistic, grid: Grid) -> Range:
    """From the exact smallest to the exact largest element, zero included; nothing is clipped."""
    del grid  # the extrema serve every grid
    return range_between(state, state.extrema.minimum, state.extrema.maximum)


def estimate_moving_average(state: Statistic, grid: Grid) -> Range:
    """From the average minimum to the average maximum of the samples, zero included.

    Jacob et al., Quantization and Training of Neural Networks, arXiv:1712.05877, section 3.1.

    Raises:
        QuantoolError: the statistic holds no averages.
    """
    del grid  # the averages serve every grid
    averages = averages_of(state)
    return range_between(state, averages.average_minimum, averages.average_maximum)
