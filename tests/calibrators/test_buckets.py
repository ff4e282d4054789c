from __future__ import annotations

import numpy as np

from calibrators.buckets import BUCKETS, FIRST_KEY, LAST_KEY, POSITIVE_ZERO, by_key, count_by_bits, edges


def every_bucket() -> tuple[np.ndarray, np.ndarray]:
    """The first and last finite float32 of every bucket, in the order of bit patterns."""
    top = np.arange(BUCKETS, dtype=np.uint32)
    top = top[(top & 0x7FFF) < 0x7F80] << 16
    return top.view(np.float32), (top | 0xFFFF).view(np.float32)


def test_every_finite_value_lies_between_the_edges_of_its_bucket():
    for values in every_bucket():
        for value in values[::37]:
            (key,), (count,) = by_key(count_by_bits(np.array([value], np.float32)))
            low, high = edges(np.array([key, int(key) + 1]))
            assert low <= value <= high
            assert count == 1


def test_keys_order_buckets_by_value():
    first, _ = every_bucket()
    keys, counts = by_key(count_by_bits(first))
    assert np.array_equal(keys, np.arange(FIRST_KEY, LAST_KEY + 1))
    assert set(counts) == {1}
    ends = edges(keys)
    assert np.all(np.diff(ends) > 0)
    assert ends[0] == -(2.0**128)
    assert edges(keys[-1:].astype(int) + 1) == 2.0**128


def test_counts_follow_their_keys():
    keys, counts = by_key(count_by_bits(np.array([-2, -1, -1, 3, 3, 3], np.float32)))
    assert counts.tolist() == [1, 2, 3]
    # The value nearest to zero is an edge of its bucket: the upper one where it is negative.
    assert [*edges(keys[:2].astype(int) + 1), *edges(keys[2:])] == [-2, -1, 3]


def test_a_bucket_is_at_most_a_128th_of_its_value_wide():
    keys = np.arange(POSITIVE_ZERO + 128, POSITIVE_ZERO + 0x7F80)  # normal numbers
    low, high = edges(keys), edges(keys + 1)
    assert np.all(high - low <= low / 128)
