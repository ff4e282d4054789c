"""What serves models of gigabytes, on small ones: shards, several files, hubs' links, kills, threads, a full disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from pipeline.bed import Shell
from pipeline.test_outputs import STOPPED
from quantool.graph import shards
from quantool.kernels.metrics import cosine
from quantool.pipeline import memory
from sample_models.decoder.config import DecoderConfig
from sample_models.decoder.random_weights import RandomWeights, random_ids
from sample_models.decoder.write import write_decoder

CONFIG = DecoderConfig(layers=1, hidden=256, intermediate=640, heads=4, kv_heads=2, vocabulary=512, cache="none")
QUANTIZE = "quantize m.onnx -o q.onnx --mode weight-only --weights"


@pytest.fixture
def decoder(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A decoder with two files of external data, whose weights are treated as those of a large model."""
    write_decoder(Path("m.onnx"), CONFIG, RandomWeights(CONFIG, 0), files=2)
    monkeypatch.setattr(memory, "MAPPED_FROM", 1)
    return shell


def files_of(path: Path) -> set[str]:
    """The external data files that a model refers to, each of whose tensors must be aligned."""
    found = set()
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        fields = {item.key: item.value for item in tensor.external_data}
        if fields:
            assert int(fields["offset"]) % 4096 == 0
            found.add(fields["location"])
    return found


def logits(path: Path) -> np.ndarray:
    ids = random_ids(CONFIG, 1, 8, 1)
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(8)[None]}
    [result] = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feed)
    return result


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_several_files_become_shards(decoder: Shell, weights: str) -> None:
    before = content(Path())
    found = decoder(f"{QUANTIZE} {weights} --shard-size 300K --json").document
    assert found["exit_code"] == 0, found["errors"]
    written = files_of(Path("q.onnx"))
    assert len(written) > 1
    assert set(content(Path())) == {*before, "q.onnx", *written}
    assert {name: data for name, data in content(Path()).items() if name in before} == before
    assert sum(len(content(Path())[name]) for name in ("q.onnx", *written)) == found["output"]["size_bytes"]
    assert all(name.startswith("q.") and Path(name).stat().st_size <= 300 * 1024 for name in written)
    exact, test = logits(Path("m.onnx")), logits(Path("q.onnx"))
    assert cosine(exact, test) > (0.995 if weights == "int8" else 0.85)


def test_a_tensor_above_the_size_stands_alone(decoder: Shell) -> None:
    assert decoder(f"{QUANTIZE} int8 --shard-size 1K --json").code == 0
    tensors = onnx.load("q.onnx", load_external_data=False).graph.initializer
    places = [item.value for tensor in tensors for item in tensor.external_data if item.key == "location"]
    assert len(places) == len(set(places)) > 5


@pytest.mark.parametrize("size", ["0", "-1", "two", "1.5X"])
def test_other_sizes_are_refused(decoder: Shell, size: str) -> None:
    found = decoder(f"{QUANTIZE} int8 --shard-size={size} --json").document
    assert found["exit_code"] == 2
    assert found["errors"][0]["where"] == "--shard-size"


def test_threads_change_no_byte(decoder: Shell) -> None:
    found = []
    for threads in (1, 2):
        folder = Path(str(threads))
        folder.mkdir()
        line = f"{QUANTIZE} int4 --shard-size 300K --threads {threads} --json".replace("q.onnx", f"{folder}/q.onnx")
        assert decoder(line).code == 0
        found.append(content(folder))
    assert found[0] == found[1]


def test_models_as_hubs_keep_them(decoder: Shell) -> None:
    """snapshots/main holds links into blobs, the model and its data alike."""
    blobs, snapshot = Path("hub/blobs"), Path("hub/snapshots/main")
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, name in enumerate(("m.onnx", "m.onnx_data", "m.onnx_data_1")):
        Path(name).rename(blobs / f"{number:040x}")
        (snapshot / name).symlink_to(Path("../../blobs") / f"{number:040x}")
    before = content(blobs)
    found = decoder(f"quantize {snapshot}/m.onnx -o q.onnx --mode weight-only --json").document
    assert found["exit_code"] == 0, found["errors"]
    assert [w for w in found["warnings"] if w["code"] == "float-not-compared"] == []
    assert content(blobs) == before
    assert len(logits(Path("q.onnx"))) == 1


