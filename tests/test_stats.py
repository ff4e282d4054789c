from __future__ import annotations

import dataclasses
import io
import json
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrators import Channels, Extrema, Gram, Histogram, MovingAverage
from quantool import qcal
from quantool.errors import DataError, QuantoolError
from quantool.stats import Stats

X = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
ROWS = X.reshape(1, 8, 125)
STATS = Stats(
    channels={"a": Channels(axis=1).observe(ROWS), "b": Channels(axis=-1)},
    grams={"a": Gram().observe(X[:960].reshape(40, 2, 12)), "none": Gram()},
    graph_sha256="0f" * 32,
    sources=("one.npz (2 feeds)",),
    feeds=(3, 2**64 - 1),
    tensors={
        "b": Extrema().observe(X),
        "a": Histogram().observe(X),
        "empty": Histogram(),
        "m": MovingAverage(decay=0.9).observe(X).observe(2 * X),
        "nan": Extrema().observe([np.nan]),
    },
    model_sha256="ab" * 32,
    samples=2,
)
MERGEABLE = dataclasses.replace(STATS, tensors={k: v for k, v in STATS.tensors.items() if k != "m"})

any_float = st.floats(width=32, allow_subnormal=True)
arrays = hnp.arrays(np.float32, st.integers(0, 30), elements=any_float)


def members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewritten(**changes: object) -> bytes:
    """A file whose header or binary members were changed."""
    parts = members(STATS.to_bytes())
    header = json.loads(parts["header.json"]) | changes.pop("header", {})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in {**parts, "header.json": json.dumps(header).encode(), **changes}.items():
            if content is not None:
                archive.writestr(name, content)
    return buffer.getvalue()


def row(**changes: object) -> dict[str, object]:
    """A header whose first row (tensor a, a histogram) was changed."""
    rows = json.loads(members(STATS.to_bytes())["header.json"])["tensors"]
    return {"tensors": [rows[0] | changes, *rows[1:]]}


def gram(**changes: object) -> dict[str, object]:
    """A header whose first Gram matrix was changed."""
    rows = json.loads(members(STATS.to_bytes())["header.json"])["grams"]
    return {"grams": [rows[0] | changes, *rows[1:]]}


def negative_buckets() -> dict[str, object]:
    """A header whose numbers of buckets add up although one is negative."""
    rows = json.loads(members(STATS.to_bytes())["header.json"])["tensors"]
    total = sum(entry["buckets"] for entry in rows)
    counts = [-1, total + 1, *[0] * (len(rows) - 2)]
    return {"tensors": [entry | {"buckets": n} for entry, n in zip(rows, counts, strict=True)]}


def test_a_file_gives_back_what_was_saved(tmp_path):
    path = tmp_path / "s.qcal"
    STATS.save(path)
    assert Stats.load(path) == STATS
    assert list(tmp_path.iterdir()) == [path]


@given(a=arrays, b=arrays)
@settings(max_examples=40, deadline=None)
def test_any_statistic_survives_the_file(a, b):
    stats = Stats(tensors={"h": Histogram().observe(a), "m": MovingAverage().observe(a).observe(b)})
    assert Stats.from_bytes(stats.to_bytes()) == stats


def test_equal_statistics_give_equal_bytes_whatever_the_order():
    backwards = dataclasses.replace(STATS, tensors=dict(reversed(STATS.tensors.items())))
    assert backwards.to_bytes() == STATS.to_bytes()


def test_merged_shards_give_the_bytes_of_the_whole():
    def found(pieces):
        channels, gram, histogram = Channels(axis=1), Gram(), Histogram()
        for piece in pieces:
            table = piece.reshape(1, 8, 25)
            channels, gram = channels.observe(table), gram.observe(table.transpose(2, 0, 1))
            histogram = histogram.observe(piece)
        return Stats(
            tensors={"a": histogram},
            channels={"a": channels},
            grams={"a": gram},
            samples=len(pieces),
            feeds=tuple(sorted(hash(piece.tobytes()) % 2**64 for piece in pieces)),
        )

    pieces = [p * 3.0**i for i, p in enumerate(np.split(X, 5))]
    parts, whole = [found([piece]) for piece in pieces], found(pieces)
    merged = parts[3].merge(parts[0]).merge(parts[4].merge(parts[2])).merge(parts[1])
    assert merged.to_bytes() == whole.to_bytes()


def test_merging_adds_samples_and_keeps_the_model():
    both = MERGEABLE.merge(MERGEABLE)
    assert (both.samples, both.model_sha256, both.tensors["a"].counted) == (4, "ab" * 32, 2000)
    assert both.nonfinite == 2


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (dataclasses.replace(MERGEABLE, model_sha256="cd" * 32), r"belong to the model cdcd.*, not to abab"),
        (dataclasses.replace(MERGEABLE, full=True), "one counted every element"),
        (dataclasses.replace(MERGEABLE, tensors={"a": Histogram()}), r"3 statistics are in one .* \[tensor 'b'\]"),
        (
            dataclasses.replace(MERGEABLE, tensors={**MERGEABLE.tensors, "a": Extrema()}),
            "one holds histogram, the other extrema",
        ),
    ],
    ids=["model", "sampling", "tensors", "kind"],
)
def test_what_does_not_belong_together_is_not_merged(other, message):
    with pytest.raises(QuantoolError, match=message) as info:
        MERGEABLE.merge(other)
    assert info.value.exit_code == 2


