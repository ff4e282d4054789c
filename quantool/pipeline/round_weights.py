"""Weight rounding by GPTQ for the layers whose weights' noise exceeds their input's, on the feeds that fit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from calibrators import Gram
from quantool.algorithms.gptq import Float64, gptq, output_noise
from quantool.algorithms.layer_input import LayerInput, layer_input
from quantool.graph.outputs import with_outputs
from quantool.pipeline.source import FloatModel
from quantool.runtime import tap
from quantool.schema import AnyArray, Feed, Grid, NodeFact, Parameters, Plan, WeightParams

#: a Gram matrix of a larger layer costs more than it gains at 8 bits, unless it is there already
MOST_INPUTS = 2048
#: rows for each input of a layer: fewer fit the samples instead of the layer
ROWS_AN_INPUT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One layer under work: its weight as [O, d], and how its input becomes rows."""

    node: NodeFact
    weight: WeightParams
    input: LayerInput
    matrix: Float64


def rounded(
    source: FloatModel,
    plan: Plan,
    parameters: Parameters,
    feeds: Sequence[Feed],
    *,
    known: Mapping[str, Gram] = MappingProxyType({}),
    everywhere: bool = False,
) -> Mapping[str, AnyArray]:
    """Node -> codes of its weight, in the weight's shape, for every layer that GPTQ improves and that needs it.

    A layer needs it where the noise of rounding its weights to nearest, tr(E G E^T), exceeds the noise of rounding
    its inputs, s^2 / 12 for each element of each row of weights; everywhere: every layer needs it. known: Gram
    matrices from calibration; others are gathered from the feeds.
    """
    layers = list(_layers(source, plan, parameters))
    grams = {**_gathered(source, [layer for layer in layers if layer.input.key not in known], feeds), **known}
    found: dict[str, AnyArray] = {}
    for layer in layers:
        gram = grams.get(layer.input.key)
        # Inputs that were always zero fit nothing.
        if gram is None or not gram.sums.parts:
            continue
        codes = _better_codes(layer, gram.mean(), parameters, everywhere=everywhere)
        if codes is not None:
            found[layer.node.name] = _as_stored(layer, codes)
    return found


def with_codes(parameters: Parameters, codes: Mapping[str, AnyArray]) -> Parameters:
    """The same parameters, some weights with other codes on the same scales."""
    weights = dict(parameters.weights)
    for node, stored in codes.items():
        weight = weights[node, 1]
        digest = hashlib.sha256(stored.tobytes()).hexdigest()[:16]
        weights[node, 1] = replace(
            weight, key=f"{weight.key}|{digest}", codes=partial(_same, stored), rounded_to_nearest=False
        )
    return replace(parameters, weights=weights)


def _same(array: AnyArray) -> AnyArray:
    return array


def _layers(source: FloatModel, plan: Plan, parameters: Parameters) -> Iterator[_Layer]:
    """The quantized layers whose inputs can be laid out as rows, with symmetric weights."""
    for spec in plan.weights:
        node = source.facts.by_name[spec.node]
        plain = spec.activation is not None and spec.symmetric and not spec.block_size and spec.bits <= 8
        rows = layer_input(source.facts, node) if plain and spec.index == 1 else None
        if rows is None or rows.tensor != spec.activation:
            continue
        matrix = _as_matrix(node, source.constant(spec.tensor)).astype(np.float64)
        yield _Layer(node=node, weight=parameters.weights[spec.node, 1], input=rows, matrix=matrix)


def _as_matrix(node: NodeFact, weight: AnyArray) -> AnyArray:
    """A weight as [O, d]: outputs first, inputs in the order of the rows."""
    if node.op_type == "Conv":
        return weight.reshape(len(weight), -1)
    return weight if node.attributes.get("transB", 0) else weight.T


def _as_stored(layer: _Layer, codes: AnyArray) -> AnyArray:
    stored = codes if layer.node.op_type == "Conv" or layer.node.attributes.get("transB", 0) else codes.T
    return np.ascontiguousarray(stored.reshape(layer.weight.shape).astype(layer.weight.params.dtype))


def _gathered(source: FloatModel, layers: Sequence[_Layer], feeds: Sequence[Feed]) -> Mapping[str, Gram]:
    """The Gram matrices of layers in one run of the float model; one sample's inputs are in memory at a time."""
    inputs = {layer.input.key: layer.input for layer in layers if layer.input.size <= MOST_INPUTS}
    names = sorted({rows.tensor for rows in inputs.values()})
    if not names or not feeds:
        return {}
    grams = dict.fromkeys(inputs, Gram())
    for _, arrays in tap(source.normalized, feeds, groups=[names], with_outputs=with_outputs):
        for key, layer in inputs.items():
            sample = arrays[layer.tensor]
            if sample.size:
                most = -(-ROWS_AN_INPUT * layer.size // len(feeds))
                grams[key] = grams[key].observe(layer.rows(sample, most=most))
    return grams


def _better_codes(
    layer: _Layer, gram: Float64, parameters: Parameters, *, everywhere: bool
) -> NDArray[np.int32] | None:
    """GPTQ's codes where the layer needs them and they are better, else None."""
    params, spec = layer.weight.params, layer.weight.spec
    scale = params.scale.astype(np.float64).reshape(-1, 1)
    nearest = _as_matrix(layer.node, layer.weight.codes()).astype(np.float64)
    noise = output_noise(layer.matrix - nearest * scale, gram)
    step = float(parameters.activations[layer.input.tensor].scale)
    if not everywhere and noise <= step**2 / 12 * float(np.square(layer.matrix).sum()):
        return None
    codes = gptq(layer.matrix, gram, params.scale, grid=Grid.of(spec.dtype, symmetric=True, bits=spec.bits))
    if codes is None or output_noise(layer.matrix - codes * scale, gram) >= noise:
        return None
    return codes
