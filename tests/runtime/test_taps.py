"""The stream of activations: right values, one sample at a time, in bounded memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from quantool.errors import DataError, ModelError
from quantool.graph.outputs import with_outputs
from quantool.runtime.session import Loadable, Session, Thrift
from quantool.runtime.taps import tap, tensor_types

CHAIN = """
<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[N,4] x) => (float[N,4] y)
{
    a = Relu(x)
    b = Add(a, a)
    c = com.microsoft.Gelu(b)
    y = Neg(c)
}
"""


def source() -> Loadable:
    return Loadable(model=parser.parse_model(CHAIN).SerializeToString(), threads=1)


def feeds(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((n + 1, 4)).astype("f")} for n in range(count)]


def test_outputs_are_appended_after_the_model_s_own() -> None:
    model = onnx.load_model_from_string(with_outputs(source().model, ["b", "y", "a", "b"]))
    assert [output.name for output in model.graph.output] == ["y", "b", "a"]
    own = parser.parse_model(CHAIN)
    assert model.graph.node == own.graph.node
    assert model.graph.output[0] == own.graph.output[0]


def test_tapped_values_are_the_ones_inside() -> None:
    data = feeds(3)
    taps = list(tap(source(), data, groups=[["a", "b"]], with_outputs=with_outputs))
    assert [sample for sample, _ in taps] == [0, 1, 2]
    for (_, tensors), feed in zip(taps, data, strict=True):
        assert list(tensors) == ["a", "b"]
        np.testing.assert_array_equal(tensors["a"], np.maximum(feed["x"], 0))
        np.testing.assert_array_equal(tensors["b"], 2 * tensors["a"])


def test_inputs_and_outputs_can_be_tapped_as_well() -> None:
    data = feeds(1)
    [(_, tensors)] = tap(source(), data, groups=[["x", "y"]], with_outputs=with_outputs)
    np.testing.assert_array_equal(tensors["x"], data[0]["x"])
    np.testing.assert_array_equal(tensors["y"], Session(source()).run(data[0])["y"])


def test_groups_give_the_same_tensors_in_turn() -> None:
    data = feeds(2)
    whole = list(tap(source(), data, groups=[["a", "c"]], with_outputs=with_outputs))
    parts = list(tap(source(), data, groups=[["a"], [], ["c"]], with_outputs=with_outputs))
    assert [(sample, list(tensors)) for sample, tensors in parts] == [
        (0, ["a"]), (0, ["c"]), (1, ["a"]), (1, ["c"]),
    ]  # fmt: skip
    for sample, tensors in parts:
        for name, array in tensors.items():
            np.testing.assert_array_equal(array, whole[sample][1][name])


@pytest.mark.parametrize("thrift", list(Thrift))
@pytest.mark.parametrize("name", ["digits_cnn", "digits_transformer"])
def test_groups_run_the_kernels_of_the_whole_bit_for_bit(name: str, thrift: Thrift) -> None:
    path = Path(__file__).parents[2] / "sample_models" / f"{name}.onnx"
    graph = onnx.load(str(path)).graph
    names = [output for node in graph.node for output in node.output][::2]
    [port] = Session(Loadable(model=path)).inputs.values()
    shape = [size if isinstance(size, int) else 1 for size in port.shape]
    data = [{port.name: np.random.default_rng(0).standard_normal(shape).astype("f")}]
    model = Loadable(model=path, threads=1, thrift=thrift)
    [(_, whole)] = tap(model, data, groups=[names], with_outputs=with_outputs)
    parts = tap(
        model, data, groups=[names[start : start + 7] for start in range(0, len(names), 7)], with_outputs=with_outputs
    )
    found = {tensor: array for _, arrays in parts for tensor, array in arrays.items()}
    assert found.keys() == whole.keys()
    for tensor, array in found.items():
        np.testing.assert_array_equal(array, whole[tensor])


def test_a_part_holds_what_its_outputs_need_and_no_more() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N] x, bool k) => (float[N] y) <float[1] one = {1}, float[1] two = {2}>
    {
        a = Add(x, one)
        b = If(k) <then_branch = t () => (float[N] c) { c = Neg(a) }, else_branch = e () => (float[N] d) { d = Abs(a) }>
        y = Mul(b, two)
    }
    """
    part = onnx.load_model_from_string(with_outputs(parser.parse_model(text).SerializeToString(), ["b"], alone=True))
    assert [node.op_type for node in part.graph.node] == ["Add", "If"]
    assert [tensor.name for tensor in part.graph.initializer] == ["one"]
    assert [output.name for output in part.graph.output] == ["b"]


def test_feeds_are_drawn_one_by_one_as_asked_for() -> None:
    drawn = []

    def lazily() -> Iterator[dict[str, np.ndarray]]:
        for number, feed in enumerate(feeds(5)):
            drawn.append(number)
            yield feed

    stream = tap(source(), lazily(), groups=[["a"]], with_outputs=with_outputs)
    assert drawn == []
    next(stream)
    assert drawn == [0]
    next(stream)
    assert drawn == [0, 1]


def test_a_feed_that_does_not_run_is_named_by_its_number() -> None:
    data = [*feeds(2), {"x": np.ones((1, 5), "f")}]
    with pytest.raises(DataError, match=r"\[sample 2\]"):
        list(tap(source(), data, groups=[["a"]], with_outputs=with_outputs))


def test_a_tensor_that_is_not_there_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="nowhere"):
        list(tap(source(), feeds(1), groups=[["nowhere"]], with_outputs=with_outputs))


def test_types_come_from_the_runtime_where_onnx_knows_none() -> None:
    types = tensor_types(source(), ["c", "a"], with_outputs=with_outputs)
    assert types == {"c": ("float32", ("N", 4)), "a": ("float32", ("N", 4))}


def test_a_file_with_external_data_is_tapped_without_reading_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("external")
    model = parser.parse_model(CHAIN.replace("b = Add(a, a)", "b = Add(a, w)"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.full((1, 4), 3, "f"), "w"))
    path = folder / "m.onnx"
    onnx.save_model(model, str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    [(_, tensors)] = tap(Loadable(model=path), feeds(1), groups=[["a", "b"]], with_outputs=with_outputs)
    np.testing.assert_array_equal(tensors["b"], tensors["a"] + 3)


MEMORY = """
import resource, sys
import numpy as np
from onnx import parser
from quantool.graph.outputs import with_outputs
from quantool.runtime.session import Loadable
from quantool.runtime.taps import tap
text = '''<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y)
{a = Sigmoid(x) b = Tanh(a) c = Sigmoid(b) y = Tanh(c)}'''
source = Loadable(model=parser.parse_model(text).SerializeToString(), threads=1)
feeds = ({"x": np.full(1 << 20, n, "f")} for n in range(int(sys.argv[1])))
for _ in tap(source, feeds, groups=[["a", "b", "c"]], with_outputs=with_outputs):
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_kib(samples: int) -> int:
    command = [sys.executable, "-c", MEMORY, str(samples)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_peak_memory_does_not_grow_with_the_number_of_samples() -> None:
    assert peak_kib(128) <= 1.1 * peak_kib(8)
