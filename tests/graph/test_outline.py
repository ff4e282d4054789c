"""Large model files are read without the weights in them, and nothing else about the model changes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest

from quantool import graph
from quantool.errors import ModelError
from quantool.graph import load, outline
from quantool.graph.protos import tensors
from quantool.runtime import Loadable, Session
from tests.graph.float_runs import run_model

WEIGHT = np.random.default_rng(0).standard_normal((160, 160), dtype=np.float32)
TEXT = """<ir_version: 8, opset_import: ["": 17], producer_name: "one">
g (float[N,160] x) => (float[N,160] y) {
    h = MatMul (x, w)
    c = Constant <value = float[1] {2}> ()
    s = Mul (h, c)
    y = Add (s, b)
}"""


def write(folder: Path) -> Path:
    """A model with a large weight, a small one, and an unusual name for the first."""
    model = onnx.parser.parse_model(TEXT)
    large = onnx.numpy_helper.from_array(WEIGHT, "w")
    large.doc_string = "kept"
    model.graph.initializer.extend([large, onnx.numpy_helper.from_array(WEIGHT[0], "b")])
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "OUTLINED_FROM", 1)


def test_only_the_data_of_large_initializers_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path)
    found, given = onnx.ModelProto.FromString(outline.outline(path)), onnx.load(path)
    [left_out] = [tensor for tensor in tensors(found) if tensor.external_data]
    fields = {item.key: item.value for item in left_out.external_data}
    start = int(fields["offset"])
    assert path.read_bytes()[start : start + int(fields["length"])] == WEIGHT.tobytes()
    del left_out.external_data[:]
    left_out.ClearField("data_location")
    left_out.raw_data = WEIGHT.tobytes()
    assert found == given


def test_the_model_is_the_same_and_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path)
    loaded = graph.read(path)
    assert graph.is_outlined(loaded)
    assert len(loaded.proto.SerializeToString()) < 2000
    monkeypatch.setattr(load, "OUTLINED_FROM", 1 << 40)
    whole = graph.read(path)
    assert not graph.is_outlined(whole)
    assert (loaded.source.sha256, loaded.source.size_bytes) == (whole.source.sha256, path.stat().st_size)
    assert graph.model_identity(loaded) == graph.model_identity(whole) == hashlib.sha256(path.read_bytes()).hexdigest()
    np.testing.assert_array_equal(graph.constant(graph.prepare(loaded), "w"), WEIGHT)


def test_runs_give_the_same_bits(tmp_path: Path) -> None:
    path = write(tmp_path)
    loaded = graph.read(path)
    feed = {"x": WEIGHT[:3]}
    [exact] = Session(Loadable(model=path)).run(feed).values()
    [given] = Session(Loadable(model=graph.given_bytes(loaded), folder=loaded.source.folder)).run(feed).values()
    np.testing.assert_array_equal(given, exact)
    [prepared] = run_model(graph.prepare(loaded), feed)
    np.testing.assert_allclose(prepared, exact, rtol=1e-5)


def test_a_link_to_the_model_is_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    path = write(tmp_path)
    path.rename(tmp_path / "blobs" / "5a5a")
    path.symlink_to(tmp_path / "blobs" / "5a5a")
    loaded = graph.read(path)
    assert graph.is_outlined(loaded)
    assert loaded.source.size_bytes == path.stat().st_size
    model = Loadable(model=graph.given_bytes(loaded), folder=loaded.source.folder)
    assert list(Session(model).run({"x": WEIGHT[:1]})) == ["y"]


@pytest.mark.parametrize("kept", [0.3, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused_as_before(tmp_path: Path, kept: float) -> None:
    path = write(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(ModelError, match="model-damaged"):
        graph.read(path)


@pytest.mark.parametrize("data", [b"\xff" * 100, b"no model", b"\x3a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"])
def test_what_is_no_model_is_refused_as_before(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(ModelError, match=r"model-damaged|not-a-model"):
        graph.read(tmp_path / "m.onnx")
