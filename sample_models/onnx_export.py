"""Writes the sample networks as ONNX graphs, node for node as PyTorch's TorchScript exporter does.

The exporter itself would fold BatchNormalization into the Conv before it and needs packages of its own;
these models are meant to show a tool the float graph as people have it.
"""

from __future__ import annotations

import math
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

IR_VERSIONS = {11: 6, 13: 7, 14: 7, 17: 8, 18: 8}
ONNX_TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A graph input or output: its name, NumPy type and shape (a string is a symbolic dimension)."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str = "float32"


class GraphWriter:
    """Collects nodes and weights in order and saves them as one checked model."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, onnx.TensorProto] = {}
        self._seen: Counter[str] = Counter()

    def weight(self, name: str, values: torch.Tensor | np.ndarray) -> str:
        """Add an initializer under the module path it has in PyTorch; a name met again is shared."""
        if name not in self._weights:
            array = values.detach().numpy() if isinstance(values, torch.Tensor) else values
            self._weights[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def node(self, op_type: str, scope: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node inside a module's scope; return its output's name, or a tuple of names."""
        path = "/".join(["", *scope.split("."), op_type]) if scope else f"/{op_type}"
        count = self._seen[path]
        self._seen[path] += 1
        name = f"{path}_{count}" if count else path
        results = [f"{name}_output_{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(op_type, list(inputs), results, name=name, **attributes))
        return results[0] if outputs == 1 else tuple(results)

    def constant(self, scope: str, value: float | list[int] | int) -> str:
        """Add a Constant node: float32 for a float, int64 for integers."""
        array = np.asarray(value, np.float32 if isinstance(value, float) else np.int64)
        return self.node("Constant", scope, value=numpy_helper.from_array(array))

    def save(self, path: Path, ports: tuple[Port, Port], metadata: dict[str, str] | None = None) -> None:
        """Write the model with one input and one output; the last node's result becomes the output."""
        source, result = (helper.make_tensor_value_info(p.name, ONNX_TYPES[p.dtype], p.shape) for p in ports)
        self._nodes[-1].output[0] = ports[1].name
        graph = helper.make_graph(
            self._nodes, "main_graph", [source], [result], initializer=list(self._weights.values())
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=IR_VERSIONS[self.opset],
            producer_name="sample_models",
        )
        helper.set_model_props(model, metadata or {})
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)


def write_gemm(graph: GraphWriter, scope: str, layer: nn.Linear, x: str) -> str:
    """Write a Linear on a matrix: Gemm with the weight as PyTorch stores it."""
    weight = graph.weight(f"{scope}.weight", layer.weight)
    bias = graph.weight(f"{scope}.bias", layer.bias)
    return graph.node("Gemm", scope, x, weight, bias, alpha=1.0, beta=1.0, transB=1)


def write_linear(graph: GraphWriter, scope: str, layer: nn.Linear, x: str) -> str:
    """Write a Linear on a tensor of rank 3: MatMul with the transposed weight, then Add with the bias."""
    weight = graph.weight(f"{scope}.weight_transposed", layer.weight.T)
    bias = graph.weight(f"{scope}.bias", layer.bias)
    return graph.node("Add", scope, bias, graph.node("MatMul", scope, x, weight))


def write_conv(graph: GraphWriter, scope: str, layer: nn.Conv2d, x: str) -> str:
    """Write a Conv2d without bias."""
    weight = graph.weight(f"{scope}.weight", layer.weight)
    attributes = {
        "dilations": list(layer.dilation),
        "group": layer.groups,
        "kernel_shape": list(layer.kernel_size),
        "pads": list(layer.padding) * 2,
        "strides": list(layer.stride),
    }
    return graph.node("Conv", scope, x, weight, **attributes)


def write_batch_norm(graph: GraphWriter, scope: str, layer: nn.BatchNorm2d, x: str) -> str:
    """Write a BatchNorm2d with its running statistics; training_mode exists from opset 14."""
    parts = ("weight", "bias", "running_mean", "running_var")
    names = [graph.weight(f"{scope}.{part}", getattr(layer, part)) for part in parts]
    attributes: dict[str, Any] = {"epsilon": layer.eps, "momentum": 1.0 - layer.momentum}
    if graph.opset >= 14:
        attributes["training_mode"] = 0
    return graph.node("BatchNormalization", scope, x, *names, **attributes)


def write_layer_norm(graph: GraphWriter, scope: str, layer: nn.LayerNorm, x: str) -> str:
    """Write a LayerNorm over the last axis: the operator from opset 17, its primitives before."""
    weight = graph.weight(f"{scope}.weight", layer.weight)
    bias = graph.weight(f"{scope}.bias", layer.bias)
    if graph.opset >= 17:
        return graph.node("LayerNormalization", scope, x, weight, bias, axis=-1, epsilon=layer.eps)
    mean = graph.node("ReduceMean", scope, x, axes=[-1])
    centred = graph.node("Sub", scope, x, mean)
    squared = graph.node("Pow", scope, centred, graph.constant(scope, 2.0))
    variance = graph.node("ReduceMean", scope, squared, axes=[-1])
    shifted = graph.node("Add", scope, variance, graph.constant(scope, layer.eps))
    normal = graph.node("Div", scope, centred, graph.node("Sqrt", scope, shifted))
    return graph.node("Add", scope, graph.node("Mul", scope, normal, weight), bias)


def write_gelu(graph: GraphWriter, scope: str, x: str) -> str:
    """Write x / 2 * (1 + erf(x / sqrt 2)) as the exporter spells it below opset 20."""
    scaled = graph.node("Div", scope, x, graph.constant(scope, math.sqrt(2.0)))
    raised = graph.node("Add", scope, graph.node("Erf", scope, scaled), graph.constant(scope, 1.0))
    product = graph.node("Mul", scope, x, raised)
    return graph.node("Mul", scope, product, graph.constant(scope, 0.5))


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a compressed .npz whose bytes depend on the arrays alone (np.savez stores the time)."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w") as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
