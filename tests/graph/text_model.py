"""Models written as ONNX text, and what ONNX Runtime makes of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.parser
import onnx_ir
import onnxruntime

from quantool.graph.model import Model, Source
from quantool.graph.normalize import PASSES, normalize
from quantool.graph.scopes import graphs
from quantool.schema import AnyArray, GivenNode


def model_of(text: str, constants: Mapping[str, AnyArray] | None = None) -> Model:
    """A model under work from ONNX text; `constants` become initializers that the text may read by name.

    Outputs without a shape in the text get the inferred one.
    """
    proto = onnx.parser.parse_model(text)
    for output in proto.graph.output:
        if not output.type.tensor_type.shape.dim:
            output.type.tensor_type.ClearField("shape")
    for name, array in (constants or {}).items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    proto = onnx.shape_inference.infer_shapes(proto)
    ir_model = onnx_ir.from_proto(proto)
    given = []
    for graph in graphs(ir_model.graph):
        for node in graph:
            node.name = node.name or f"{node.op_type}:{node.outputs[0].name}"
            node.meta["quantool.origins"] = (node.name,)
            given.append(GivenNode(name=node.name, op_type=node.op_type, scope=""))
    source = Source(path=None, folder=None, sha256="", opset=ir_model.opset_imports[""], size_bytes=0)
    described = frozenset(info.name for info in proto.graph.value_info)
    return Model(ir=ir_model, source=source, given=tuple(given), described=described)


def run(model: Model, feed: Mapping[str, AnyArray]) -> list[AnyArray]:
    """The outputs of a checked model in ONNX Runtime without optimizations."""
    proto = onnx_ir.to_proto(model.ir)
    onnx.checker.check_model(proto, full_check=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feed))


def op_types(model: Model) -> list[str]:
    """The operators of the main graph, in order."""
    return [node.op_type for node in model.ir.graph]


def normal(*shape: int, seed: int = 0) -> AnyArray:
    """Standard normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def normalized(
    text: str, constants: Mapping[str, AnyArray], *, feed: Mapping[str, AnyArray], only: str | None = None
) -> Model:
    """The normalized model (by one pass, if named), after comparing it with the model as given at 100 dB."""
    skip = set(PASSES) - {only} if only else set()
    model = model_of(text, constants)
    before = run(model, feed)
    normalize(model, skip=skip)
    for given, now in zip(before, run(model, feed), strict=True):
        assert given.dtype == now.dtype
        assert given.shape == now.shape
        assert noise(given, now) <= 1e-10
    return model


def noise(exact: AnyArray, other: AnyArray) -> float:
    """Power of the difference relative to the power of the exact values; 1e-10 is 100 dB."""
    if np.array_equal(exact, other):  # infinities included
        return 0.0
    wide = exact.astype(np.float64)
    return float(np.square(wide - other).sum() / max(np.square(wide).sum(), 1e-30))


def constants_of(model: Model) -> dict[str, AnyArray]:
    """The constants of the main graph by name."""
    found = model.ir.graph.initializers.items()
    return {name: value.const_value.numpy() for name, value in found if value.const_value is not None}
