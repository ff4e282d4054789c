"""A statistic in few bins of equal width, and what a grid costs it: what reports show of a tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrators.distribution import Distribution
from calibrators.squared_error import Steps, exact_error

Float64 = npt.NDArray[np.float64]

#: columns of a picture that is about as wide as a word
BINS = 48
#: what is drawn beyond each end of the chosen range, as a share of it
_MARGIN = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """counts: int64[BINS] over low..high; below, above: elements beyond them."""

    low: float
    high: float
    counts: npt.NDArray[np.int64]
    below: int
    above: int


def binned(seen: Distribution, bounds: tuple[float, float] | None) -> Bins:
    """The elements in bins over all that was observed, at most a quarter of the chosen range beyond its ends.

    bounds: the chosen range; None draws all that was observed. Elements of one logarithmic bucket spread evenly, and
    a bin that holds less than half an element, as of an extreme alone, counts none.
    """
    low, high = min(seen.minimum, 0.0), max(seen.maximum, 0.0)
    if bounds is not None:
        lo, hi = min(bounds[0], 0.0), max(bounds[1], 0.0)
        margin = _MARGIN * (hi - lo)
        low, high = min(max(low, lo - margin), lo), max(min(high, hi + margin), hi)
    if not low < high:
        low, high = low - 0.5, high + 0.5
    ends = np.linspace(low, high, BINS + 1)
    below = _weight_below(seen, ends)
    counts = np.diff(below)
    counts[min(int(np.searchsorted(ends, 0.0, side="right")) - 1, BINS - 1)] += seen.zero_weight
    whole = float(seen.weight.sum())
    return Bins(
        low=low,
        high=high,
        counts=np.rint(counts).astype(np.int64),
        below=int(np.rint(below[0])),
        above=int(np.rint(whole - below[-1])),
    )


def _weight_below(seen: Distribution, ends: Float64) -> Float64:
    """The weight of non-zero elements below each point."""
    if not seen.weight.size:
        return np.zeros(ends.size)
    after = np.cumsum(seen.weight)
    points = np.stack((seen.lower, seen.upper), axis=1).ravel()
    weights = np.stack((after - seen.weight, after), axis=1).ravel()
    found: Float64 = np.interp(ends, points, weights)
    return found


def rounding_sqnr_db(seen: Distribution, *, scale: float, lo: float, hi: float) -> float:
    """What rounding to multiples of `scale` between lo and hi leaves: 10 log10(sum x^2 / sum (x - Q(x))^2).

    From the statistic alone, each bucket's elements spread evenly; inf without error.
    """
    energy = seen.weight * (seen.lower**2 + seen.lower * seen.upper + seen.upper**2) / 3.0
    small = seen.magnitude_high <= 0.5 * scale  # all of it becomes zero, which the exact error leaves out
    noise = float(energy[small].sum())
    if not small.all():
        noise += float(exact_error(seen, Steps(np.array([scale]), np.array([lo]), np.array([hi])))[0])
    signal = float(energy.sum())
    if noise <= 0.0 or signal == 0.0:
        return float("inf")
    return float(10.0 * np.log10(signal / noise))
