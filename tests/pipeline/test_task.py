"""The choice by the task: a model whose outputs read well and whose labels are lost is no good."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort

import quantool
from pipeline.bed import model, normal
from quantool.report.model import Report
from quantool.schema import AnyArray

OFFSET = 200.0


def two_classes() -> onnx.ModelProto:
    """Scores of two classes on a large common offset: the outputs read 50 dB when their difference is noise."""
    text = """(float[N,8,6,6] x) => (float[N,2] y) {
        [first] a = Conv<pads=[1,1,1,1]>(x, w0, b0)
        [relu] h = Relu(a)
        [last] s = Conv(h, w1, b1)
        [pool] m = GlobalAveragePool(s)
        [flat] y = Flatten(m)
    }"""
    constants = {
        "w0": normal(8, 8, 3, 3, seed=1, scale=0.15),
        "b0": np.zeros(8, np.float32),
        "w1": normal(2, 8, 1, 1, seed=2, scale=0.2),
        "b1": np.full(2, OFFSET, np.float32),
    }
    return model(text, constants)


def labelled(network: onnx.ModelProto, count: int) -> list[dict[str, AnyArray]]:
    """Feeds with the class that the float model gives them; four images each."""
    session = ort.InferenceSession(network.SerializeToString())
    rng = np.random.default_rng(3)
    found = []
    for _ in range(count):
        x = rng.standard_normal((4, 8, 6, 6)).astype(np.float32)
        found.append({"x": x, "labels": session.run(None, {"x": x})[0].argmax(1)})
    return found


def balanced(network: onnx.ModelProto) -> onnx.ModelProto:
    """The same with the classes equally likely: the mean difference moved into the bias."""
    session = ort.InferenceSession(network.SerializeToString())
    x = np.random.default_rng(4).standard_normal((64, 8, 6, 6)).astype(np.float32)
    scores = session.run(None, {"x": x})[0]
    bias = next(tensor for tensor in network.graph.initializer if tensor.name == "b1")
    bias.raw_data = (np.full(2, OFFSET) - scores.mean(0) + OFFSET).astype(np.float32).tobytes()
    return network


def kept(report: Report) -> set[str]:
    return {row.name for row in report.nodes if row.reason is not None and row.reason.code == "too-lossy"}


def test_a_metric_makes_the_choice_keep_the_labels() -> None:
    network = balanced(two_classes())
    feeds = labelled(network, 64)
    blind = quantool.quantize(network, data=feeds, output=None)
    judged = quantool.quantize(network, data=feeds, output=None, metric="top1")
    outputs = blind.report.verification
    assert outputs is not None
    assert outputs.outputs["y"].sqnr_db is not None
    assert outputs.outputs["y"].sqnr_db > 40
    assert not kept(blind.report)
    assert "last" in kept(judged.report)
    assert judged.report.metric is not None
    assert judged.report.metric.drop is not None
    assert judged.report.metric.drop <= 0.05


def test_without_labels_a_metric_of_outputs_judges_too() -> None:
    network = balanced(two_classes())
    feeds = [{"x": feed["x"]} for feed in labelled(network, 64)]
    judged = quantool.quantize(network, data=feeds, output=None, metric="top1-agreement")
    assert "last" in kept(judged.report)