def test_moving_averages_are_not_merged():
    with pytest.raises(QuantoolError, match="moving averages of 2 and 2 samples cannot be merged"):
        STATS.merge(STATS)


def test_another_model_is_refused():
    STATS.require_model("ab" * 32)
    with pytest.raises(QuantoolError, match=r"belong to the model abab.*not to 0000.*Calibrate this model"):
        STATS.require_model("00" * 32)


def test_another_version_is_refused_before_the_rest_is_read(tmp_path):
    path = tmp_path / "new.qcal"
    path.write_bytes(rewritten(header={"version": 3, "surprise": 1}))
    with pytest.raises(QuantoolError, match=r"version 3, and this quantool reads version 2 .*new\.qcal"):
        Stats.load(path)


def test_another_version_of_one_statistic_is_refused(tmp_path):
    versions = json.loads(members(STATS.to_bytes())["header.json"])["statistics"]
    path = tmp_path / "new.qcal"
    path.write_bytes(rewritten(header={"statistics": versions | {"histogram": 7}}))
    with pytest.raises(QuantoolError, match=r"statistic 'histogram' has version 7, and this quantool reads version 1"):
        Stats.load(path)


def test_statistics_cannot_be_moved_to_another_graph_or_data():
    other = dataclasses.replace(STATS, feeds=(4, 5))
    with pytest.raises(DataError, match="feeds are not those"):
        Stats.from_bytes(rewritten(**{"feeds.bin": members(other.to_bytes())["feeds.bin"]}))
    for change in ({"graph_sha256": "00" * 32}, {"model_sha256": "00" * 32}):
        with pytest.raises(DataError, match="belongs to another graph or data"):
            Stats.from_bytes(rewritten(header=change))


DAMAGED = {
    "no zip": (b"\x80\x04pickle", "not a zip file"),
    "empty": (b"", "not a zip file"),
    "truncated": (STATS.to_bytes()[:-30], "not a zip file"),
    "no counts": (rewritten(**{"counts.bin": None}), r"counts\.bin"),
    "long counts": (rewritten(**{"counts.bin": b"\0" * 10**6}), "more than the .* that belong there"),
    "short keys": (rewritten(**{"keys.bin": b"\0" * 10}), "do not fit the file"),
    "odd keys": (rewritten(**{"keys.bin": b"\0" * 11}), "multiple of"),
    "keys not ascending": (
        rewritten(**{"keys.bin": b"\0\x80" * (len(members(STATS.to_bytes())["keys.bin"]) // 2)}),
        "contradict",
    ),
    "header no json": (rewritten(**{"header.json": b"{"}), "truncated"),
    "other format": (rewritten(header={"format": "x"}), "its format is 'x'"),
    "unknown field": (rewritten(header={"surprise": 1}), "unknown field `surprise`"),
    "wrong type": (rewritten(header={"samples": "2"}), "Expected `int`"),
    "count below the buckets": (rewritten(header=row(count=3)), "contradict"),
    "no extrema": (rewritten(header=row(minimum=None)), "extrema of tensor 'a' contradict"),
    "unknown kind": (rewritten(header=row(kind="sketch")), "no readable statistic of kind 'sketch'"),
    "averages missing": (rewritten(header=row(kind="moving-average")), "no readable statistic"),
    "negative buckets": (rewritten(header=negative_buckets()), "do not fit"),
    "fewer buckets": (rewritten(header=row(buckets=0)), "more than"),
    "short channels": (rewritten(**{"channels.bin": b"\0" * 8}), "buffer"),
    "long grams": (rewritten(**{"grams.bin": b"\0" * 10**6}), "more than the .* that belong there"),
    "gram of no size": (rewritten(header=gram(size=-3)), "belongs to no layer"),
    "grids not ascending": (rewritten(header=gram(exponents=[8, 4])), "contradicts itself|more than"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_data_that_cannot_be_used(case, tmp_path):
    content, message = DAMAGED[case]
    path = tmp_path / "bad.qcal"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"no undamaged \.qcal file: .*{message}.*bad\.qcal.*calibrate again"):
        Stats.load(path)


@given(position=st.integers(0, len(STATS.to_bytes()) - 1), byte=st.integers(0, 255))
@settings(max_examples=150, deadline=None)
def test_no_flipped_byte_gives_another_exception_or_other_statistics(position, byte):
    content = bytearray(STATS.to_bytes())
    content[position] = byte
    try:
        tensors = qcal.decode(bytes(content), where="memory").tensors
    except (DataError, QuantoolError):
        return
    assert tensors == STATS.tensors


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot be read: No such file .*gone\.qcal"):
        Stats.load(tmp_path / "gone.qcal")


def test_an_unwritable_place_is_named(tmp_path):
    with pytest.raises(QuantoolError, match=r"cannot be written: No such file .*s\.qcal"):
        STATS.save(tmp_path / "nowhere" / "s.qcal")


def test_saving_replaces_in_one_step(tmp_path):
    path = tmp_path / "s.qcal"
    path.write_bytes(b"old")
    STATS.save(path)
    assert Stats.load(path) == STATS
