"""External data in several files: how constants are spread, named and mapped, and that threads change no byte."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

from quantool import graph
from quantool.edits import AddInitializer, SetInput
from quantool.errors import ModelError, OptionError
from quantool.graph import save, shards
from quantool.graph.edit import apply
from quantool.graph.shards import ALIGNMENT_BYTES
from quantool.graph.stubs import with_mapped_weights
from quantool.runtime import Loadable, Optimization, Session, Thrift

COUNT, ROWS, COLUMNS = 6, 100, 256
SIZE = ROWS * COLUMNS * 4
FEED = {"x": np.linspace(-1, 1, COLUMNS, dtype=np.float32).reshape(1, COLUMNS)}


def values(number: int) -> np.ndarray:
    return np.random.default_rng(number).standard_normal((COLUMNS, COLUMNS), dtype=np.float32) / 16


def chain() -> graph.Model:
    """Six products, one after the other, whose weights are computed when they are written."""
    nodes = [
        onnx.helper.make_node("MatMul", ["x" if not i else f"y{i}", "w"], [f"y{i + 1}"], name=f"n{i}")
        for i in range(COUNT)
    ]
    ports = [onnx.helper.make_tensor_value_info(n, 1, ["n", COLUMNS]) for n in ("x", f"y{COUNT}")]
    weight = onnx.numpy_helper.from_array(values(0), "w")
    made = onnx.helper.make_graph(nodes, "g", ports[:1], ports[1:], [weight])
    opsets = [onnx.helper.make_opsetid("", 21)]
    model = graph.prepare(graph.read(onnx.helper.make_model(made, opset_imports=opsets, ir_version=10)))
    shape = (COLUMNS, COLUMNS)
    edits = [
        AddInitializer(name=f"w{i}", dtype="float32", shape=shape, load=lambda i=i: values(i)) for i in range(COUNT)
    ]
    apply(model, [*edits, *(SetInput(f"n{i}", 1, f"w{i}") for i in range(COUNT))])
    return model


def written(folder: Path, *, shard_bytes: int | None, threads: int = 1) -> Mapping[str, bytes]:
    folder.mkdir()
    with save.write_temporary(
        chain(), folder / "m.onnx", external=True, shard_bytes=shard_bytes, threads=threads
    ) as pending:
        assert list(folder.iterdir()) == []
        pending.commit()
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def run(path: Path) -> np.ndarray:
    [result] = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, FEED)
    return result


def expected() -> np.ndarray:
    result = FEED["x"]
    for i in range(COUNT):
        result = result @ values(i)
    return result


@pytest.mark.parametrize(
    ("limit", "files"), [(None, 1), (COUNT * COLUMNS * COLUMNS * 4, 1), (600_000, 3), (1000, COUNT)]
)
def test_constants_are_spread_over_files_that_keep_the_limit(tmp_path: Path, limit: int | None, files: int) -> None:
    found = written(tmp_path / "out", shard_bytes=limit)
    assert len(found) == files + 1
    model = onnx.load(tmp_path / "out" / "m.onnx", load_external_data=False)
    offsets = {}
    for tensor in model.graph.initializer:
        fields = {item.key: item.value for item in tensor.external_data}
        assert int(fields["offset"]) % ALIGNMENT_BYTES == 0
        offsets.setdefault(fields["location"], []).append(int(fields["offset"]))
    assert set(offsets) == set(found) - {"m.onnx"}
    for name, content in found.items():
        assert name == "m.onnx" or name == f"m.{hashlib.sha256(content).hexdigest()[:16]}.data"
        if name != "m.onnx" and limit is not None and len(offsets[name]) > 1:
            assert len(content) <= limit
    np.testing.assert_allclose(run(tmp_path / "out" / "m.onnx"), expected(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ahead", [shards.AHEAD_BYTES, COLUMNS * COLUMNS * 8])
def test_threads_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    monkeypatch.setattr(shards, "AHEAD_BYTES", ahead)
    one, two, many = (written(tmp_path / str(threads), shard_bytes=600_000, threads=threads) for threads in (1, 2, 5))
    assert one == two == many


def test_a_constant_that_cannot_be_computed_leaves_nothing(tmp_path: Path) -> None:
    model = chain()
    broken = {"load": lambda: np.zeros(3, np.float32), "dtype": "float32", "shape": (COLUMNS, COLUMNS)}
    apply(model, [AddInitializer(name="broken", **broken), SetInput("n3", 1, "broken")])
    for threads in (1, 2):
        with pytest.raises(ValueError, match="constant 'broken' has shape"):
            save.write_temporary(model, tmp_path / "m.onnx", shard_bytes=600_000, threads=threads)
    assert list(tmp_path.iterdir()) == []


def test_where_one_file_cannot_be_put_in_place_none_is(tmp_path: Path) -> None:
    kept = written(tmp_path / "good", shard_bytes=600_000)
    last = max(name for name in kept if name != "m.onnx")
    (tmp_path / last).write_bytes(b"another")
    with (
        save.write_temporary(chain(), tmp_path / "m.onnx", shard_bytes=600_000) as pending,
        pytest.raises(OptionError, match="output-exists"),
    ):
        pending.commit()
    assert {path.name for path in tmp_path.iterdir()} == {"good", last}
    assert (tmp_path / last).read_bytes() == b"another"


def test_files_that_are_there_already_are_shared(tmp_path: Path) -> None:
    first = written(tmp_path / "out", shard_bytes=600_000)
    with save.write_temporary(chain(), tmp_path / "out" / "m.onnx", shard_bytes=600_000, force=True) as pending:
        pending.commit()
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == first


def test_a_disk_without_room_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    monkeypatch.setattr(os, "open", None)
    with pytest.raises(OptionError, match=r"disk-full.*0\.00 GB.*0\.00 GB free.*Free"):
        save.write_temporary(chain(), tmp_path / "m.onnx", external=True)


# --- sessions on files without a name -------------------------------------------------------------------


def low_bits() -> graph.Model:
    """A product with int4 weights behind DequantizeLinear."""
    text = (
        '<ir_version: 10, opset_import: ["": 21]> g (float[n,512] x, int4[512,512] w) => (float[n,512] y) '
        "{ s = Constant <value = float {0.5}> () d = DequantizeLinear(w, s) y = MatMul(x, d) }"
    )
    model = onnx.parser.parse_model(text)
    codes = np.random.default_rng(0).integers(-8, 8, (512, 512)).astype(ml_dtypes.int4)
    del model.graph.input[1]
    model.graph.initializer.append(onnx.numpy_helper.from_array(codes, "w"))
    return graph.prepare(graph.read(model))


@pytest.mark.parametrize("make", [chain, low_bits])
def test_mapped_weights_give_what_copied_ones_give(tmp_path: Path, make: object) -> None:
    assert callable(make)
    with save.write_temporary(make(), tmp_path / "m.onnx", external=True, shard_bytes=600_000) as pending:
        data, mapped = with_mapped_weights(pending.read(), pending.external)
        assert mapped
        assert len(data) < 64 * 1024
        plain = Loadable(model=pending.read(), external=pending.external)
        thrifty = Loadable(model=data, mapped=mapped, thrift=Thrift.WEIGHTS)
        if make is low_bits:  # fusing would make other weights of these: it fails, and cannot read wrong values
            with pytest.raises(ModelError, match="does-not-load"):
                Session(thrifty)
            plain, thrifty = (replace(each, optimization=Optimization.DISABLED) for each in (plain, thrifty))
        width = 512 if make is low_bits else COLUMNS
        feed = {"x": np.random.default_rng(1).standard_normal((2, width), dtype=np.float32)}
        [a], [b] = (Session(each).run(feed).values() for each in (plain, thrifty))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
