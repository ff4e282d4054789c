"""Logarithmic buckets that need no range: the top 16 bits of a float32.

Sign, 8 bits of exponent and 7 of mantissa give each octave 128 buckets, wherever the data lie, so that merging
two histograms is adding their counters, and one value of 1e6 costs no resolution elsewhere.
A key is the bucket's rank in the order of values: 0 holds the most negative numbers, 65535 the most positive.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BUCKETS = 1 << 16
_HALF = BUCKETS // 2
# The buckets on both sides of zero: +-0.0 and what is below 2^-133, which no scale of normal size tells apart.
NEGATIVE_ZERO = _HALF - 1
POSITIVE_ZERO = _HALF
_INFINITY = 0x7F80
# The buckets of the most negative and the largest finite numbers.
FIRST_KEY = _HALF - _INFINITY
LAST_KEY = _HALF + _INFINITY - 1


def count_by_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """How many elements of finite float32[n] have each pattern of the top 16 bits: int64, up to the last one."""
    high = 1 if np.little_endian else 0
    return np.bincount(values.view(np.uint16)[high::2])


def by_key(counts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """The occupied buckets of counts by bit pattern: ascending keys uint16[k], and their counts int64[k]."""
    # Searching the comparison's booleans is six times faster than searching the integers.
    patterns = np.flatnonzero(counts != 0)
    # Patterns order positive numbers upwards and, from 0x8000 on, negative ones downwards.
    positive = int(np.searchsorted(patterns, _HALF))
    keys = np.concatenate((BUCKETS - 1 - patterns[positive:][::-1], patterns[:positive] + _HALF))
    found = counts[patterns]
    return keys.astype(np.uint16), np.concatenate((found[positive:][::-1], found[:positive]))


def edges(keys: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """The lower end of each bucket, float64[*S]; that of key + 1 is the upper end.

    Keys run from 0 to 65536. The end of the largest finite numbers is 2^128.
    """
    signed = keys.astype(np.int64) - _HALF
    high = np.abs(signed)
    bits = (np.minimum(high, _INFINITY - 1) << 16).astype(np.uint32)
    magnitude = bits.view(np.float32).astype(np.float64)
    magnitude = np.where(high >= _INFINITY, 2.0**128, magnitude)
    result: npt.NDArray[np.float64] = np.copysign(magnitude, signed) + 0.0
    return result
