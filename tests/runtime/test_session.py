"""Loading and running: what a session says of a model, and how its failures read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from quantool.errors import DataError, ModelError
from quantool.runtime.session import (
    MESSAGE_LENGTH,
    Loadable,
    Optimization,
    Port,
    Session,
    dtype_name,
    shortened,
)

ADD = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N,4] x, float[4] bias, int64[1] unused) => (float[N,4] y, bool[N,4] positive)
<float zero = {0}>
{
    y = Add(x, bias)
    positive = Greater(y, zero)
}
"""


def serialized(text: str) -> bytes:
    return parser.parse_model(text).SerializeToString()


def feed(rows: int = 2) -> dict[str, np.ndarray]:
    return {"x": np.ones((rows, 4), "f"), "bias": np.arange(4, dtype="f"), "unused": np.zeros(1, np.int64)}


@pytest.mark.parametrize("optimization", list(Optimization))
def test_run_gives_every_output_by_name(optimization: Optimization) -> None:
    session = Session(Loadable(model=serialized(ADD), optimization=optimization, threads=1))
    outputs = session.run(feed())
    assert list(outputs) == ["y", "positive"]
    np.testing.assert_array_equal(outputs["y"], [[1, 2, 3, 4]] * 2)
    assert outputs["positive"].all()


def test_run_fetches_only_what_is_asked_for_in_that_order() -> None:
    session = Session(Loadable(model=serialized(ADD)))
    assert list(session.run(feed(), ["positive", "y"])) == ["positive", "y"]
    assert list(session.run(feed(), ["y"])) == ["y"]


def test_ports_tell_names_types_and_symbolic_shapes() -> None:
    session = Session(Loadable(model=serialized(ADD)))
    assert session.inputs["x"] == Port(name="x", dtype="float32", shape=("N", 4))
    assert session.inputs["unused"] == Port(name="unused", dtype="int64", shape=(1,))
    assert session.outputs["positive"] == Port(name="positive", dtype="bool", shape=("N", 4))


def test_entries_without_an_input_such_as_labels_are_left_out() -> None:
    outputs = Session(Loadable(model=serialized(ADD))).run({**feed(), "labels": np.zeros(2)})
    assert outputs["y"].shape == (2, 4)


def test_a_path_loads_with_external_data_beside_it(tmp_path: Path) -> None:
    path = save_with_external_weight(tmp_path)
    assert Session(Loadable(model=path)).run({"x": np.ones(300, "f")})["y"][299] == 300


def test_bytes_load_with_external_data_from_a_folder(tmp_path: Path) -> None:
    path = save_with_external_weight(tmp_path)
    session = Session(Loadable(model=path.read_bytes(), folder=tmp_path))
    assert session.run({"x": np.ones(300, "f")})["y"][299] == 300


def save_with_external_weight(folder: Path) -> Path:
    weight = onnx.numpy_helper.from_array(np.arange(300, dtype="f"), "w")
    value = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [value("x", 1, [300])], [value("y", 1, [300])], [weight])
    opset = [onnx.helper.make_opsetid("", 17)]
    path = folder / "m.onnx"
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=opset)
    onnx.save_model(model, str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def test_a_model_that_does_not_load_is_named_in_the_runtime_s_words() -> None:
    source = Loadable(model=serialized(ADD.replace("Add", "Foo")), label="m.onnx")
    with pytest.raises(ModelError, match=r"does-not-load: .*cannot load m.onnx: .*Foo.*\[m.onnx\]"):
        Session(source)


@pytest.mark.parametrize("model", [b"no model", Path("missing.onnx")], ids=["garbage", "missing"])
def test_what_is_no_model_is_a_model_error(model: bytes | Path) -> None:
    with pytest.raises(ModelError, match="does-not-load"):
        Session(Loadable(model=model))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": np.ones((2, 5), "f")}, "Got: 5 Expected: 4"),
        ({"x": np.ones((2, 4), "d")}, r"Actual: \(tensor\(double\)\)"),
        ({"x": None}, "missing"),
    ],
    ids=["shape", "type", "absent"],
)
def test_a_feed_that_does_not_run_names_the_sample_and_what_the_model_takes(
    change: dict[str, np.ndarray | None], words: str
) -> None:
    wrong = {name: array for name, array in {**feed(), **change}.items() if array is not None}
    session = Session(Loadable(model=serialized(ADD)))
    with pytest.raises(DataError, match=words) as caught:
        session.run(wrong, sample=7)
    assert caught.value.code == "does-not-run"
    assert caught.value.where == "sample 7"
    assert "x float32['N', 4]" in caught.value.fix


def test_a_node_that_fails_names_the_sample_too() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x, int64[2] s) => (float[A,B] y) {y = Reshape(x, s)}'
    session = Session(Loadable(model=serialized(text)))
    with pytest.raises(DataError, match=r"cannot be reshaped.*\[sample first\]"):
        session.run({"x": np.ones(4, "f"), "s": np.array([3, 3])}, sample="first")


def test_the_members_of_a_sequence_have_names_of_their_own() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (seq(float[N]) s, float[N] x) => (seq(float[N]) t, float[N] y) { t = SequenceInsert(s, x)  y = Relu(x) }
    """
    session = Session(Loadable(model=serialized(text)))
    found = session.run({"s": [np.zeros(2, "f")], "x": np.ones(3, "f")})
    assert {name: array.tolist() for name, array in found.items()} == {
        "t[0]": [0, 0],
        "t[1]": [1, 1, 1],
        "y": [1, 1, 1],
    }
    assert not session.outputs["t"].is_tensor


def test_a_model_of_sequences_alone_runs() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N] x) => (seq(float[N]) s) { s = SequenceConstruct(x) }
    """
    assert list(Session(Loadable(model=serialized(text))).run({"x": np.ones(2, "f")})) == ["s[0]"]


def test_negative_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="threads is -1"):
        Loadable(model=b"", threads=-1)


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("[ONNXRuntimeError] : 10 : INVALID_GRAPH : In Node, Foo", "In Node, Foo"),
        ("Status: /onnxruntime_src/core/x.h:91 f() was\n false", "Status: f() was false"),
    ],
    ids=["tag", "source path and line break"],
)
def test_messages_lose_what_only_the_runtime_s_authors_need(text: str, short: str) -> None:
    assert shortened(RuntimeError(text)) == short


def test_long_messages_are_cut() -> None:
    short = shortened(RuntimeError("x" * 1000))
    assert len(short) == MESSAGE_LENGTH
    assert short.endswith("...")


@pytest.mark.parametrize(
    ("runtime_type", "name"),
    [
        ("tensor(float)", "float32"),
        ("tensor(double)", "float64"),
        ("tensor(uint8)", "uint8"),
        ("tensor(float8e4m3fn)", "float8_e4m3fn"),
        ("tensor(string)", "string"),
        ("seq(tensor(float))", "seq(tensor(float))"),
    ],
)
def test_types_have_numpy_s_names(runtime_type: str, name: str) -> None:
    assert dtype_name(runtime_type) == name
