from __future__ import annotations

import tracemalloc
from itertools import permutations

import numpy as np
import pytest

from calibrators import Extrema, Histogram, MovingAverage
from quantool.collect import PERIOD, RUN, SAMPLED_ABOVE, CollectRequest, collect
from quantool.errors import DataError

KINDS = {"a": "histogram", "b": "extrema", "c": "moving-average"}


def stream(*samples):
    return iter(enumerate(samples))


def test_statistics_equal_those_of_observing_each_sample():
    rng = np.random.default_rng(0)
    samples = [
        {name: rng.standard_normal((2, int(n))).astype(np.float32) for name in KINDS} for n in rng.integers(0, 3000, 40)
    ]
    found = collect(stream(*samples), CollectRequest(kinds=KINDS, model_sha256="1f"))
    histogram, extrema, average = Histogram(), Extrema(), MovingAverage()
    for sample in samples:
        histogram, extrema = histogram.observe(sample["a"]), extrema.observe(sample["b"])
        average = average.observe(sample["c"])
    assert found.tensors == {"a": histogram, "b": extrema, "c": average}
    assert (found.samples, found.model_sha256, found.full) == (40, "1f", False)


@pytest.mark.parametrize("width", [50, SAMPLED_ABOVE + 1], ids=["counted", "sampled"])
def test_neither_order_nor_batch_cut_changes_anything(width):
    rows = np.random.default_rng(1).standard_normal((8, width)).astype(np.float32)
    request = CollectRequest(kinds={"a": "histogram", "b": "extrema"}, batched=frozenset("ab"))

    def found(batches):
        return collect(stream(*({"a": b, "b": b} for b in batches)), request).tensors

    whole = found([rows])
    assert found(np.split(rows, 8)) == found(np.split(rows, 2)) == whole
    assert all(found(order) == whole for order in list(permutations(np.split(rows, 4)))[::7])


def test_large_rows_count_a_fixed_eighth_and_exact_extrema():
    row = np.random.default_rng(2).standard_normal((1, 300_000)).astype(np.float32)
    row[0, RUN] = 50.0  # a position that the share leaves out
    request = CollectRequest(kinds={"a": "histogram"}, batched=frozenset("a"))
    state = collect(stream({"a": row}), request).tensors["a"]
    counted = np.arange(300_000) % PERIOD < RUN
    assert state.extrema == Extrema().observe(row)
    assert state.counted == counted.sum()
    assert np.array_equal(state.counts, Histogram().observe(row[0, counted]).counts)
    assert abs(state.counted / 300_000 - 1 / 8) < 0.001


@pytest.mark.parametrize(
    "request_",
    [
        CollectRequest(kinds={"a": "histogram"}, batched=frozenset("a"), full=True),
        CollectRequest(kinds={"a": "histogram"}),
    ],
    ids=["full", "axis 0 is no batch"],
)
def test_every_element_counts_when_asked_or_where_rows_are_unknown(request_):
    rows = np.random.default_rng(2).standard_normal((2, 300_000)).astype(np.float32)
    found = collect(stream({"a": rows}), request_)
    assert found.tensors["a"] == Histogram().observe(rows)
    assert found.full == request_.full


def test_one_row_is_sampled_whatever_its_axis_is_called():
    row = np.random.default_rng(2).standard_normal((1, 300_000)).astype(np.float32)
    found = [
        collect(stream({"a": row}), CollectRequest(kinds={"a": "histogram"}, batched=batched)).tensors["a"]
        for batched in (frozenset("a"), frozenset())
    ]
    assert found[0] == found[1]
    assert found[0].counted < 300_000 / 7


def test_the_share_meets_every_channel_of_a_channels_last_tensor():
    channels = np.tile(np.arange(1, 513, dtype=np.float32), 1024)[None]
    request = CollectRequest(kinds={"a": "histogram"}, batched=frozenset("a"))
    share = collect(stream({"a": channels}), request).tensors["a"]
    whole = Histogram().observe(channels)
    assert np.array_equal(share.keys, whole.keys)
    assert np.all(np.abs(share.counts / share.counted - whole.counts / whole.counted) < 0.02 / 128)


