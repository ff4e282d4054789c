"""The models of the onnx package's own backend suite, as given and in forms that there is something to quantize in.

given: the case. frozen: all inputs but the first become constants, so that operators have weights. between: the first
input comes out of a product that changes nothing, and the first output goes into one.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.backend.test.case import node as node_cases
from onnx.backend.test.loader import load_model_tests

from quantool.schema import AnyArray
from tests.edge.driver import run

Case = tuple[onnx.ModelProto, list[dict[str, AnyArray]]]
FOLDERS = ("simple", "pytorch-converted", "pytorch-operator")
#: the largest product that stands before or behind a case
WIDEST = 256


def groups() -> list[str]:
    """The modules of node cases, and the folders of models."""
    modules = [module.name for module in pkgutil.iter_modules(node_cases.__path__) if not module.name.startswith("_")]
    return [*sorted(modules), *FOLDERS]


def in_share(group: str) -> bool:
    """Whether a group belongs to the tenth that always runs."""
    return zlib.crc32(group.encode()) % 10 == 4


def cases(group: str) -> Iterator[tuple[str, Case]]:
    """The cases of a group by name."""
    if group in FOLDERS:
        for case in sorted(load_model_tests(kind=group), key=lambda case: case.name):
            yield case.name, _from_folder(Path(case.model_dir or ""))
        return
    before = len(node_cases._NodeTestCases)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(f"{node_cases.__name__}.{group}")
    for case in node_cases._NodeTestCases[before:]:
        names = [value.name for value in case.model.graph.input]
        feeds = [dict(zip(names, map(_array, inputs), strict=False)) for inputs, _ in case.data_sets]
        yield case.name, (case.model, feeds)


def forms(case: Case) -> Iterator[tuple[str, Case]]:
    """The case as given, and changed where that is possible."""
    yield "given", case
    proto, feeds = case
    if feeds and len(proto.graph.input) > 1:
        yield "frozen", _frozen(proto, feeds)
    if feeds and (changed := _between(*_frozen(proto, feeds))) is not None:
        yield "between", changed


def _from_folder(folder: Path) -> Case:
    proto = onnx.load(folder / "model.onnx")
    constants = {tensor.name for tensor in proto.graph.initializer}
    needed = [value for value in proto.graph.input if value.name not in constants]
    feeds = []
    for data in sorted(folder.glob("test_data_set_*")):
        files = [(value, data / f"input_{i}.pb") for i, value in enumerate(needed)]
        feeds.append({value.name: _read(value, file) for value, file in files if file.exists()})
    return proto, feeds


def _read(value: onnx.ValueInfoProto, file: Path) -> AnyArray:
    if value.type.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(file.read_bytes()))
    if value.type.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(file.read_bytes()))
    return numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes()))


def _array(value: object) -> AnyArray:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _frozen(proto: onnx.ModelProto, feeds: Sequence[Mapping[str, AnyArray]]) -> Case:
    changed = onnx.ModelProto.FromString(proto.SerializeToString())
    for value in list(changed.graph.input)[1:]:
        array = feeds[0].get(value.name)
        if isinstance(array, np.ndarray):
            changed.graph.initializer.append(numpy_helper.from_array(array, value.name))
            changed.graph.input.remove(value)
    left = {value.name for value in changed.graph.input}
    return changed, [{name: array for name, array in feeds[0].items() if name in left}]


def _between(proto: onnx.ModelProto, feeds: list[dict[str, AnyArray]]) -> Case | None:
    """Between a convolution or product with the identity and another one; None where the types do not fit."""
    graph = proto.graph
    if not graph.input or not _is_wide(graph.input[0], feeds[0].get(graph.input[0].name)):
        return None
    try:
        result = run(proto, feeds)[0][graph.output[0].name]
    except Exception:  # a case that ONNX Runtime does not run is of no use here
        return None
    if not _is_wide(graph.output[0], result):
        return None
    first, last = graph.input[0].name, graph.output[0].name
    for node in graph.node:
        _rename(node, {first: "before_case", last: "behind_case"})
    _identity(graph, first, "before_case", feeds[0][first], at=0)
    _identity(graph, "behind_case", last, result, at=len(graph.node))
    return proto, feeds


def _is_wide(value: onnx.ValueInfoProto, array: object) -> bool:
    """Whether a product can stand there: float32 of rank 2 and more, finite, not too wide."""
    if value.type.tensor_type.elem_type != onnx.TensorProto.FLOAT or not isinstance(array, np.ndarray):
        return False
    return array.ndim > 1 and array.size > 0 and _width(array) <= WIDEST and bool(np.isfinite(array).all())


def _width(array: AnyArray) -> int:
    return array.shape[1] if array.ndim == 4 else array.shape[-1]


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    for ports in (node.input, node.output):
        ports[:] = [names.get(name, name) for name in ports]
    for attribute in node.attribute:
        for inner in attribute.g.node:
            _rename(inner, names)


def _identity(graph: onnx.GraphProto, source: str, target: str, array: AnyArray, *, at: int) -> None:
    weight = np.eye(_width(array), dtype=np.float32)
    op_type = "Conv" if array.ndim == 4 else "MatMul"
    stored = weight[:, :, None, None] if op_type == "Conv" else weight
    graph.initializer.append(numpy_helper.from_array(stored, f"{target}_identity"))
    graph.node.insert(at, helper.make_node(op_type, [source, f"{target}_identity"], [target], name=f"{target}_product"))
