"""Reading a model: what is refused, with which words, and what is not."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from quantool import graph
from quantool.errors import ModelError
from tests.graph.float_runs import parse

PLAIN = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N,4] x) => (float[N,4] y)
    <float[4,4] w = {1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0,9.0,1.0,2.0,3.0,4.0,5.0,6.0,7.0}> {
        [mm] h = MatMul (x, w)
        y = Relu (h)
    }"""


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    return path


def test_a_file_is_described_by_its_hash_size_and_opset(tmp_path: Path) -> None:
    data = parse(PLAIN).SerializeToString()
    path = written(tmp_path, data)
    loaded = graph.read(path)
    assert loaded.source.path == path
    assert loaded.source.folder == tmp_path
    assert loaded.source.sha256 == hashlib.sha256(data).hexdigest()
    assert (loaded.source.opset, loaded.source.size_bytes) == (17, len(data))
    assert loaded.checker_error is None
    assert graph.read(str(path)).proto == loaded.proto


def test_a_model_in_memory_is_never_changed() -> None:
    model = parse(PLAIN)
    before = model.SerializeToString(deterministic=True)
    loaded = graph.read(model)
    graph.prepare(loaded, opset=21)
    assert model.SerializeToString(deterministic=True) == before
    assert loaded.source.path is None
    assert loaded.source.folder is None


BROKEN_FILES: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "model-empty", "the file is empty"),
    "text": (b"hello, this is no model\n" * 20, "model-damaged", "text, not a binary ONNX model"),
    "truncated": (parse(PLAIN).SerializeToString()[:-40], "model-damaged", "truncated or no ONNX model"),
    "noise": (bytes(range(255, 0, -1)), "model-damaged", "truncated or no ONNX model"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "model-is-pointer", "Git LFS pointer"),
    "no-graph": (onnx.ModelProto(ir_version=8).SerializeToString(), "not-a-model", "no ONNX graph"),
}


@pytest.mark.parametrize(("data", "code", "what"), BROKEN_FILES.values(), ids=BROKEN_FILES)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, data: bytes, code: str, what: str) -> None:
    path = written(tmp_path, data)
    with pytest.raises(ModelError, match=what) as caught:
        graph.read(path)
    assert (caught.value.code, caught.value.where, caught.value.exit_code) == (code, str(path), 2)


