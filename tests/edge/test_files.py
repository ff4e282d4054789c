"""EDGE_CASES, files, refusals and reproducibility."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

import quantool
from tests.edge.driver import FORMS, LEVELS, check, run
from tests.edge.graphs import feeds, model, normal, weight

ALL_FORMS = pytest.mark.parametrize("form", FORMS)
FEEDS = feeds(20, x=(8, 64))
GEMMS = "(float[N,64] x) => (float[N,10] y) { [one] a = Gemm (x, w, b)  r = Relu (a)  [two] y = MatMul (r, v) }"
ROOT = Path(__file__).parents[2]


def gemms() -> onnx.ModelProto:
    return model(GEMMS, {"w": weight(64, 32), "b": normal(32, scale=0.2), "v": weight(32, 10, seed=1)})


def data_of(form: str) -> list | None:
    return FEEDS if "static" in FORMS[form].values() else None


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


SHARED = """
import sys, hashlib, numpy as np
from tests.edge.graphs import feeds, model, weight, normal
from tests.edge.driver import FORMS
import quantool
steps, constants, source = [], {f"w{i}": weight(16, 16, seed=i) for i in range(4)}, "x"
for i in range(12):
    steps.append(f"m{i} = MatMul ({source}, w{i % 4})  b{i} = Add (m{i}, c)  t{i} = Tanh (b{i})")
    source = f"t{i}"
text = "(float[N,16] x) => (float[N,16] t11, float[N,16] t5) { %s }" % "  ".join(steps)
proto = model(text, {**constants, "c": normal(16, scale=0.2)})
for form, options in FORMS.items():
    data = feeds(20, x=(8, 16))
    print(hashlib.sha256(quantool.quantize(proto, data, **options).model.SerializeToString()).hexdigest())
