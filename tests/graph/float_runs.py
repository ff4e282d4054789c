"""Run models given as ONNX text, as they are and as the graph package prepared them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime

from quantool import graph
from quantool.graph.model import Model
from quantool.schema import AnyArray, Feed


def parse(text: str) -> onnx.ModelProto:
    """A model in ONNX text, checked as far as parsing does."""
    return onnx.parser.parse_model(text)


def prepare(text: str, *, opset: int | None = None) -> Model:
    return graph.prepare(graph.read(parse(text)), opset=opset)


def session(data: bytes, folder: str | None = None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def run(data: bytes, feed: Feed, folder: str | None = None) -> list[AnyArray]:
    outputs: list[AnyArray] = session(data, folder).run(None, dict(feed))
    return outputs


def run_model(model: Model, feed: Feed) -> list[AnyArray]:
    data, folder = graph.serialize(model)
    return run(data, feed, None if folder is None else str(folder))


def normal_feed(model: onnx.ModelProto, *, seed: int = 0, symbolic: int = 2) -> dict[str, AnyArray]:
    """Normal numbers for the float inputs of a model, whose symbolic dimensions are `symbolic`."""
    rng = np.random.default_rng(seed)
    feed: dict[str, AnyArray] = {}
    constants = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name not in constants:
            dims = [dim.dim_value or symbolic for dim in value.type.tensor_type.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            feed[value.name] = rng.standard_normal(dims).astype(dtype)
    return feed
