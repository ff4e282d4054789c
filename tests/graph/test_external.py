"""External data: found where it really lies, refused where it cannot be trusted."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest

from quantool import graph
from quantool.errors import ModelError
from tests.graph.float_runs import run_model

WEIGHT = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) / 4096
BIAS = np.arange(64, dtype=np.float32)


def external(name: str, array: np.ndarray, location: str, **fields: int) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=name, data_type=1, dims=array.shape, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in {"location": location, **fields}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def model_bytes(*tensors: onnx.TensorProto) -> bytes:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N,64] x) => (float[N,64] y) { h = MatMul (x, w)  y = Add (h, b) }""")
    model.graph.initializer.extend(tensors)
    return model.SerializeToString()


def two_in_one_file(folder: Path, location: str = "data/weights.bin") -> Path:
    """A large and a small tensor in one file in a subfolder, at offsets, the last one without a length."""
    file = folder / location
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"head" + WEIGHT.tobytes() + BIAS.tobytes())
    path = folder / "model.onnx"
    path.write_bytes(
        model_bytes(
            external("w", WEIGHT, location, offset=4, length=WEIGHT.nbytes),
            external("b", BIAS, location, offset=4 + WEIGHT.nbytes),
        )
    )
    return path


def assert_right(path: Path) -> None:
    loaded = graph.read(path)
    model = graph.prepare(loaded)
    np.testing.assert_array_equal(graph.constant(model, "w"), WEIGHT)
    np.testing.assert_array_equal(graph.constant(model, "b"), BIAS)
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    (result,) = run_model(model, {"x": x})
    bound = 64 * 2.0**-23 * (np.abs(x) @ np.abs(WEIGHT)).max() + 2.0**-23 * BIAS.max()
    np.testing.assert_allclose(result, x @ WEIGHT + BIAS, rtol=0, atol=bound)


def test_two_tensors_at_offsets_of_one_file_in_a_subfolder(tmp_path: Path) -> None:
    path = two_in_one_file(tmp_path)
    assert_right(path)
    loaded = graph.read(path)
    assert loaded.source.folder == tmp_path
    assert loaded.source.size_bytes == path.stat().st_size + (tmp_path / "data/weights.bin").stat().st_size


def test_large_weights_stay_outside_and_small_ones_are_values(tmp_path: Path) -> None:
    model = graph.prepare(graph.read(two_in_one_file(tmp_path)))
    data, folder = graph.serialize(model)
    assert folder == tmp_path
    tensors = {tensor.name: tensor for tensor in onnx.ModelProto.FromString(data).graph.initializer}
    assert [entry.value for entry in tensors["w"].external_data] == ["data/weights.bin", "4", str(WEIGHT.nbytes)]
    assert tensors["b"].raw_data == BIAS.tobytes()
    np.testing.assert_array_equal(graph.facts(model).values["b"], BIAS)


def test_a_relative_path_and_another_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_in_one_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert_right(Path("model.onnx"))


