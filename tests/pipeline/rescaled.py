"""The same function with channels of unequal size: each one between two layers multiplied, and divided out behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from quantool.schema import AnyArray

#: a standard deviation of factor 24
SPREAD = np.log(24)
_PASSED = {"Relu", "Clip", "BatchNormalization", "GlobalAveragePool", "Flatten"}


def with_relu(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every Clip as a Relu."""
    found = onnx.ModelProto()
    found.CopyFrom(proto)
    for node in found.graph.node:
        if node.op_type == "Clip":
            node.op_type = "Relu"
            del node.input[1:]
    return found


def rescaled(proto: onnx.ModelProto, feed: Mapping[str, AnyArray], *, seed: int = 0) -> onnx.ModelProto:
    """Multiply each channel between two layers by exp(N(0, ln 24)), and divide it out in the second one.

    Only where one layer alone reads the other. Behind a Clip no channel grows beyond its bound on the feed, and none
    that it cuts off changes.
    """
    chains = list(_chains(proto))
    clips = [node for chain in chains for node in chain if node.op_type == "Clip"]
    peaks = _peaks(proto, [clip.input[0] for clip in clips], feed)
    rng = np.random.default_rng(seed)
    found = onnx.ModelProto()
    found.CopyFrom(proto)
    constants = {tensor.name: tensor for tensor in found.graph.initializer}
    for first, *between, last in chains:
        writer = next((node for node in between if node.op_type == "BatchNormalization"), first)
        factors = np.exp(rng.normal(0, SPREAD, numpy_helper.to_array(constants[first.input[1]]).shape[0]))
        for clip in (node for node in between if node.op_type == "Clip"):
            room = 6.0 / np.maximum(peaks[clip.input[0]], 1e-30)
            factors = np.where(room > 1, np.minimum(factors, room), 1.0)
        for name in writer.input[1:3]:
            _multiply(constants[name], factors, axis=0)
        groups = next((a.i for a in last.attribute if a.name == "group"), 1)
        _multiply(constants[last.input[1]], 1 / factors, axis=0 if groups > 1 else 1)
    return found


def accuracy(proto: onnx.ModelProto, arrays: Mapping[str, AnyArray]) -> float:
    """Points of 100; `arrays` holds the input and `labels`."""
    inputs = {name: array for name, array in arrays.items() if name != "labels"}
    (scores, *_) = _session(proto).run(None, inputs)
    return 100 * float((scores.argmax(axis=1) == arrays["labels"]).mean())


def _chains(proto: onnx.ModelProto) -> Iterator[list[onnx.NodeProto]]:
    """A layer, what its channels pass, and the only layer that reads them, depthwise or with one group of inputs."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in proto.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for first in (node for node in proto.graph.node if node.op_type in ("Conv", "Gemm")):
        chain = [first]
        while len(found := readers.get(chain[-1].output[0], [])) == 1:
            chain.append(found[0])
            if found[0].op_type not in _PASSED:
                break
        if len(chain) > 1 and chain[-1].op_type in ("Conv", "Gemm"):
            yield chain


def _multiply(tensor: onnx.TensorProto, factors: AnyArray, *, axis: int) -> None:
    array = numpy_helper.to_array(tensor)
    shape = [-1 if i == axis else 1 for i in range(array.ndim)]
    wide = array.astype(np.float64) * factors.reshape(shape)
    tensor.CopyFrom(numpy_helper.from_array(wide.astype(np.float32), tensor.name))


def _peaks(proto: onnx.ModelProto, names: list[str], feed: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    if not names:
        return {}
    tapped = onnx.ModelProto()
    tapped.CopyFrom(proto)
    tapped.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    arrays = _session(tapped).run(names, dict(feed))
    return {name: array.max(axis=(0, 2, 3)) for name, array in zip(names, arrays, strict=True)}


def _session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
