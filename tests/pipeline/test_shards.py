"""Shards by hand: every N-th sample in a run of its own, and files that merge to that of one run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import quantool
from pipeline.bed import Shell, feeds, images, model, normal
from quantool.errors import DataError, OptionError
from quantool.requests import shard_of


def shards(ready: Shell, count: int, *more: str) -> list[str]:
    """The files of all shards of ``d.npz``."""
    names = [f"s{number}.qcal" for number in range(1, count + 1)]
    for number, name in enumerate(names, 1):
        assert ready(f"calibrate m.onnx --data d.npz --shard {number}/{count} -o {name} --quiet", *more).code == 0
    return names


def test_sixteen_shards_merge_to_the_bytes_of_one_run_in_any_order(ready: Shell) -> None:
    assert ready("calibrate m.onnx --data d.npz -o one.qcal --collect gram").code == 0
    names = shards(ready, 16, "--collect", "gram")
    for seed in range(4):
        random.Random(seed).shuffle(names)
        assert ready("merge -o all.qcal --force", *names).code == 0
        assert Path("all.qcal").read_bytes() == Path("one.qcal").read_bytes()
    # Pairs first, then pairs of pairs: the grouping is as free as the order.
    parts = [quantool.merge(*names[start : start + 4]) for start in range(0, 16, 4)]
    assert parts[2].merge(parts[0]).merge(parts[3].merge(parts[1])).to_bytes() == Path("one.qcal").read_bytes()


def test_a_shard_without_samples_counts_nothing_and_says_so(ready: Shell) -> None:
    assert ready("calibrate m.onnx --data d.npz --samples 3 -o one.qcal").code == 0
    names = [f"s{number}.qcal" for number in (2, 4, 1, 3)]
    for name in names:
        ran = ready(f"calibrate m.onnx --data d.npz --samples 3 --shard {name[1]}/4 -o {name}")
        assert ("empty-shard" in ran.out) == (name == "s4.qcal")
    assert ready("merge -o all.qcal", *names).code == 0
    assert Path("all.qcal").read_bytes() == Path("one.qcal").read_bytes()


def test_new_samples_cost_no_run_of_the_old_ones(ready: Shell) -> None:
    array = images(24)
    np.savez("old.npz", image=array[:20])
    np.savez("new.npz", image=array[20:])
    assert ready("calibrate m.onnx --data old.npz -o old.qcal").code == 0
    ran = ready("calibrate m.onnx --data new.npz -o new.qcal --json")
    assert ran.document["data"]["samples"] == 4
    merged = quantool.merge("new.qcal", "old.qcal")
    whole = quantool.calibrate("m.onnx", data="d.npz")
    assert (merged.tensors, merged.channels, merged.samples) == (whole.tensors, whole.channels, 24)


def test_feeds_in_memory_divide_too(ready: Shell) -> None:
    whole = quantool.calibrate("m.onnx", data=feeds())
    parts = [quantool.calibrate("m.onnx", data=iter(feeds()), shard=(number, 3)) for number in (3, 1, 2)]
    assert quantool.merge(*parts).to_bytes() == whole.to_bytes()
    assert quantool.calibrate("m.onnx", data=feeds(), shard="2/3").to_bytes() == parts[2].to_bytes()


def test_an_error_names_the_sample_by_its_place_in_the_whole_source(ready: Shell) -> None:
    array = images(24)
    array[13] = 1e38
    np.savez("d.npz", image=array)
    ran = ready("calibrate m.onnx --data d.npz --shard 2/4 -o s.qcal")
    assert ran.code == 2
    assert "sample 13 makes NaN or infinity" in ran.err
    # A sample that the model cannot run passes the check of types and shapes: only its values are wrong.
    proto = model(
        "(float[N,3] x, int64[1] i) => (float[N,2] y) { g = Gather<axis=1>(x, i) y = MatMul(g, w) }",
        {"w": normal(1, 2)},
    )
    data = [{"x": normal(1, 3), "i": np.array([number == 5]) * 9} for number in range(8)]
    with pytest.raises(DataError, match="fails on the sample") as caught:
        quantool.calibrate(proto, data=data, shard=(2, 4))
    assert caught.value.where == "sample 5"


@pytest.mark.parametrize(("shard", "words"), [("0/4", "0/4"), ("5/4", "5/4"), ("4", "is '4'"), ("a/b", "is 'a/b'")])
def test_a_shard_that_is_none_is_refused(ready: Shell, shard: str, words: str) -> None:
    ran = ready(f"calibrate m.onnx --data d.npz -o s.qcal --shard {shard}")
    assert ran.code == 2
    assert words in ran.err
    assert "3/4" in ran.err
    assert ready.files() == ["d.npz", "m.onnx"]


@pytest.mark.parametrize("given", [3, (1,), (1, 2, 3), (1.0, 2.0), ("1", "2")])
def test_python_refuses_what_is_no_pair(given: object) -> None:
    with pytest.raises(OptionError, match="--shard is"):
        shard_of(given)


def test_an_ordered_statistic_is_not_divided(ready: Shell) -> None:
    for option in ("--shard 1/2", "--workers 2", "--scheduler tcp://localhost:1"):
        ran = ready(f"calibrate m.onnx --data d.npz -o s.qcal --calibrator moving-average {option}")
        assert ran.code == 2
        assert "depends on their order" in ran.err


def test_feeds_that_are_not_there_at_all_stay_an_error(ready: Shell) -> None:
    def none() -> Iterator[dict[str, object]]:
        yield from ()

    with pytest.raises(DataError, match="no sample"):
        quantool.calibrate("m.onnx", data=none(), shard="1/2")
