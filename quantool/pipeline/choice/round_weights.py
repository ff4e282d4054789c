"""Weight rounding by GPTQ for the layers whose weights' noise exceeds their input's, on the feeds that fit.

At the highest effort every layer is rounded, coordinate descent polishes the codes, and scales are fitted to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from calibrators import Gram
from quantool.algorithms.coordinate_descent import descend, rounded_well
from quantool.algorithms.gptq import Float64, gptq, output_noise, rescaled_gram
from quantool.algorithms.layer_input import LayerInput, layer_input
from quantool.graph.outputs import with_outputs
from quantool.pipeline.choice.rescale import Origin
from quantool.pipeline.source import FloatModel
from quantool.runtime import tap
from quantool.schema import AnyArray, Feed, FloatArray, Grid, NodeFact, Parameters, Plan, WeightParams
from quantool.solve.weights import BIAS_LIMIT

#: a Gram matrix of a larger layer costs more than it gains at 8 bits, unless it is there already
MOST_INPUTS = 2048
#: rows for each input of a layer, and rows of each sample at least: fewer fit the samples instead of the layer
ROWS_AN_INPUT, LEAST_ROWS = 4, 64
#: calibration keeps 14 bits of the largest channel; of one that was rescaled by this much more, six
MOST_SPREAD = 256.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """How a weight is rounded. codes: integers in the weight's shape; scale: where it was fitted to them, else None."""

    codes: AnyArray
    scale: FloatArray | None


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
    origins: Mapping[str, Origin] = MappingProxyType({}),
    everywhere: bool = False,
    at: Callable[[str], bool] = lambda _: True,
) -> Mapping[str, Rounding]:
    """Node -> how its weight is rounded, for every layer that GPTQ improves and that needs it.

    A layer needs it where the noise of rounding its weights to nearest, tr(E G E^T), exceeds the noise of rounding
    its inputs, s^2 / 12 for each element of each row of weights; everywhere: all layers, by the best means. known: Gram
    matrices from calibration; others are gathered from the feeds. origins: of tensors that were rescaled since. at: the
    nodes that may be changed.
    """
    layers = [layer for layer in _layers(source, plan, parameters) if at(layer.node.name)]
    gathered = _gathered(source, [x for x in layers if _calibrated(x.input, origins, known) is None], feeds)
    found: dict[str, Rounding] = {}
    for layer in layers:
        gram = _calibrated(layer.input, origins, known) or gathered.get(layer.input.key)
        # Inputs that were always zero fit nothing.
        if gram is None or not gram.sums.parts:
            continue
        origin = None if layer.input.key in gathered else origins.get(layer.input.tensor)
        mean = gram.mean() if origin is None else rescaled_gram(gram.mean(), layer.input.spread(origin.factors))
        least = _least_scale(source, layer, parameters)
        rounding = _better(layer, mean, parameters, least=least if everywhere else None)
        if rounding is not None:
            found[layer.node.name] = rounding
    return found


def _calibrated(layer: LayerInput, origins: Mapping[str, Origin], known: Mapping[str, Gram]) -> Gram | None:
    """The Gram matrix of what a layer read in calibration; None where that has too few digits for its channels now."""
    origin = origins.get(layer.tensor)
    if origin is None:
        return known.get(layer.key)
    rough = origin.factors.max() > MOST_SPREAD * origin.factors.min()
    return None if rough else known.get(replace(layer, tensor=origin.tensor).key)


def with_codes(parameters: Parameters, roundings: Mapping[str, Rounding]) -> Parameters:
    """The same parameters, some weights with other codes. Their scales must be those that the codes were made for."""
    weights = dict(parameters.weights)
    for node, rounding in roundings.items():
        weight, stored = weights[node, 1], rounding.codes
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
        # Codes around another zero than 0 are those of one zero point for all channels.
        if rows is None or rows.tensor != spec.activation or parameters.weights[spec.node, 1].params.zero_point.any():
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
                most = max(LEAST_ROWS, -(-ROWS_AN_INPUT * layer.size // len(feeds)))
                grams[key] = grams[key].observe(layer.rows(sample, most=most))
    return grams


def _least_scale(source: FloatModel, layer: _Layer, parameters: Parameters) -> Float64:
    """Scales below which an int32 bias would not fit beside them; none without a bias that follows the scale."""
    spec = layer.weight.spec
    if spec.bias is None or spec.own_bias_scale:
        return np.zeros(len(layer.matrix))
    bias = np.abs(source.constant(spec.bias).astype(np.float64).reshape(-1))
    step = float(parameters.activations[layer.input.tensor].scale)
    # Twice what is needed: bias correction may still move it.
    return 2.0 * bias / (step * BIAS_LIMIT)


def _better(layer: _Layer, gram: Float64, parameters: Parameters, *, least: Float64 | None) -> Rounding | None:
    """GPTQ's codes where the layer needs them and they are better, else None. least: fit scales from here up too."""
    params, spec = layer.weight.params, layer.weight.spec
    scale = params.scale.astype(np.float64).reshape(-1)
    nearest = _as_matrix(layer.node, layer.weight.codes()).astype(np.float64)
    noise = output_noise(layer.matrix - nearest * scale[:, None], gram)
    step = float(parameters.activations[layer.input.tensor].scale)
    if least is None and noise <= step**2 / 12 * float(np.square(layer.matrix).sum()):
        return None
    grid = Grid.of(spec.dtype, symmetric=True, bits=spec.bits)
    found = _fitted(layer, gram, scale, grid=grid, least=least)
    if found is None or output_noise(layer.matrix - found[0] * found[1][:, None], gram) >= noise:
        return None
    codes, fitted = found
    changed = params.axis is not None and not np.array_equal(fitted, scale)
    return Rounding(
        codes=_as_stored(layer, codes), scale=fitted.astype(np.float32).reshape(params.scale.shape) if changed else None
    )


def _fitted(
    layer: _Layer, gram: Float64, scale: Float64, *, grid: Grid, least: Float64 | None
) -> tuple[NDArray[np.int32], Float64] | None:
    """Codes and scales, float64[O] or [1]; scales stay where all channels share one, or where only codes are wanted."""
    if least is not None and scale.size == len(layer.matrix):
        return rounded_well(layer.matrix, gram, scale, grid=grid, least=least)
    codes = gptq(layer.matrix, gram, scale, grid=grid)
    if codes is None or least is None:
        return None if codes is None else (codes, scale)
    return descend(layer.matrix, gram, scale, codes, grid=grid), scale