def test_a_moving_average_of_large_rows_keeps_exact_extrema():
    rows = [np.random.default_rng(s).standard_normal((1, 100_000)).astype(np.float32) for s in range(3)]
    request = CollectRequest(kinds={"a": "moving-average"}, batched=frozenset("a"))
    found = collect(stream(*({"a": r} for r in rows)), request).tensors["a"]
    exact = MovingAverage().observe(rows[0]).observe(rows[1]).observe(rows[2])
    assert found.average_maximum == exact.average_maximum
    assert found.extrema == exact.extrema
    assert found.histogram.counted < exact.histogram.counted


def test_absent_and_unrequested_tensors_are_passed_over():
    found = collect(stream({"a": np.ones(3, np.float32), "x": np.ones(3)}, {}), CollectRequest(kinds=KINDS))
    assert found.tensors == {"a": Histogram().observe(np.ones(3)), "b": Extrema(), "c": MovingAverage()}
    assert found.samples == 2


def test_a_sample_in_groups_of_tensors_counts_once():
    x = np.ones(3, np.float32)
    pieces = [(0, {"a": x}), (0, {"b": x}), (1, {"a": x}), (1, {"b": x})]
    found = collect(iter(pieces), CollectRequest(kinds={"a": "histogram", "b": "extrema"}))
    assert found.samples == 2
    assert found.tensors["b"].count == 6


def test_the_stream_may_reuse_its_arrays():
    buffer = np.zeros(4, np.float32)

    def reusing():
        for index in range(3):
            buffer[:] = index
            yield index, {"a": buffer}

    state = collect(reusing(), CollectRequest(kinds={"a": "histogram"})).tensors["a"]
    assert state == Histogram().observe(np.repeat(np.arange(3), 4))


@pytest.mark.parametrize("kind", ["histogram", "extrema", "moving-average"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [100, 200_000], ids=["small", "large"])
def test_a_nonfinite_element_names_tensor_and_sample(kind, bad, size):
    samples = [{"in": np.ones((1, size), np.float32), "out": np.ones((1, size), np.float32)} for _ in range(6)]
    for name in ("in", "out"):
        samples[3][name][0, size // 2] = bad
    samples[5]["in"][0, 0] = bad
    request = CollectRequest(kinds={"in": kind, "out": kind}, batched=frozenset({"in", "out"}))
    with pytest.raises(DataError, match=r"sample 3 makes NaN or infinity in tensor 'in'.*--allow-nonfinite"):
        collect(stream(*samples), request)


def test_the_earliest_trouble_is_named_whichever_buffer_fills_first():
    samples = [{"small": np.ones(10, np.float32), "large": np.ones(300_000, np.float32)} for _ in range(4)]
    samples[1]["small"][0] = np.nan
    samples[2]["large"][0] = np.nan
    request = CollectRequest(kinds={"large": "histogram", "small": "histogram"}, full=True)
    with pytest.raises(DataError, match="sample 1 makes NaN or infinity in tensor 'small'"):
        collect(stream(*samples), request)


def test_trouble_in_the_first_sample_shows_before_the_second_is_asked_for():
    def first_is_bad():
        yield 0, {"a": np.array([np.nan], np.float32)}
        pytest.fail("the second sample was asked for")

    with pytest.raises(DataError, match="sample 0"):
        collect(first_is_bad(), CollectRequest(kinds={"a": "histogram"}))


@pytest.mark.parametrize("width", [4, SAMPLED_ABOVE + 4], ids=["counted", "sampled"])
def test_nonfinite_elements_are_skipped_and_counted_when_allowed(width):
    x = np.ones((1, width), np.float32)
    x[0, 1], x[0, 2] = np.nan, -np.inf
    request = CollectRequest(kinds={"a": "histogram"}, batched=frozenset("a"), allow_nonfinite=True)
    found = collect(stream({"a": x}), request)
    assert found.nonfinite == 2
    assert found.tensors["a"].extrema == Extrema(count=width - 2, nonfinite=2, minimum=1.0, maximum=1.0)


def test_memory_does_not_grow_with_the_number_of_samples():
    def peak(samples: int) -> int:
        rng = np.random.default_rng(0)
        feed = ((i, {"a": rng.standard_normal((1, 40_000), np.float32)}) for i in range(samples))
        tracemalloc.start()
        collect(feed, CollectRequest(kinds={"a": "histogram"}, batched=frozenset("a")))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    assert peak(240) <= 1.1 * peak(60)
