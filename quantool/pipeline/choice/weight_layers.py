"""The layers whose weights alone are quantized, as matrices, and the Gram matrices of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from calibrators import Gram
from quantool.algorithms.blocks import spread
from quantool.algorithms.gptq import Float64
from quantool.algorithms.layer_input import LayerInput, layer_input
from quantool.elements import ELEMENTS
from quantool.graph.outputs import with_outputs
from quantool.pipeline.memory import gram_bytes, passes
from quantool.pipeline.source import FloatModel
from quantool.runtime import tap
from quantool.schema import AnyArray, Feed, FloatArray, Grid, NodeFact, Plan, QuantParams, WeightSpec

#: layers with more inputs keep the scales that weights alone give: their Gram matrix takes half a gigabyte
MOST_INPUTS: Final = 4096
#: inputs whose rows are read as float32
FLOATS: Final = ("float32", "float16")
#: Gram matrices in memory at a time, in bytes, and their share of --memory
GRAM_BYTES: Final = 1 << 29
MEMORY_SHARE: Final = 8
#: rows for each input of a layer, and rows of each sample at least: fewer fit the samples instead of the layer
ROWS_AN_INPUT, LEAST_ROWS = 4, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightLayer:
    """One layer: what it multiplies, and its weight's form."""

    node: NodeFact
    spec: WeightSpec
    input: LayerInput
    shape: tuple[int, ...]

    @property
    def grid(self) -> Grid:
        """The codes of its weight."""
        return Grid.of(self.spec.dtype, symmetric=self.spec.symmetric, bits=self.spec.bits)

    @property
    def block(self) -> int:
        """How many inputs share a scale."""
        return min(self.spec.block_size or self.input.size, self.input.size)

    def matrix(self, weight: AnyArray) -> AnyArray:
        """A weight, or an array of its shape, as [O, d]: outputs first, inputs in the order of the rows."""
        if self.node.op_type == "Conv":
            return weight.reshape(len(weight), -1)
        return weight if self.node.attributes.get("transB", 0) else weight.T

    def stored(self, matrix: AnyArray) -> AnyArray:
        """[O, d] in the weight's own shape."""
        plain = self.node.op_type == "Conv" or self.node.attributes.get("transB", 0)
        return np.ascontiguousarray((matrix if plain else matrix.T).reshape(self.shape))

    def steps(self, params: QuantParams) -> tuple[AnyArray, AnyArray]:
        """Scale and zero point of each weight, [O, d]."""
        return self.spread(params.scale), self.spread(params.zero_point)

    def spread(self, parameter: AnyArray) -> AnyArray:
        """A parameter of each block at each of its weights, [O, d]."""
        spec = self.spec
        return self.matrix(spread(parameter, self.shape, axis=spec.axis, block_size=spec.block_size))

    @property
    def in_rows(self) -> bool:
        """Whether scales belong to rows of the matrix or to blocks of neighbours in them."""
        return self.spec.axis is not None and (len(self.shape) == 2 or not self.spec.block_size)

    def by_rows(self, parameter: AnyArray) -> AnyArray:
        """A parameter of each block as [O, blocks], where they are `in_rows`."""
        return (parameter.T if self._turned else parameter).reshape(self.outputs, -1)

    def from_rows(self, parameter: AnyArray, shape: tuple[int, ...]) -> FloatArray:
        """The same in its own shape, float32."""
        return np.ascontiguousarray(parameter.T if self._turned else parameter, np.float32).reshape(shape)

    @property
    def _turned(self) -> bool:
        return bool(self.spec.block_size) and not self.node.attributes.get("transB", 0) and self.node.op_type != "Conv"

    def importance(self, gram: Float64) -> AnyArray:
        """How much an error of each weight counts: the mean square of its input, float32, broadcast to the weight.

        All are divided by a power of two, the largest to below 1: searches compare errors, and squares of large inputs
        are beyond float32.
        """
        energy = np.diagonal(gram, axis1=1, axis2=2)
        _, exponent = np.frexp(energy.max())
        rows = np.repeat(np.ldexp(energy, -exponent).astype(np.float32), self.outputs // len(energy), axis=0)
        return self.stored(rows)

    @property
    def outputs(self) -> int:
        """How many rows its matrix has."""
        return int(np.prod(self.shape)) // self.input.size


def weight_layers(source: FloatModel, plan: Plan, *, at: Callable[[str], bool] = lambda _: True) -> list[WeightLayer]:
    """The quantized Conv, MatMul and Gemm of the main graph whose inputs can be laid out as rows of floats.

    Left out: weights that several nodes share or that are tied to a transpose, because codes of their own would be
    stored beside the shared ones; scales along the rows of a product; types that are no integers; too many inputs.
    """
    tied = {tensor.transpose_of for tensor in source.facts.tensors.values() if tensor.transpose_of}
    found = []
    for spec in plan.weights:
        node, fact = source.facts.by_name[spec.node], source.facts.tensors[spec.tensor]
        shared = len(fact.readers) > 1 or fact.transpose_of or spec.tensor in tied
        rows = None if shared or spec.index != 1 or not at(spec.node) else layer_input(source.facts, node)
        if rows is None or rows.size > MOST_INPUTS or ELEMENTS[spec.dtype].floating:
            continue
        if source.facts.tensors[rows.tensor].dtype not in FLOATS:
            continue
        shape = tuple(int(d) for d in fact.shape or () if isinstance(d, int))
        layer = WeightLayer(node=node, spec=spec, input=rows, shape=shape)
        if spec.axis is None or _scales_fit(layer):
            found.append(layer)
    return found


def _scales_fit(layer: WeightLayer) -> bool:
    """Whether channels are the rows of the matrix, or blocks run along them."""
    assert layer.spec.axis is not None
    axis = layer.spec.axis % len(layer.shape)
    first = layer.node.op_type == "Conv" or bool(layer.node.attributes.get("transB", 0))
    outputs = 0 if first else 1
    return axis != outputs if layer.spec.block_size else axis == outputs


@dataclass(slots=True)
class Grams:
    """The Gram matrices of layers' inputs on the feeds that fit, as many in memory as the bound allows.

    feeds are run once where all fit, else once for each group whenever they are asked for.
    """

    source: FloatModel
    feeds: Sequence[Feed]
    bound: int = GRAM_BYTES
    _held: dict[str, Float64] = field(default_factory=dict)

    def groups(self, layers: Sequence[WeightLayer]) -> Iterator[tuple[list[WeightLayer], Mapping[str, Float64]]]:
        """Layers with the means of x x^T by the key of their input, float64[G, d, d]; silent inputs have none."""
        inputs = {layer.input.key: layer.input for layer in layers}
        parts = passes({key: gram_bytes(rows) for key, rows in inputs.items()}, self.bound)
        for keys in parts:
            missing = [inputs[key] for key in keys if key not in self._held]
            if missing or len(parts) > 1:
                self._held = {} if len(parts) > 1 else self._held
                self._held |= self._gathered([inputs[key] for key in keys] if len(parts) > 1 else missing)
            chosen = set(keys)
            yield [layer for layer in layers if layer.input.key in chosen], self._held

    def _gathered(self, inputs: Sequence[LayerInput]) -> dict[str, Float64]:
        names = sorted({rows.tensor for rows in inputs})
        grams = {rows.key: Gram() for rows in inputs}
        for _, arrays in tap(self.source.normalized, self.feeds, groups=[names], with_outputs=with_outputs):
            for rows in inputs:
                sample = arrays[rows.tensor]
                if sample.size:
                    most = max(LEAST_ROWS, -(-ROWS_AN_INPUT * rows.size // len(self.feeds)))
                    grams[rows.key] = grams[rows.key].observe(rows.rows(sample, most=most))
        return {key: gram.mean() for key, gram in grams.items() if gram.sums.parts}


def gram_bound(memory: int | None) -> int:
    """What Gram matrices may take under --memory, in bytes."""
    return GRAM_BYTES if memory is None else min(GRAM_BYTES, memory // MEMORY_SHARE)
