from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantool.data import split_feeds
from quantool.data.held_out import content_hash


def feed(value, size=4):
    return {"x": np.full(size, value, np.float32)}


def split(feeds, **options):
    """What calibrated and what verifies, as sets of values, and the split."""
    found = split_feeds(iter(feeds), **options)
    calibrated = [float(f["x"][0]) for f in found]
    return calibrated, [float(f["x"][0]) for f in found.verification], found


@pytest.mark.parametrize(
    ("count", "verifying"), [(1, 1), (15, 15), (16, 4), (17, 4), (40, 10), (64, 16), (65, 16), (300, 16)]
)
def test_a_quarter_and_at_most_16_are_held_out_from_16_feeds_on(count, verifying):
    calibrated, verified, found = split(feed(i) for i in range(count))
    assert (len(verified), found.samples) == (verifying, count)
    assert found.held_out == (count >= 16)
    if found.held_out:
        assert sorted(calibrated + verified) == list(range(count))
    else:
        assert calibrated == list(range(count))
        assert sorted(verified) == calibrated


@given(
    count=st.integers(0, 40), order=st.randoms(use_true_random=False), sizes=st.lists(st.integers(1, 9), min_size=40)
)
@settings(max_examples=80, deadline=None)
def test_the_choice_does_not_depend_on_the_order(count, order, sizes):
    feeds = [feed(i, sizes[i]) for i in range(count)]
    limits = {"most_feeds": 6, "most_bytes": 80}
    calibrated, verified, _ = split(feeds, **limits)
    order.shuffle(feeds)
    again, verified_again, _ = split(feeds, **limits)
    assert verified_again == verified
    assert sorted(again) == sorted(calibrated)
    assert len(verified) <= 6


def test_verified_feeds_are_those_of_least_hash():
    feeds = [feed(i) for i in range(100)]
    _, verified, _ = split(feeds)
    least = sorted(feeds, key=content_hash)[:16]
    assert verified == [f["x"][0] for f in least]


def test_order_says_where_each_yielded_feed_stood():
    calibrated, _, found = split(feed(i) for i in range(50))
    assert found.order == calibrated


def test_one_feed_is_kept_even_beyond_the_bytes():
    calibrated, verified, _ = split([feed(i, 100) for i in range(20)], most_bytes=10)
    assert (len(calibrated), len(verified)) == (19, 1)
    few, kept, found = split([feed(i, 100) for i in range(3)], most_bytes=10)
    assert (sorted(few), len(kept), found.held_out) == ([0, 1, 2], 1, False)


def test_nothing_makes_nothing():
    assert split([])[:2] == ([], [])


def test_a_source_may_reuse_its_arrays():
    buffer = np.zeros(4, np.float32)

    def reusing():
        for value in range(30):
            buffer[:] = value
            yield {"x": buffer}

    calibrated, verified, _ = split(reusing())
    assert sorted(calibrated + verified) == list(range(30))


def test_memory_stays_bounded_while_feeds_stream_by():
    size = 100_000

    def peak(count):
        found = split_feeds(feed(i, size) for i in range(count))
        tracemalloc.start()
        for _ in found:
            pass
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    # 28 kept, one that left, the last one and its copy, one arriving; and what the loop itself holds.
    assert peak(200) <= 32 * size * 4 + 50_000


def test_what_fits_calibrates_and_is_never_what_verifies():
    found = split_feeds(feed(i) for i in range(100))
    calibrated = [content_hash(one) for one in found]
    fitting, verifying = ({content_hash(one) for one in part} for part in (found.fitting, found.verification))
    assert len(fitting) == 12
    assert fitting <= set(calibrated)
    assert fitting.isdisjoint(verifying)


def test_hashes_tell_names_types_shapes_and_values_apart():
    x = np.arange(4, dtype=np.float32)
    feeds = [{"x": x}, {"y": x}, {"x": x.astype(np.int32)}, {"x": x.reshape(2, 2)}, {"x": x + 1}, {"x": x, "y": x}]
    feeds += [{"x": np.array(["ab"])}, {"x": np.array(["a", "b"])}]
    hashes = [content_hash(f) for f in feeds]
    assert all(a != b for a, b in itertools.combinations(hashes, 2))
    assert content_hash({"y": x, "x": x}) == hashes[5]
    assert content_hash({"x": np.array(["ab"], object)}) != hashes[0]


def test_sequences_and_absent_optionals_are_hashed_and_kept():
    members = [np.zeros(2, np.float32), np.ones((3, 1), np.float32)]
    raw = {"s": members, "o": None}
    kept = split_feeds([raw])
    assert [list(feed) for feed in kept] == [["s", "o"]]
    members[0][:] = 5
    assert kept.verification[0]["o"] is None
    assert [array.tolist() for array in kept.verification[0]["s"]] == [[0, 0], [[1], [1], [1]]]
    assert len({content_hash({"s": s}) for s in (members, members[::-1], members[:1])}) == 3
