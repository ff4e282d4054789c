"""A shard is every N-th feed of the whole source, and loads no other."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantool.data import DataOptions, InputSpec, open_data
from quantool.data.archive import RowReader
from quantool.errors import DataError, OptionError

X = InputSpec(name="x", dtype="float32", shape=("N", 3))
ROWS = np.arange(33, dtype=np.float32).reshape(11, 3)


def decode(content: bytes):
    return np.frombuffer(content, np.float32).reshape(1, 3)


def values(source, **options):
    return [float(feed["x"][0, 0]) for feed in open_data(source, [X], DataOptions(decode_tensor=decode, **options))]


def archive(folder):
    np.savez(folder / "d.npz", x=ROWS)
    return folder / "d.npz"


def packed(folder):
    np.savez_compressed(folder / "d.npz", x=ROWS)
    return folder / "d.npz"


def columns(folder):
    np.save(folder / "d.npy", np.asfortranarray(ROWS))
    return folder / "d.npy"


def files(folder):
    for number, row in enumerate(ROWS):
        np.save(folder / f"{number}.npy", row[None])
    return folder


def data_sets(folder):
    for number, row in enumerate(ROWS):
        (folder / f"test_data_set_{number}").mkdir()
        (folder / f"test_data_set_{number}/input_0.pb").write_bytes(row.tobytes())
    return folder


def lines(folder):
    (folder / "d.jsonl").write_text("\n".join(f'{{"x": [{row.tolist()}]}}' for row in ROWS))
    return folder / "d.jsonl"


def memory(folder):
    del folder
    return [{"x": row[None]} for row in ROWS]


def chance(folder):
    del folder
    return "random"


SOURCES = [archive, packed, columns, files, data_sets, lines, memory, chance]


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("samples", [None, 5])
@pytest.mark.parametrize("shards", [1, 2, 3, 20])
def test_shards_together_are_the_whole_and_each_takes_every_nth(tmp_path, make, samples, shards):
    source = make(tmp_path)
    whole = values(source, samples=samples)
    assert len(whole) == min(samples or 11, 8 if source == "random" else 11)
    for shard in range(1, shards + 1):
        assert values(source, samples=samples, shard=(shard, shards)) == whole[shard - 1 :: shards]


@given(rows=st.integers(1, 20), batch=st.integers(1, 4), shards=st.integers(1, 5), samples=st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_batches_are_cut_before_the_shards(tmp_path_factory, rows, batch, shards, samples):
    path = tmp_path_factory.mktemp("d") / "d.npy"
    np.save(path, np.arange(rows * 3, dtype=np.float32).reshape(rows, 3))
    if rows // batch == 0:
        return
    whole = values(path, batch_size=batch, samples=samples)
    parts = [values(path, batch_size=batch, samples=samples, shard=(i, shards)) for i in range(1, shards + 1)]
    assert sorted(value for part in parts for value in part) == whole


def test_files_of_other_shards_are_not_read(tmp_path):
    files(tmp_path)
    for number in (0, 2, 3, 4, 6, 7, 8, 10):
        (tmp_path / f"{number}.npy").write_text("never read")
    assert values(tmp_path, shard=(2, 4)) == [3.0, 15.0, 27.0]


def test_lines_of_other_shards_are_not_parsed(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"x": [[1, 2, 3]]}\nnot parsed\n{"x": [[4, 5, 6]]}\n')
    assert values(tmp_path / "d.jsonl", shard=(1, 2)) == [1.0, 4.0]


def test_rows_of_other_shards_are_skipped(tmp_path, monkeypatch):
    read = []
    rows = RowReader.rows
    monkeypatch.setattr(RowReader, "rows", lambda self, first, count: read.append(first) or rows(self, first, count))
    values(archive(tmp_path), shard=(3, 4))
    assert read == [2, 6, 10]


def test_errors_count_samples_over_all_shards(tmp_path):
    bad = ROWS.copy()
    bad[7] = np.nan
    np.save(tmp_path / "d.npy", bad)
    assert len(values(tmp_path / "d.npy", shard=(1, 2))) == 6
    with pytest.raises(DataError, match=r"nonfinite: .*\[input 'x', sample 7\]"):
        values(tmp_path / "d.npy", shard=(2, 2))


def test_a_shard_may_be_empty_and_a_source_may_not():
    assert values([{"x": ROWS[:1]}], shard=(3, 3)) == []
    with pytest.raises(DataError, match="no-samples"):
        values([], shard=(1, 2))


@pytest.mark.parametrize("shard", [(0, 2), (3, 2), (-1, 1), (1, 0)])
def test_shards_that_do_not_exist_are_refused(shard):
    with pytest.raises(OptionError, match=rf"--shard is {shard[0]}/{shard[1]} \[--shard\] Give I/N with I from 1 to N"):
        DataOptions(shard=shard)


def test_options_and_inputs_travel_to_another_process():
    options = DataOptions(samples=3, shard=(1, 2), preprocess="0-1", decode_tensor=decode)
    assert pickle.loads(pickle.dumps(options)) == options
    assert pickle.loads(pickle.dumps(X)) == X