"""


def test_bytes_are_the_same_whatever_the_hash_seed() -> None:
    found = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", SHARED], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
        )
        found.add(done.stdout)
    (hashes,) = found
    assert len(set(hashes.split())) == len(FORMS)


@ALL_FORMS
def test_what_describes_the_model_survives(form: str) -> None:
    proto = gemms()
    proto.producer_name, proto.producer_version, proto.domain = "trainer", "2.1", "org.example"
    proto.model_version, proto.doc_string, proto.graph.name = 7, "what it is", "the graph"
    proto.graph.doc_string = "the graph's words"
    proto.graph.input[0].doc_string, proto.graph.output[0].doc_string = "the input", "the output"
    proto.graph.node[0].doc_string, proto.graph.node[2].doc_string = "the first", "the last"
    proto.metadata_props.add(key="author", value="someone")
    proto.metadata_props.add(key="labels", value="a,b")
    proto.opset_import.add(domain="com.microsoft", version=1)
    proto.opset_import.add(domain="ai.onnx.ml", version=3)
    result = check(proto, FEEDS, form).proto
    kept = ("producer_name", "producer_version", "domain", "model_version", "doc_string")
    assert [getattr(result, name) for name in kept] == [getattr(proto, name) for name in kept]
    assert (result.graph.name, result.graph.doc_string) == (proto.graph.name, proto.graph.doc_string)
    assert (result.graph.input[0].doc_string, result.graph.output[0].doc_string) == ("the input", "the output")
    props = {item.key: item.value for item in result.metadata_props}
    assert (props["author"], props["labels"]) == ("someone", "a,b")
    assert all(key.startswith("quantool.") for key in props.keys() - {"author", "labels"})
    assert [node.doc_string for node in result.graph.node if node.doc_string] == ["the first", "the last"]
    assert {item.domain for item in result.opset_import} >= {"", "com.microsoft", "ai.onnx.ml"}


def external(folder: Path, location: str = "data/weights.bin") -> Path:
    """A model whose weights lie in one file of a subfolder, one behind the other."""
    proto = gemms()
    target = folder / location
    target.parent.mkdir(parents=True, exist_ok=True)
    offset, parts = 0, []
    for tensor in proto.graph.initializer:
        data = tensor.raw_data
        parts.append(data + bytes(-len(data) % 64))
        onnx.external_data_helper.set_external_data(tensor, location, offset, len(data))
        tensor.ClearField("raw_data")
        offset += len(parts[-1])
    target.write_bytes(b"".join(parts))
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@ALL_FORMS
def test_external_data_in_a_subfolder(form: str, tmp_path: Path) -> None:
    path = external(tmp_path / "source")
    before = contents(tmp_path / "source")
    output = tmp_path / "out" / "small.onnx"
    output.parent.mkdir()
    quantool.quantize(path, data_of(form), output=output, **FORMS[form])
    assert contents(tmp_path / "source") == before
    alone = tmp_path / "alone"
    output.parent.rename(alone)
    for file in (tmp_path / "source").rglob("*.bin"):
        file.unlink()
    result = onnx.load(alone / "small.onnx")
    for level in (LEVELS.ORT_ENABLE_ALL, LEVELS.ORT_DISABLE_ALL):
        exact, found = run(gemms(), FEEDS[:2]), run(result, FEEDS[:2], level)
        assert np.square(exact[0]["y"] - found[0]["y"]).sum() < np.square(exact[0]["y"]).sum() / 300


def missing(folder: Path) -> str:
    (folder / "data/weights.bin").unlink()
    return "weights.bin"


def shorter(folder: Path) -> str:
    file = folder / "data/weights.bin"
    file.write_bytes(file.read_bytes()[:-200])
    return "weights.bin"


def moved(location: str) -> Callable[[Path], str]:
    def change(folder: Path) -> str:
        path = folder / "model.onnx"
        proto = onnx.ModelProto.FromString(path.read_bytes())
        (folder.parent / "outside.bin").write_bytes((folder / "data/weights.bin").read_bytes())
        for tensor in proto.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location.replace("TOP", str(folder.parent))
        path.write_bytes(proto.SerializeToString())
        return "outside.bin"

    return change


def linked(folder: Path) -> str:
    file = folder / "data/weights.bin"
    outside = folder.parent / "outside.bin"
    outside.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(outside)
    return "weights.bin"


def offset(value: str) -> Callable[[Path], str]:
    def change(folder: Path) -> str:
        path = folder / "model.onnx"
        proto = onnx.ModelProto.FromString(path.read_bytes())
        for entry in proto.graph.initializer[0].external_data:
            if entry.key == "offset":
                entry.value = value
        path.write_bytes(proto.SerializeToString())
        return "weights.bin"

    return change


EXTERNAL: Mapping[str, Callable[[Path], str]] = {
    "missing": missing,
    "shorter": shorter,
    "above the folder": moved("../outside.bin"),
    "above and back": moved("data/../../outside.bin"),
    "absolute": moved("TOP/outside.bin"),
    "linked to outside": linked,
    "offset beyond the end": offset("1000000000000"),
    "negative offset": offset("-64"),
    "offset that is no number": offset("0x10"),
}
# Where no file can be blamed, the tensor is.
TENSOR = {"negative offset": "'w'", "offset that is no number": "'w'"}


@pytest.mark.parametrize("name", EXTERNAL)
@pytest.mark.parametrize("form", ["qdq", "weight-only"])
def test_bad_external_data_is_refused_by_file(form: str, name: str, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    path = external(folder)
    culprit = EXTERNAL[name](folder)
    before = contents(tmp_path)
    with pytest.raises(quantool.ModelError) as caught:
        quantool.quantize(path, data_of(form), output=folder / "out.onnx", **FORMS[form])
    assert TENSOR.get(name, culprit) in str(caught.value)
    assert caught.value.exit_code == 2
    assert contents(tmp_path) == before


FILES: Mapping[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "one byte short": lambda data: data[:-1],
    "text": lambda _: b"this is no model\n" * 20,
    "empty": lambda _: b"",
    "zeros": lambda _: bytes(500),
    "random": lambda _: np.random.default_rng(0).bytes(4000),
    "a zip": lambda _: b"PK\x03\x04" + bytes(100),
    "graph without nodes": lambda _: emptied().SerializeToString(),
    "no ir_version": lambda data: versioned(data, 0),
    "no opset": lambda data: without_opset(data),
    "opset from the future": lambda data: without_opset(data, 9999),
}


def emptied() -> onnx.ModelProto:
    proto = gemms()
    del proto.graph.node[:]
    return proto


def versioned(data: bytes, version: int) -> bytes:
    proto = onnx.ModelProto.FromString(data)
    proto.ir_version = version
    return proto.SerializeToString()


def without_opset(data: bytes, version: int = 0) -> bytes:
    proto = onnx.ModelProto.FromString(data)
    del proto.opset_import[:]
    if version:
        proto.opset_import.add(domain="", version=version)
    return proto.SerializeToString()


@pytest.mark.parametrize("name", FILES)
@ALL_FORMS
def test_files_that_are_no_models_are_refused_by_name(form: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "given.onnx"
    path.write_bytes(FILES[name](gemms().SerializeToString()))
    with pytest.raises(quantool.ModelError) as caught:
        quantool.quantize(path, data_of(form), output=tmp_path / "out.onnx", **FORMS[form])
    assert "given.onnx" in str(caught.value)
    assert caught.value.exit_code == 2
    assert [file.name for file in tmp_path.iterdir()] == ["given.onnx"]


@pytest.mark.parametrize("path", ["nothing.onnx", "folder", "no/such/folder/a.onnx"])
def test_paths_that_hold_no_file_are_refused_by_name(path: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(quantool.ModelError) as caught:
        quantool.quantize(tmp_path / path, mode="dynamic")
    assert path in str(caught.value)


NOTHING = {
    "functions": "(float[N,4] x) => (float[N,4] y) { a = Abs (x)  y = Exp (a) }",
    "integers": "(int64[N,4] x) => (int64[N,4] y) { a = Add (x, x)  y = Mul (a, x) }",
    "booleans": "(bool[N] x) => (bool[N] y) { y = Not (x) }",
    "movers": "(float[N,4] x) => (float[4,N] y) { y = Transpose <perm = [1, 0]> (x) }",
    "constants": "(float[3,4] x) => (float[2] y) { a = Constant <value = float[2] {1, 2}> ()  y = Abs (a) }",
    "strings": "(string[N] x) => (string[N] y) { y = Identity (x) }",
}


@ALL_FORMS
@pytest.mark.parametrize("name", NOTHING)
def test_a_model_without_anything_to_quantize_ends_with_3(form: str, name: str, tmp_path: Path) -> None:
    kinds = {"integers": np.int64, "booleans": np.bool_, "strings": np.str_}
    shape = (3,) if name in ("booleans", "strings") else (3, 4)
    samples = [{"x": np.ones(shape).astype(kinds.get(name, np.float32))} for _ in range(3)]
    with pytest.raises(quantool.NothingQuantizedError, match="no node could be quantized") as caught:
        quantool.quantize(model(NOTHING[name]), samples, output=tmp_path / "out.onnx", **FORMS[form])
    assert (caught.value.exit_code, bool(caught.value.fix)) == (3, True)
    assert all(row.reason is not None for row in caught.value.report.nodes)
    assert not list(tmp_path.iterdir())


@ALL_FORMS
@pytest.mark.parametrize(
    ("option", "pattern"),
    [
        *((o, p) for o in ("exclude", "include") for p in ("ome", "onee", "Relu:x", "[one", "two*x")),
        ("exclude_op", "Gem"),
    ],
)
def test_a_pattern_that_matches_nothing_names_near_ones(form: str, option: str, pattern: str) -> None:
    with pytest.raises(quantool.OptionError, match=f"--{option.replace('_', '-')}") as caught:
        quantool.quantize(gemms(), data_of(form), **FORMS[form], **{option: [pattern]})
    assert repr(pattern) in caught.value.what
    assert any(name in caught.value.fix for name in ("one", "two", "Relu:r", "Gemm"))


IMPOSSIBLE = [
    {"mode": "statik"}, {"format": "qqq"}, {"weights": "int3"}, {"weights": "float32"}, {"activations": "int4x"},
    {"granularity": "block:0"}, {"granularity": "block:-4"}, {"granularity": "row"}, {"calibrator": "best"},
    {"formula": "tf"}, {"effort": "most"}, {"target": "cpu"}, {"samples": 0}, {"samples": -3}, {"batch_size": 0},
    {"threads": -1}, {"io": "none"}, {"min_sqnr": "loud"}, {"nonsense": 1}, {"seed": "x"},
    {"mode": "weight-only", "format": "qoperator"}, {"mode": "dynamic", "weights": "int4"},
    {"format": "qoperator", "weights": "int4"}, {"format": "qoperator", "activations": "uint16"},
]  # fmt: skip


@pytest.mark.parametrize("options", IMPOSSIBLE, ids=str)
def test_impossible_options_are_refused_by_value_before_any_work(options: dict, tmp_path: Path) -> None:
    def never() -> object:
        raise AssertionError("data was read")
        yield

    with pytest.raises(quantool.QuantoolError) as caught:
        quantool.quantize(gemms(), never(), output=tmp_path / "out.onnx", **options)
    assert caught.value.exit_code == 2
    named = [str(part) for item in options.items() for part in item]
    assert any(part.strip("[]'").replace("_", "-") in str(caught.value).replace("_", "-") for part in named)
    assert not list(tmp_path.iterdir())