def test_with_data_large_weights_stay_mapped_and_outputs_are_compared(
    decoder: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = random_ids(CONFIG, 3, 8, 0).tolist()
    ones, positions = [1] * 8, list(range(8))
    lines = [{"input_ids": [r], "attention_mask": [ones], "position_ids": [positions]} for r in rows]
    Path("d.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(memory, "machine_bytes", lambda: 1)
    line = f"{QUANTIZE} int8 --verify-data d.jsonl --json"
    found = decoder(line).document
    assert found["exit_code"] == 0, found["errors"]
    assert found["latency"] is None
    assert "Speed was not measured" in found["verdict"]
    assert found["verification"]["samples"] == 3
    assert found["verification"]["outputs"]["logits"]["cosine"] > 0.995
    assert len(files_of(Path("q.onnx"))) == 1


def test_a_disk_without_room_is_refused_before_any_work(decoder: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    monkeypatch.setattr(import_module("quantool.pipeline.quantize"), "normalized", None)
    found = decoder(f"{QUANTIZE} int8 --json").document
    [error] = found["errors"]
    assert (found["exit_code"], error["code"]) == (2, "disk-full")
    assert "takes at least 0.00 GB, the disk has 0.00 GB free" in error["what"]


@pytest.mark.parametrize("point", ["quantool.graph.shards:_Writer._end", "quantool.graph.save:Pending.commit"])
def test_a_run_killed_while_it_writes_shards_leaves_nothing(decoder: Shell, point: str) -> None:
    Path("q.onnx").write_bytes(b"old")
    before = content(Path())
    words = f"{QUANTIZE} int8 --shard-size 300K --force --quiet".split()
    started = subprocess.Popen([sys.executable, "-c", STOPPED, point, *words], stderr=subprocess.PIPE)
    end = time.monotonic() + 60
    while not Path("stopped").exists():
        assert started.poll() is None, started.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    started.send_signal(signal.SIGKILL)
    started.communicate(timeout=30)
    Path("stopped").unlink()
    assert content(Path()) == before


def test_a_run_that_fails_while_it_writes_leaves_nothing(decoder: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, calls = shards._Writer.add, iter(range(100))

    def full(writer: shards._Writer, name: str, data: memoryview) -> None:
        if next(calls) == 5:
            raise OSError(28, os.strerror(28))
        honest(writer, name, data)

    monkeypatch.setattr(shards._Writer, "add", full)
    before = content(Path())
    found = decoder(f"{QUANTIZE} int8 --shard-size 300K --json").document
    assert (found["exit_code"], found["errors"][0]["code"]) == (2, "output-unwritable")
    assert content(Path()) == before


def test_weights_in_the_models_file_are_read_from_there(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    write_decoder(Path("m.onnx"), CONFIG, RandomWeights(CONFIG, 0), files=0)
    assert shell(f"{QUANTIZE} int8 --json".replace("q.onnx", "whole.onnx")).code == 0
    monkeypatch.setattr(memory, "MAPPED_FROM", 1)
    monkeypatch.setattr("quantool.graph.load.OUTLINED_FROM", 1)
    monkeypatch.setattr("quantool.graph.load._read_bytes", None)
    found = shell(f"{QUANTIZE} int8 --json").document
    assert found["exit_code"] == 0, found["errors"]
    assert found["model"]["size_bytes"] == Path("m.onnx").stat().st_size
    assert [w for w in found["warnings"] if w["code"] == "float-not-compared"] == []
    assert len(files_of(Path("q.onnx"))) == 1
    np.testing.assert_array_equal(logits(Path("q.onnx")), logits(Path("whole.onnx")))
