"""Mergeable statistics of tensors, and the range estimators that read them.

A state is frozen and forms a commutative monoid: an empty state is the unit, ``merge`` is associative and
commutative, and observing in pieces equals observing the whole. ``moving-average`` alone is ordered.
"""

from calibrators.channels import Channels
from calibrators.extrema import Extrema
from calibrators.gram import Gram
from calibrators.histogram import Histogram
from calibrators.moving_average import MovingAverage
from calibrators.percentile import estimate_percentile
from calibrators.registry import CALIBRATORS, Calibrator
from calibrators.statistic import STATISTICS, Statistic
from calibrators.tails import estimate_expected, estimate_expected_many

__all__ = [
    "CALIBRATORS",
    "STATISTICS",
    "Calibrator",
    "Channels",
    "Extrema",
    "Gram",
    "Histogram",
    "MovingAverage",
    "Statistic",
    "estimate_expected",
    "estimate_expected_many",
    "estimate_percentile",
]
