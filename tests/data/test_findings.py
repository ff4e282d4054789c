"""What stands out in samples is told, with numbers, and what is in order is not."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantool.data import DataOptions, Findings, InputSpec, open_data, split_feeds
from quantool.data.findings import ENOUGH
from quantool.data.held_out import Hashed, content_hash, short_hash

IMAGE = InputSpec(name="x", dtype="float32", shape=("N", 3, 16, 16))
ROWS = InputSpec(name="x", dtype="float32", shape=("N", 4))


def noise(count, *shape, top=1.0, seed=0):
    return (np.random.default_rng(seed).random((count, *shape)) * top).astype(np.float32)


def notes(feeds, *specs, calibrator="minmax", scaled=(), **options):
    source = open_data(feeds, specs or (IMAGE,), DataOptions(**options))
    findings = Findings(source)
    hashes = [short_hash(feed) for feed in findings.watch(source)]
    return findings.notes(hashes, samples=len(hashes), calibrator=calibrator, scaled=set(scaled), where="d.npz")


def codes(*args, **options):
    return [note.code for note in notes(*args, **options)]


def single(arrays):
    return [{"x": array[None]} for array in arrays]


# --- values --------------------------------------------------------------------------------------------


def test_pixels_in_a_float_input_are_told():
    pixels = noise(20, 3, 16, 16, top=255)
    (note,) = notes(single(pixels))
    assert note.code == "unscaled-values"
    assert note.what.startswith("the values of input 'x' lie in 0 to 255, as pixels do; most models are trained on")
    assert (note.where, "such as x / 255" in note.fix) == ("input 'x', d.npz", True)
    assert codes(single(np.rint(pixels))) == ["unscaled-values"]
    last = InputSpec(name="x", dtype="float32", shape=("N", 16, 16, 3))
    assert codes(single(pixels.transpose(0, 2, 3, 1)), last) == ["unscaled-values"]
    grey = InputSpec(name="x", dtype="float16", shape=("N", 1, 16, 16))
    assert codes(single(np.rint(pixels[:, :1])), grey) == ["unscaled-values"]


FREE = InputSpec(name="x", dtype="float32", shape=None)
IN_ORDER = {
    "scaled": (noise(20, 3, 16, 16), IMAGE),
    "centred": (noise(20, 3, 16, 16, top=255) - 120, IMAGE),
    "beyond 255": (noise(20, 3, 16, 16, top=300), IMAGE),
    "dark": (noise(20, 3, 16, 16, top=29), IMAGE),
    "one channel of fractions": (noise(20, 1, 16, 16, top=255), FREE),
    "many channels": (noise(20, 64, 16, 16, top=255), FREE),
    "no sides": (noise(20, 3, 16, 4, top=255), FREE),
    "positions": (np.arange(20 * 64, dtype=np.float32).reshape(20, 64) % 200, FREE),
    "bytes": (
        np.rint(noise(20, 3, 16, 16, top=255)).astype(np.uint8),
        InputSpec(name="x", dtype="uint8", shape=("N", 3, 16, 16)),
    ),
}


@pytest.mark.parametrize("case", IN_ORDER)
def test_what_is_in_order_is_not_told(case):
    arrays, spec = IN_ORDER[case]
    assert codes(single(arrays), spec) == []


def test_one_sample_that_is_no_image_acquits_the_input():
    arrays = noise(20, 3, 16, 16, top=255)
    arrays[7] -= 20
    assert codes(single(arrays)) == []


def test_whoever_chose_the_scale_is_not_told(tmp_path):
    pixels = single(noise(20, 3, 16, 16, top=255))
    assert codes(pixels, scaled=["x"]) == []
    Image = pytest.importorskip("PIL.Image", reason="the extra images")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)).save(tmp_path / "a.png")
    assert codes(tmp_path, preprocess="scale=1") == []


def test_a_preprocess_that_prepares_nothing_is_told():
    found = notes(single(noise(20, 3, 16, 16, top=255)), preprocess="caffe")
    assert [note.code for note in found] == ["unscaled-values", "option-ignored"]
    assert found[1].what == "--preprocess caffe prepares folders of images, and the data is none: it was taken as it is"


# --- constant, duplicate, few --------------------------------------------------------------------------


@given(count=st.integers(1, 30), picks=st.sets(st.integers(0, 29)), shards=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_constant_samples_are_counted_and_the_first_is_named(count, picks, shards):
    arrays = noise(count, 4)
    for number in picks:
        arrays[number : number + 1] = number / 64
    flat = [number for number in sorted(picks) if number < count and number % shards == shards - 1]
    seen = len(range(shards - 1, count, shards))
    found = notes(single(arrays), ROWS, shard=(shards, shards))
    what = f"{len(flat)} of {seen} samples hold one value throughout"
    wanted = [("constant-samples", what, f"sample {number}, d.npz") for number in flat[:1]]
    assert [(note.code, note.what, note.where) for note in found] == wanted


def test_a_constant_mask_beside_values_is_in_order_and_one_odd_value_too():
    mask = InputSpec(name="mask", dtype="float32", shape=("N", 4))
    feeds = [{"x": row[None], "mask": np.ones((1, 4), np.float32)} for row in noise(20, 4)]
    assert codes(feeds, ROWS, mask) == []
    almost = np.zeros((1, 3, 64, 64), np.float32)
    almost[0, 1, 3, 5] = 1
    assert codes([{"x": almost}], FREE) == []


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_repeats_are_counted(values):
    feeds = [{"x": np.array([[value, 1, 2, 7]], np.float32)} for value in values]
    repeats = len(values) - len(set(values))
    found = [(note.code, note.what) for note in notes(feeds, ROWS)]
    what = f"{repeats} of {len(values)} samples that calibrate repeat another one"
    assert found == ([("duplicate-samples", what)] if repeats else [])


@pytest.mark.parametrize("calibrator", ["mse", "percentile", "entropy", "moving-average", "minmax"])
def test_fewer_samples_than_ranges_want_are_told(calibrator):
    enough = ENOUGH.get(calibrator, 1)
    assert codes(single(noise(enough, 4)), ROWS, calibrator=calibrator) == []
    if enough > 1:
        (note,) = notes(single(noise(enough - 1, 4)), ROWS, calibrator=calibrator)
        assert note.what == f"{enough - 1} samples calibrate, and {calibrator} ranges want {enough} or more"
        (note,) = notes(single(noise(1, 4)), ROWS, calibrator=calibrator)
        assert note.what.startswith("1 sample calibrates, and")


def test_rows_of_a_batch_count_and_a_shard_may_be_small():
    assert codes([{"x": noise(16, 4)}], ROWS, calibrator="mse") == []
    assert codes([{"x": noise(15, 4)}], ROWS, calibrator="mse") == ["few-samples"]
    assert codes(single(noise(9, 4)), ROWS, calibrator="mse", shard=(1, 3)) == []


def test_random_data_has_its_own_warning():
    assert codes("random", IMAGE, calibrator="mse", samples=1) == []


# --- overlap -------------------------------------------------------------------------------------------


@given(known=st.sets(st.integers(0, 9)), verifying=st.lists(st.integers(0, 9), max_size=12))
@settings(max_examples=40, deadline=None)
def test_samples_that_calibrated_and_verify_are_counted(known, verifying):
    source = open_data([{"x": np.zeros((1, 4), np.float32)}], [ROWS])
    findings = Findings(source)
    feeds = [{"x": np.full((1, 4), value, np.float32)} for value in range(10)]
    findings.notes([short_hash(feeds[i]) for i in known], samples=len(known), calibrator="", scaled=set(), where="")
    assert len(list(findings.verifying(feeds[i] for i in verifying))) == len(verifying)
    both = len(known & set(verifying))
    found = findings.overlap()
    assert len(found) == bool(both)
    for note in found:
        assert note.code == "overlapping-data"
        assert note.what.startswith(f"{both} of {len(set(verifying))} samples that verify calibrated too")


# --- cost ----------------------------------------------------------------------------------------------


def test_a_split_hashes_each_feed_once():
    feeds = single(noise(40, 4))
    found = split_feeds(feeds)
    passed = [*found, *found.verification]
    assert all(isinstance(feed, Hashed) for feed in passed)
    assert sorted(map(content_hash, passed)) == sorted(map(content_hash, feeds))


def test_memory_does_not_grow_with_samples():
    source = open_data(single(noise(8, 3, 64, 64, top=255)), [FREE])
    findings = Findings(source)
    feeds = list(source)
    tracemalloc.start()
    for _ in findings.watch(feed for _ in range(200) for feed in feeds):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * feeds[0]["x"].nbytes


def test_a_float64_beyond_float32_warns_of_nothing():
    wide = InputSpec(name="x", dtype="float64", shape=("N", 3, 16, 16))
    feeds = [{"x": np.full((1, 3, 16, 16), 1e300) * (1 + image)} for image in noise(40, 1, 3, 16, 16)]
    assert "unscaled-values" not in codes(feeds, wide)