def test_links_as_model_hubs_make_them(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    real = two_in_one_file(blobs, "model.onnx_data")
    real.rename(blobs / "0a1b")
    (blobs / "model.onnx_data").rename(blobs / "2c3d")
    (snapshot / "model.onnx").symlink_to("../../blobs/0a1b")
    (snapshot / "model.onnx_data").symlink_to("../../blobs/2c3d")
    assert_right(snapshot / "model.onnx")
    assert graph.read(snapshot / "model.onnx").checker_error is None


def test_a_link_beside_the_model_within_its_folder(tmp_path: Path) -> None:
    path = two_in_one_file(tmp_path, "data/real.bin")
    (tmp_path / "alias.bin").symlink_to("data/real.bin")
    path.write_bytes(
        model_bytes(
            external("w", WEIGHT, "alias.bin", offset=4), external("b", BIAS, "alias.bin", offset=4 + WEIGHT.nbytes)
        )
    )
    assert_right(path)


def test_a_file_with_two_hard_links(tmp_path: Path) -> None:
    """Package installers link files instead of copying them."""
    path = two_in_one_file(tmp_path, "weights.bin")
    os.link(tmp_path / "weights.bin", tmp_path / "other_name.bin")
    assert_right(path)


def refused(path: Path, code: str, what: str) -> ModelError:
    with pytest.raises(ModelError, match=what) as caught:
        graph.read(path)
    assert (caught.value.code, caught.value.exit_code) == (code, 2)
    return caught.value


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    path = two_in_one_file(tmp_path)
    (tmp_path / "data/weights.bin").unlink()
    error = refused(path, "external-data-missing", "external data 'data/weights.bin' is missing")
    assert error.where == str(tmp_path / "data/weights.bin")


def test_a_folder_instead_of_a_file_is_refused(tmp_path: Path) -> None:
    path = two_in_one_file(tmp_path)
    path.write_bytes(model_bytes(external("w", WEIGHT, "data"), external("b", BIAS, "data")))
    refused(path, "external-data-missing", "external data 'data' is not a file")


@pytest.mark.parametrize("missing", [1, BIAS.nbytes + 1], ids=["last-byte", "into-the-first-tensor"])
def test_a_short_file_is_refused(tmp_path: Path, missing: int) -> None:
    path = two_in_one_file(tmp_path)
    file = tmp_path / "data/weights.bin"
    file.write_bytes(file.read_bytes()[:-missing])
    error = refused(path, "external-data-short", r"tensor '[wb]' needs \d+ bytes")
    assert error.where == str(file)


def test_a_declared_length_below_the_shape_is_refused(tmp_path: Path) -> None:
    path = two_in_one_file(tmp_path, "w.bin")
    path.write_bytes(model_bytes(external("w", WEIGHT, "w.bin", length=12), external("b", BIAS, "w.bin")))
    refused(path, "external-data-short", r"tensor 'w' needs 16384 bytes \(declared 12\)")


def test_a_negative_offset_is_refused(tmp_path: Path) -> None:
    path = two_in_one_file(tmp_path, "w.bin")
    path.write_bytes(model_bytes(external("w", WEIGHT, "w.bin", offset=-4), external("b", BIAS, "w.bin")))
    refused(path, "external-data-broken", "offset '-4'")


@pytest.mark.parametrize("kind", ["parent", "parent-in-the-middle", "absolute", "link", "empty"])
def test_data_outside_the_folder_is_refused(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "inside"
    path = two_in_one_file(folder)
    outside = tmp_path / "outside.bin"
    outside.write_bytes(WEIGHT.tobytes())
    (folder / "link.bin").symlink_to(outside)
    location = {
        "parent": "../outside.bin",
        "parent-in-the-middle": "data/../../outside.bin",
        "absolute": str(outside),
        "link": "link.bin",
        "empty": "",
    }[kind]
    path.write_bytes(model_bytes(external("w", WEIGHT, location), external("b", BIAS, location)))
    error = refused(path, "external-data-outside", "lies outside the model's folder")
    assert location in error.what


def test_a_model_in_memory_with_external_data_is_refused(tmp_path: Path) -> None:
    model = onnx.ModelProto.FromString(two_in_one_file(tmp_path).read_bytes())
    with pytest.raises(ModelError, match="a model in memory has no folder") as caught:
        graph.read(model)
    assert "path of the model's file" in caught.value.fix


def test_reading_and_preparing_leave_the_files_alone(tmp_path: Path) -> None:
    path = two_in_one_file(tmp_path)
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.rglob("*") if file.is_file()}
    assert_right(path)
    graph.prepare(graph.read(path), opset=21)
    after = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.rglob("*") if file.is_file()}
    assert after == before


def test_threads_read_one_tensor_at_once_and_no_map_stays(tmp_path: Path) -> None:
    model = graph.prepare(graph.read(two_in_one_file(tmp_path)))
    tensor = model.ir.graph.initializers["w"].const_value
    assert tensor is not None
    with ThreadPoolExecutor(8) as pool:
        for array in pool.map(lambda _: tensor.numpy(), range(64)):
            np.testing.assert_array_equal(array, WEIGHT)
    del array
    assert tensor.tobytes() == WEIGHT.tobytes()
    np.testing.assert_array_equal(np.asarray(tensor), WEIGHT)
    assert "weights.bin" not in Path("/proc/self/maps").read_text()
