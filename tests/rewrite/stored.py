"""A model whose weights alone are integers, and the float model with the numbers that those stand for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from quantool import graph
from quantool.edits import SetOpset
from quantool.graph import edit
from quantool.graph.allocator import NameAllocator
from quantool.pipeline.weight_error import rounded_values
from quantool.rewrite import rewrite
from quantool.schema import AnyArray, Feed, Parameters, Plan
from quantool.solve import solve
from tests.rewrite.flow import draft

LEVELS = (onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """predicted: the float model whose weights are what the codes stand for; written: the quantized one."""

    plan: Plan
    parameters: Parameters
    predicted: onnx.ModelProto
    written: onnx.ModelProto

    @property
    def kernels(self) -> set[str]:
        return {d.kernel for d in self.plan.decisions.values() if d.quantized}

    def disagreement(self, feed: Feed) -> float:
        """The largest difference from the prediction over the largest output, of both optimization levels."""
        exact = run(self.predicted, feed, LEVELS[1])
        worst = 0.0
        for level in LEVELS:
            for wanted, found in zip(exact, run(self.written, feed, level), strict=True):
                assert (wanted.shape, wanted.dtype) == (found.shape, found.dtype)
                largest = np.abs(wanted.astype(np.float64)).max(initial=1e-6)
                difference = np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max(initial=0.0)
                worst = max(worst, float(difference / largest))
        return worst


def stored(proto: onnx.ModelProto, **options: object) -> Stored:
    """Quantize the weights of a model in weight-only mode, both ways."""
    start = draft(proto, "weight-only", **options)
    model, plan = start.model, start.plan
    parameters = solve(plan, {}, load=graph.constant_loader(model), recipe=start.recipe)
    values = {weight.spec.tensor: rounded_values(weight) for weight in parameters.weights.values()}
    predicted = onnx.load_from_string(graph.serialize(model)[0])
    for tensor in predicted.graph.initializer:
        if tensor.name in values:
            rounded = values[tensor.name].astype(numpy_helper.to_array(tensor).dtype)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    edits = rewrite(start.facts, plan, parameters, fresh=NameAllocator(model).fresh)
    edit.apply(model, [*edits, SetOpset("", plan.opset)])
    written = onnx.load_from_string(graph.serialize(model)[0])
    onnx.checker.check_model(written, full_check=True)
    return Stored(plan=plan, parameters=parameters, predicted=predicted, written=written)


def run(proto: onnx.ModelProto, feed: Feed, level: object) -> Sequence[AnyArray]:
    """What ONNX Runtime computes with activations that are not rounded (accuracy level 0)."""
    exact = onnx.ModelProto.FromString(proto.SerializeToString())
    for attribute in _levels(exact.graph):
        attribute.i = 0
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
    session = onnxruntime.InferenceSession(exact.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feed))


def _levels(top: onnx.GraphProto) -> Iterator[onnx.AttributeProto]:
    for node in top.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                yield attribute
            elif attribute.HasField("g"):
                yield from _levels(attribute.g)
