from __future__ import annotations

import numpy as np

from calibrators.buckets import BUCKETS, POSITIVE_ZERO, count_by_key, edges


def every_bucket() -> tuple[np.ndarray, np.ndarray]:
    """The first and last finite float32 of every bucket, in the order of bit patterns."""
    top = np.arange(BUCKETS, dtype=np.uint32)
    top = top[(top & 0x7FFF) < 0x7F80] << 16
    return top.view(np.float32), (top | 0xFFFF).view(np.float32)


def test_every_finite_value_lies_between_the_edges_of_its_bucket():
    for values in every_bucket():
        for value in values[::37]:
            (key,) = np.flatnonzero(count_by_key(np.array([value], np.float32)))
            low, high = edges(np.array([key, key + 1]))
            assert low <= value <= high


def test_keys_order_buckets_by_value():
    first, _ = every_bucket()
    counts = count_by_key(first)
    assert counts.sum() == first.size
    assert set(counts) == {0, 1}
    ends = edges(np.flatnonzero(counts))
    assert np.all(np.diff(ends) > 0)
    assert ends[0] == -(2.0**128)


def test_a_bucket_is_at_most_a_128th_of_its_value_wide():
    keys = np.arange(POSITIVE_ZERO + 128, POSITIVE_ZERO + 0x7F80)  # normal numbers
    low, high = edges(keys), edges(keys + 1)
    assert np.all(high - low <= low / 128)
