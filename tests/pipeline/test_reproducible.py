"""The same model and data give the same bytes, whatever the process, the hash seed, the order or the threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import quantool
from pipeline.bed import SAMPLES, Shell, branches, normal, process, save

NAMES = ("digits_mlp", "digits_cnn", "digits_depthwise", "digits_transformer")


def test_two_processes_of_other_hash_seeds_write_the_same_bytes(ready: Shell) -> None:
    save(branches(), Path("b.onnx"))
    np.savez("b.calib.npz", x=normal(20, 6))
    written = []
    for seed in ("1", "31337"):
        for model, data in (("m", ["--data", "d.npz"]), ("b", [])):
            ran = process("quantize", f"{model}.onnx", *data, "-o", f"{model}.{seed}", folder=ready.folder,
                          PYTHONHASHSEED=seed)  # fmt: skip
            assert (ran.returncode, ran.stderr) == (0, "")
        done = process("calibrate", "m.onnx", "--data", "d.npz", "-o", f"s.{seed}", folder=ready.folder,
                       PYTHONHASHSEED=seed)  # fmt: skip
        assert done.returncode == 0
        written.append([Path(f"{name}.{seed}").read_bytes() for name in ("m", "b", "s")])
    assert written[0] == written[1]


def test_the_path_of_the_model_and_the_output_does_not_matter(ready: Shell) -> None:
    Path("elsewhere").mkdir()
    Path("elsewhere/other.onnx").write_bytes(Path("m.onnx").read_bytes())
    assert ready("quantize m.onnx --data d.npz -o a.onnx").code == 0
    assert ready("quantize elsewhere/other.onnx --data d.npz").code == 0
    assert Path("a.onnx").read_bytes() == Path("elsewhere/other.int8.onnx").read_bytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_sample_models_give_the_same_bytes_in_any_order_and_with_any_threads(name: str, form: str) -> None:
    with np.load(SAMPLES / f"{name}.calib.npz") as archive:
        arrays = dict(archive)
    ((key, rows),) = arrays.items()
    rows = rows[:48]
    shuffled = np.random.default_rng(1).permutation(rows)
    runs = (
        {"data": [{key: row[None]} for row in rows], "threads": 1},
        {"data": [{key: row[None]} for row in rows], "threads": 2},
        {"data": ({key: row[None]} for row in shuffled), "threads": 1},
    )
    models = [quantool.quantize(SAMPLES / f"{name}.onnx", format=form, **run).model for run in runs]  # type: ignore[arg-type]
    assert models[0].SerializeToString() == models[1].SerializeToString() == models[2].SerializeToString()


def test_statistics_follow_the_rows_and_not_how_they_are_cut(ready: Shell) -> None:
    found = []
    for size in (1, 2, 8, 24):
        assert ready(f"calibrate m.onnx --data d.npz --batch-size {size} -o s.qcal --force").code == 0
        found.append(quantool.Stats.load("s.qcal").tensors)
    for tensors in found[1:]:
        assert tensors["image"] == found[0]["image"]
        # Behind the input the runtime may round sums of another batch in another order.
        assert {n: t.extrema.count for n, t in tensors.items()} == {n: t.extrema.count for n, t in found[0].items()}