def test_every_cut_through_a_file_is_refused(tmp_path: Path) -> None:
    data = parse(PLAIN).SerializeToString()
    for length in range(len(data)):
        path = written(tmp_path, data[:length])
        with pytest.raises(ModelError, match=re.escape(str(path))):
            graph.read(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no such file") as missing:
        graph.read(tmp_path / "none.onnx")
    assert missing.value.code == "model-not-found"
    with pytest.raises(ModelError, match="the path is a folder"):
        graph.read(tmp_path)


def _no_ir_version(model: onnx.ModelProto) -> None:
    model.ir_version = 0


def _no_nodes(model: onnx.ModelProto) -> None:
    del model.graph.node[:]


def _training(model: onnx.ModelProto) -> None:
    model.training_info.add()


def _sparse(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add()


def _no_imports(model: onnx.ModelProto) -> None:
    del model.opset_import[:]


def _future(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 999


def _undefined(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[1] = "nowhere"


def _undefined_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "nowhere"


def _cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "y"


def _own_reader(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "h"


def _written_twice(model: onnx.ModelProto) -> None:
    model.graph.node[1].output[0] = "h"


def _two_initializers(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(model.graph.initializer[0])


def _unknown_domain(model: onnx.ModelProto) -> None:
    model.graph.node[1].domain = "my.domain"


def _short_tensor(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.CopyFrom(onnx.TensorProto(name="w", data_type=1, dims=[4, 4], raw_data=b"\0" * 20))


BROKEN_MODELS: dict[str, tuple[Callable[[onnx.ModelProto], None], str, str]] = {
    "no-ir-version": (_no_ir_version, "no-ir-version", "ir_version is missing or 0"),
    "empty-graph": (_no_nodes, "graph-empty", "the graph has no nodes"),
    "training": (_training, "training-info", "training information"),
    "sparse": (_sparse, "sparse-initializer", "sparse initializers"),
    "no-imports": (_no_imports, "no-opset-import", "imports no opset"),
    "future-opset": (_future, "opset-too-new", "opset 999 is newer than"),
    "undefined": (_undefined, "undefined-name", "tensor 'nowhere' is read but nothing writes it.*node 'mm'"),
    "undefined-output": (_undefined_output, "undefined-name", "tensor 'nowhere'.*the graph's outputs"),
    "cycle": (_cycle, "cycle", "2 nodes wait for one another, among them node 'mm'"),
    "own-reader": (_own_reader, "cycle", "node 'mm'"),
    "written-twice": (_written_twice, "written-twice", "tensor 'h' is written more than once"),
    "two-initializers": (_two_initializers, "written-twice", "tensor 'w' is written more than once"),
    "unknown-domain": (_unknown_domain, "no-opset-import", "'my.domain'.*node 'Relu:y'"),
    "short-tensor": (_short_tensor, "tensor-damaged", "tensor 'w' holds less than the 64 bytes"),
}


@pytest.mark.parametrize(("damage", "code", "what"), BROKEN_MODELS.values(), ids=BROKEN_MODELS)
def test_a_broken_model_is_refused(
    tmp_path: Path, damage: Callable[[onnx.ModelProto], None], code: str, what: str
) -> None:
    model = parse(PLAIN)
    damage(model)
    for source in (model, written(tmp_path, model.SerializeToString())):
        with pytest.raises(ModelError, match=what) as caught:
            graph.read(source)
        assert caught.value.code == code
        assert caught.value.fix


def test_a_name_that_only_a_branch_misses_is_refused() -> None:
    model = parse("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N] x, bool c) => (float[N] y) {
            [choice] y = If (c) < then_branch = t () => (float[N] o) { o = Abs (x) },
                                  else_branch = e () => (float[N] o) { o = Abs (lost) } >
        }""")
    with pytest.raises(ModelError, match=r"tensor 'lost'.*node 'choice' \(If\)"):
        graph.read(model)


def test_what_the_runtime_accepts_is_not_refused() -> None:
    """Nodes out of order, and a domain of ONNX Runtime that is not imported."""
    model = parse("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N] x) => (float[N] y) { y = com.microsoft.FastGelu (h)  h = Abs (x) }""")
    loaded = graph.read(model)
    assert loaded.checker_error is not None
    prepared = graph.prepare(loaded)
    assert [node.op_type for node in prepared.ir.graph] == ["Abs", "FastGelu"]
    assert prepared.ir.opset_imports == {"": 17, "com.microsoft": 1}


def test_the_checker_says_what_is_wrong(tmp_path: Path) -> None:
    model = parse(PLAIN)
    assert graph.checker_error(model) is None
    model.graph.node[1].op_type = "NoSuchOperator"
    assert "NoSuchOperator" in str(graph.checker_error(model))
    assert "NoSuchOperator" in str(graph.checker_error(written(tmp_path, model.SerializeToString())))


def test_quantized_nodes_are_found_in_every_scope() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "local": 1]>
        g (float[N,4] x, bool c) => (float[N,4] y)
        <float s = {0.5}, uint8 z = {128}> {
            [q] a = QuantizeLinear (x, s, z)
            b = DequantizeLinear (a, s, z)
            d = If (c) < then_branch = t () => (float[N,4] o) { [inner] o = com.microsoft.QLinearAdd (b) },
                         else_branch = e () => (float[N,4] o) { o = Abs (b) } >
            y = local.F (d)
        }
        <domain: "local", opset_import: ["": 21]> F (i) => (o) { [in_function] o, p, r = DynamicQuantizeLinear (i) }""")
    assert graph.already_quantized(model) == ("q", "DequantizeLinear:b", "inner", "in_function")
    assert graph.already_quantized(parse(PLAIN)) == ()


def test_operators_that_only_sound_quantized_are_not() -> None:
    model = parse("""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1, "mine": 1]>
        g (float[N] x) => (float[N] y) {
            a = mine.QLinearFoo (x)  b = com.microsoft.QuickGelu (a)  y = com.microsoft.ReduceSumInteger (b)
        }""")
    assert graph.already_quantized(model) == ()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(7, dtype=np.int64),
        np.zeros((0, 3), dtype=np.float16),
        np.array([True, False]),
        np.array(["a", "é"], dtype=object),
    ],
    ids=["float32", "scalar", "empty", "bool", "string"],
)
def test_a_serialized_tensor_is_decoded(array: np.ndarray) -> None:
    decoded = graph.decode_tensor(onnx.numpy_helper.from_array(array).SerializeToString())
    assert decoded.dtype == array.dtype
    np.testing.assert_array_equal(decoded, array)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff",
        b"",
        onnx.TensorProto(data_type=1, external_data=[onnx.StringStringEntryProto()]).SerializeToString(),
    ],
    ids=["noise", "nothing", "external"],
)
def test_bytes_that_hold_no_tensor_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="the bytes"):
        graph.decode_tensor(data)


INPUTS = """<ir_version: 3, opset_import: ["": 9]>
    g (float[N,3,-1] x, int64[2] ids, float[4] w, seq(float[N]) q, string s, float16[] z) => (float[N,3,4] y)
    <float[4] w = {1.0,2.0,3.0,4.0}> { y = Add (x, w) }"""


def test_inputs_are_listed_without_the_constants_among_them() -> None:
    model = parse(INPUTS)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = -1
    loaded = graph.read(model)
    expected = [
        ("x", "float32", ("N", 3, None)),
        ("ids", "int64", (2,)),
        ("q", "", None),
        ("s", "string", ()),
        ("z", "float16", None),
    ]
    assert graph.input_specs(loaded) == expected
    assert graph.input_specs(graph.prepare(loaded)) == expected
