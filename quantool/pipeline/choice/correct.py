"""Bias correction on the kept feeds: the mean error of every quantized layer, from one run of the float model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from calibrators import Channels
from quantool.algorithms.bias_correction import Float64, channel_means, mean_error
from quantool.graph.outputs import with_outputs
from quantool.kernels import dequantize_linear
from quantool.pipeline.source import FloatModel
from quantool.runtime import tap
from quantool.schema import AnyArray, Feed, NodeFact, Parameters, Plan, WeightParams

_LAYERS = frozenset({"Conv", "MatMul", "Gemm"})


def corrections(
    source: FloatModel,
    plan: Plan,
    parameters: Parameters,
    feeds: Sequence[Feed],
    *,
    known: Mapping[str, Channels] = MappingProxyType({}),
    at: Callable[[str], bool] = lambda _: True,
) -> Mapping[str, Float64]:
    """Node -> mean error of each of its output channels, float64[O]. One sample's inputs are in memory at a time.

    known: statistics of channels, for a run without feeds: the weights' part of the error is then all that is known.
    at: the nodes that may be changed.
    """
    layers = {
        spec.node: spec.activation
        for spec in plan.weights
        if spec.activation is not None and source.facts.by_name[spec.node].op_type in _LAYERS and not spec.block_size
        if at(spec.node)
    }
    means = _means(source, layers, parameters, feeds) if layers and feeds else _known_means(known)
    found = {}
    for name, tensor in layers.items():
        node, weight = source.facts.by_name[name], parameters.weights[name, 1]
        if len(weight.shape) < 2 or (node.op_type == "MatMul" and len(weight.shape) != 2):
            continue
        if (tensor, _channel_axis(node)) not in means:
            continue
        mean, mean_quantized = means[tensor, _channel_axis(node)]
        exact, coarse = _oriented(source, node, weight)
        found[name] = mean_error(exact, coarse, mean, mean_quantized, outputs=exact.shape[0])
    return found


def _known_means(known: Mapping[str, Channels]) -> Mapping[tuple[str, int], tuple[Float64, Float64]]:
    """The means of calibration, taken for those of the quantized input too."""
    return {(name, state.axis): (state.means, state.means) for name, state in known.items() if state.rows}


def _channel_axis(node: NodeFact) -> int:
    return 1 if node.op_type == "Conv" else -1


def _means(
    source: FloatModel, layers: Mapping[str, str], parameters: Parameters, feeds: Sequence[Feed]
) -> Mapping[tuple[str, int], tuple[Float64, Float64]]:
    """Mean of each channel of each layer's input over the feeds, before and after quantization.

    Feeds in which an input is empty do not count; one that is always empty has no entry.
    """
    wanted = {(tensor, _channel_axis(source.facts.by_name[name])) for name, tensor in layers.items()}
    sums: dict[tuple[str, int], tuple[Float64, Float64]] = {}
    counts: Counter[tuple[str, int]] = Counter()
    names = sorted({tensor for tensor, _ in wanted})
    for _, arrays in tap(source.normalized, feeds, groups=[names], with_outputs=with_outputs):
        for tensor, axis in sorted(wanted):
            if arrays[tensor].size == 0:
                continue
            before, after = channel_means(arrays[tensor], parameters.activations[tensor], axis=axis)
            counts[tensor, axis] += 1
            held = sums.get((tensor, axis))
            sums[tensor, axis] = (before, after) if held is None else (held[0] + before, held[1] + after)
    return {key: (before / counts[key], after / counts[key]) for key, (before, after) in sums.items()}


def _oriented(source: FloatModel, node: NodeFact, weight: WeightParams) -> tuple[AnyArray, AnyArray]:
    """The weight and what its integers stand for, output channels first."""
    exact = source.constant(weight.spec.tensor)
    axis = 0 if weight.params.axis is None else weight.params.axis
    zero_point = weight.params.zero_point.astype(np.dtype(weight.params.dtype))
    coarse = dequantize_linear(weight.codes(), weight.params.scale, zero_point, axis=axis)
    if node.op_type == "Conv" or (node.op_type == "Gemm" and node.attributes.get("transB", 0)):
        return exact, coarse
    return exact.T, coarse.T
