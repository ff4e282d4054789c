"""Several --data: side by side where each holds its own inputs, one after the other where each holds all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantool.data import DataOptions, InputSpec, open_data
from quantool.errors import DataError

IDS = InputSpec(name="ids", dtype="int64", shape=("N", 2))
MASK = InputSpec(name="mask", dtype="float32", shape=("N", 2))
KIND = InputSpec(name="kind", dtype="int64", shape=("N",))
BOTH = (IDS, MASK)


def rows(count, start=0):
    return np.arange(start, start + 2 * count).reshape(count, 2)


def saved(path, array):
    np.save(path, array)
    return path


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def opened(sources, *specs, **options):
    return open_data([str(source) for source in sources], specs or BOTH, DataOptions(**options))


def ids(tmp_path, count=5):
    return saved(tmp_path / "ids.npy", rows(count))


def mask_npy(tmp_path, count=5):
    return saved(tmp_path / "mask.npy", rows(count).astype(np.float32))


def mask_npz(tmp_path, count=5):
    return npz(tmp_path / "m.npz", mask=rows(count).astype(np.float32), label=np.arange(count))


def mask_folder(tmp_path, count=5):
    (tmp_path / "mask").mkdir()
    for number, row in enumerate(rows(count).astype(np.float32)):
        np.save(tmp_path / "mask" / f"{number}.npy", row[None])
    return tmp_path / "mask"


def mask_lines(tmp_path, count=5):
    (tmp_path / "m.jsonl").write_text("\n".join(f'{{"mask": [{row.tolist()}]}}' for row in rows(count)))
    return tmp_path / "m.jsonl"


MASKS = [mask_npy, mask_npz, mask_folder, mask_lines]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("swap", [False, True])
def test_sources_of_different_inputs_are_read_side_by_side(tmp_path, mask, swap):
    sources = [ids(tmp_path), mask(tmp_path)]
    found = opened(sources[::-1] if swap else sources)
    assert " with " in found.description
    for feed, row in zip(found, rows(5), strict=True):
        assert list(feed) == ["ids", "mask"]
        assert np.array_equal(feed["ids"], row[None])
        assert np.array_equal(feed["mask"], row[None].astype(np.float32))


@given(count=st.integers(1, 9), samples=st.integers(1, 9), shards=st.integers(1, 4), batch=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_samples_shards_and_batches_count_matched_feeds(tmp_path_factory, count, samples, shards, batch):
    if count < batch:
        return
    folder = tmp_path_factory.mktemp("d")
    sources = [ids(folder, count), mask_npz(folder, count)]
    whole = list(opened(sources, batch_size=batch, samples=samples))
    assert len(whole) == min(samples, count // batch)
    assert all(np.array_equal(feed["ids"], feed["mask"]) for feed in whole)
    parts = [list(opened(sources, batch_size=batch, samples=samples, shard=(i, shards))) for i in range(1, shards + 1)]
    merged = [feed for group in itertools.zip_longest(*parts) for feed in group if feed is not None]
    assert [feed["ids"].tolist() for feed in merged] == [feed["ids"].tolist() for feed in whole]


def test_three_sources_and_a_part_each(tmp_path):
    pair = npz(tmp_path / "p.npz", ids=rows(4), kind=np.arange(4))
    (first, *_) = opened([pair, mask_npy(tmp_path, 4)], IDS, MASK, KIND)
    assert sorted(first) == ["ids", "kind", "mask"]
    (first, *_) = opened([ids(tmp_path, 4), mask_npy(tmp_path, 4), saved(tmp_path / "kind.npy", np.arange(4))],
                         IDS, MASK, KIND)  # fmt: skip
    assert sorted(first) == ["ids", "kind", "mask"]


def test_complete_sources_follow_one_another(tmp_path):
    both = [npz(tmp_path / f"{i}.npz", ids=rows(3, i), mask=rows(3, i).astype(np.float32)) for i in range(2)]
    found = opened(both)
    assert " + " in found.description
    assert [int(feed["ids"][0, 0]) for feed in found] == [0, 2, 4, 1, 3, 5]


def test_images_and_arrays_are_matched(tmp_path):
    Image = pytest.importorskip("PIL.Image", reason="the extra images")
    (tmp_path / "image").mkdir()
    for number in range(3):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "image" / f"{number}.png")
    specs = (InputSpec(name="image", dtype="uint8", shape=("N", 8, 8, 3)), KIND)
    found = list(opened([tmp_path / "image", saved(tmp_path / "kind.npy", np.arange(3))], *specs))
    assert [int(feed["image"][0, 0, 0, 0]) for feed in found] == [int(feed["kind"][0]) for feed in found] == [0, 1, 2]


def test_errors_say_where_each_half_came_from(tmp_path):
    bad = rows(5).astype(np.float32)
    bad[3] = np.nan
    folder = mask_folder(tmp_path)
    np.save(folder / "3.npy", bad[3:4])
    with pytest.raises(DataError, match=r"nonfinite: .*\[input 'mask', sample 3 \(3\.npy\)\]"):
        list(opened([ids(tmp_path), folder]))


# --- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [mask_npy, mask_npz, mask_folder])
def test_unequal_lengths_are_refused_before_anything_is_read(tmp_path, mask):
    match = r"uneven-sources: .*ids\.npy \(5 feeds\) and .*\(4 f.*\) differ .*give each the same number of samples"
    with pytest.raises(DataError, match=match):
        opened([ids(tmp_path), mask(tmp_path, 4)])


@pytest.mark.parametrize(("count", "ends"), [(4, r"m\.jsonl"), (6, r"ids\.npy")])
def test_unequal_lengths_that_only_reading_tells_are_refused_at_the_end(tmp_path, count, ends):
    found = opened([ids(tmp_path), mask_lines(tmp_path, count)])
    with pytest.raises(DataError, match=rf"uneven-sources: .*{ends} .*ends after {min(count, 5)} samples, and another"):
        list(found)


def test_an_input_that_no_source_holds_is_named(tmp_path):
    near = npz(tmp_path / "n.npz", masks=rows(5), label=rows(5))
    with pytest.raises(DataError, match=r"missing-input: no source holds input 'mask' .*Rename 'masks' to 'mask'"):
        opened([ids(tmp_path), near])
    with pytest.raises(DataError, match=r"no source holds input 'kind' .*Add --data for it, such as kind\.npy"):
        opened([ids(tmp_path), mask_npy(tmp_path)], IDS, MASK, KIND)


def test_what_is_neither_complete_nor_complementary_is_refused(tmp_path):
    whole = npz(tmp_path / "w.npz", ids=rows(5), mask=rows(5))
    held = r"w\.npz \(5 feeds\) holds 'ids', 'mask'; .*mask\.npy \(5 feeds\) holds 'mask'"
    with pytest.raises(DataError, match=rf"mixed-sources: .*{held} \[--data\] Give each input in one source, or all"):
        opened([whole, mask_npy(tmp_path)])
    with pytest.raises(DataError, match=r"mixed-sources: .*o\.npz \(1 feed\) holds no input"):
        opened([whole, npz(tmp_path / "o.npz", other=rows(5))])
    with pytest.raises(DataError, match=r"mixed-sources: .*random data \(seed 0\) holds 'ids', 'mask'"):
        opened(["random", mask_npy(tmp_path)])


def test_an_array_named_after_no_input_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"input-unnamed: .*takes 2: 'ids', 'mask' .*Name it after its input"):
        opened([ids(tmp_path), saved(tmp_path / "other.npy", rows(5))])
