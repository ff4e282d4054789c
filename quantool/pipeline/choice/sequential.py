"""Bias correction from the quantized prefix: each layer's mean error with the layers before it as they will be.

The sequential form of Nagel et al., arXiv:1906.04721, section 4.2, whose means come from the quantized model instead
of a batch norm: e = Wq E[x~] - W E[x], where x~ is what the layer reads once the layers before it are corrected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from quantool.algorithms.bias_correction import Float64, row_mean_error
from quantool.algorithms.layer_input import LayerInput, layer_input
from quantool.graph.outputs import with_outputs
from quantool.kernels import dequantize_linear
from quantool.pipeline.build import loadable, quantized_graph
from quantool.pipeline.choice.candidate import Candidate
from quantool.pipeline.choice.score import counterparts
from quantool.pipeline.source import FloatModel
from quantool.runtime import Loadable, tap
from quantool.schema import AnyArray, Feed, GraphFacts, NodeFact, Parameters
from quantool.solve import Corrections

#: runs of the quantized model over the feeds; deeper models correct several levels of layers in each
MOST_STAGES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """A layer whose bias can take a correction."""

    node: NodeFact
    input: LayerInput


def sequential_corrections(
    candidate: Candidate,
    start: Corrections,
    feeds: Sequence[Feed],
    *,
    solved: Callable[[Corrections], Parameters],
    threads: int,
) -> Corrections:
    """Node -> mean error of its output channels, float64[O], layer by layer.

    start: corrections that do not know of the layers before, for the nodes that may be changed; solved: the
    candidate's parameters with corrections. Where several levels share a run, those behind see the start of those
    before. One feed's tensors are in memory at a time.
    """
    source, facts = candidate.source, candidate.source.facts
    stages = [
        layers
        for nodes in in_stages(facts, start.keys())
        if (layers := [found for node in nodes if (found := _layer(facts, node)) is not None])
    ]
    readings = {layer.node.name: layer for layers in stages for layer in layers}
    exact = _means(source.normalized, {name: layer.input.tensor for name, layer in readings.items()}, readings, feeds)
    corrections = dict(start)
    for layers in stages:
        parameters = solved(corrections)
        model = quantized_graph(source, candidate.plan, parameters)
        names = counterparts(model, {layer.node.name: layer.input.tensor for layer in layers})
        written = loadable(model, threads=threads, thrift=source.normalized.thrift)
        means = _means(written, names, readings, feeds)
        for layer in layers:
            name = layer.node.name
            if name in exact and name in means:
                corrections[name] = row_mean_error(*_matrices(source, layer, parameters), exact[name], means[name])
    return corrections


def in_stages(facts: GraphFacts, nodes: Collection[str]) -> Iterator[list[NodeFact]]:
    """The nodes by how many of them lie before each, in at most MOST_STAGES parts."""
    depth: dict[str, int] = {}
    levels: dict[int, list[NodeFact]] = {}
    for node in facts.nodes:
        before = max((depth.get(tensor, 0) for tensor in node.inputs), default=0)
        wanted = node.name in nodes
        if wanted:
            levels.setdefault(before, []).append(node)
        depth.update(dict.fromkeys(node.outputs, before + wanted))
    order = [levels[level] for level in sorted(levels)]
    size = max(1, -(-len(order) // MOST_STAGES))
    for first in range(0, len(order), size):
        yield [node for level in order[first : first + size] for node in level]


def _layer(facts: GraphFacts, node: NodeFact) -> _Layer | None:
    rows = layer_input(facts, node)
    return None if rows is None else _Layer(node=node, input=rows)


def _means(
    model: Loadable, names: Mapping[str, str], layers: Mapping[str, _Layer], feeds: Sequence[Feed]
) -> Mapping[str, Float64]:
    """The mean of the rows of each layer over the feeds. names: node -> the tensor that it reads in this model.

    Feeds in which an input is empty do not count; one that is always empty has no entry.
    """
    sums: dict[str, list[Float64]] = {}
    for _, arrays in tap(model, feeds, groups=[sorted(set(names.values()))], with_outputs=with_outputs):
        for node, tensor in names.items():
            if arrays[tensor].size:
                mean, held = layers[node].input.means(arrays[tensor]), sums.get(node)
                sums[node] = [mean, np.ones(1)] if held is None else [held[0] + mean, held[1] + 1]
    return {node: total / count for node, (total, count) in sums.items()}


def _matrices(source: FloatModel, layer: _Layer, parameters: Parameters) -> tuple[AnyArray, AnyArray]:
    """The weight and what its integers stand for, as [O, d]."""
    weight = parameters.weights[layer.node.name, 1]
    zero_point = weight.params.zero_point.astype(np.dtype(weight.params.dtype))
    axis = 0 if weight.params.axis is None else weight.params.axis
    coarse = dequantize_linear(weight.codes(), weight.params.scale, zero_point, axis=axis)
    exact = source.constant(weight.spec.tensor)
    if layer.node.op_type == "Conv":
        return exact.reshape(len(exact), -1), coarse.reshape(len(coarse), -1)
    return (exact, coarse) if layer.node.attributes.get("transB", 0) else (exact.T, coarse.T)
