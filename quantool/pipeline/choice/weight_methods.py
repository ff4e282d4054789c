"""How the weights of a model are quantized alone: one method for all layers, others where rules say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from quantool.algorithms.awq import clip_shares
from quantool.algorithms.block_descent import descended
from quantool.algorithms.gptq import Float64, gptq, output_noise
from quantool.elements import ELEMENTS
from quantool.pipeline.choice.forced import Ruling
from quantool.pipeline.choice.round_weights import Rounding, with_codes
from quantool.pipeline.choice.weight_layers import Grams, WeightLayer, weight_layers
from quantool.pipeline.source import FloatModel
from quantool.recipe import OF_SCALES, Algorithm, Effort, Recipe
from quantool.schema import AnyArray, FloatArray, IntArray, Parameters, Plan, QuantParams, WeightSpec
from quantool.solve import solve
from quantool.solve.scales import searched_scales
from quantool.solve.weights import stored_scale

#: with so many bits a search without data gains too little for its time, unless it is asked for
ENOUGH_BITS: Final = 8
#: plan of a float graph, which a method may have changed
Planner = Callable[[FloatModel], Plan]
_Scales = tuple[FloatArray, IntArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What is done for the weights of a layer.

    search: what looks for scales, None for rounding to nearest; thorough: at any number of bits, and longer; weighted:
    by the mean squares of the inputs; clipped: by the clip search of AWQ; second_order: codes by GPTQ; polished: and
    coordinate descent after it.
    """

    label: str
    search: Algorithm | None = None
    thorough: bool = False
    weighted: bool = False
    clipped: bool = False
    second_order: bool = False
    polished: bool = False

    @property
    def needs_data(self) -> bool:
        """Whether it reads the Gram matrices of inputs."""
        return self.weighted or self.clipped or self.second_order

    def searches(self, spec: WeightSpec) -> Algorithm | None:
        """What looks for the scales of a weight."""
        few = min(ELEMENTS[spec.dtype].bits, spec.bits) < ENOUGH_BITS
        return self.search if few or self.thorough else None


#: what weights get without data
DATA_FREE: Final = {
    Effort.FAST: Method(label="mse-clip", search=Algorithm.MSE_CLIP),
    Effort.BALANCED: Method(label="k-quant", search=Algorithm.K_QUANT),
    Effort.MAX: Method(label="k-quant", search=Algorithm.K_QUANT, thorough=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """One way to quantize the weights of a model. fitted: nodes whose scales or codes were fitted to data."""

    label: str
    source: FloatModel
    plan: Plan
    parameters: Parameters
    method: Method
    fitted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Weigher:
    """Applies methods. ruling: what rules say of single nodes, whatever the method."""

    planner: Planner
    recipe: Recipe
    ruling: Ruling

    def made(self, source: FloatModel, method: Method, grams: Grams | None) -> Weighed:
        """All weights of a model by a method. grams: of the same model; None without data."""
        plan = self.planner(source)
        scales = _Rule(method, self.ruling, source)
        fitted: dict[tuple[str, int], _Scales] = {}
        roundings: dict[str, Rounding] = {}
        for layer, gram, own in self._with_data(source, plan, method, grams):
            params = _fitted_params(layer, source.constant(layer.spec.tensor), gram, own, scales)
            if own.second_order and np.isfinite(params.scale).all():
                found = _second_order(layer, source, params, gram, polished=own.polished)
                if found is not None:
                    params = found[1]
                    roundings[layer.spec.node] = Rounding(codes=found[0], scale=None)
            fitted[layer.spec.node, layer.spec.index] = (params.scale, params.zero_point)

        def search(weight: AnyArray, spec: WeightSpec) -> _Scales | None:
            found = fitted.get((spec.node, spec.index))
            return scales.better(weight, spec) if found is None else found

        parameters = solve(plan, {}, load=source.constant, recipe=self.recipe, search=search)
        parameters = with_codes(parameters, roundings)
        nodes = frozenset(node for node, _ in fitted)
        return Weighed(label=method.label, source=source, plan=plan, parameters=parameters, method=method, fitted=nodes)

    def rule(self, source: FloatModel, method: Method) -> Callable[[AnyArray, WeightSpec], _Scales]:
        """What gives the scales of each weight without data."""
        return _Rule(method, self.ruling, source)

    def layers(self, source: FloatModel, *, at: Callable[[str], bool]) -> list[WeightLayer]:
        """The layers that can be fitted to data."""
        return weight_layers(source, self.planner(source), at=at)

    def _with_data(
        self, source: FloatModel, plan: Plan, method: Method, grams: Grams | None
    ) -> Iterator[tuple[WeightLayer, Float64, Method]]:
        """Each layer whose own method needs data, the Gram matrix of its input, and that method."""
        if grams is None:
            return
        own = {spec.node: at_node(method, self.ruling, spec.node) for spec in plan.weights}
        layers = weight_layers(source, plan, at=lambda node: own[node].needs_data)
        for part, known in grams.groups(layers):
            for layer in part:
                if layer.input.key in known:
                    yield layer, known[layer.input.key], own[layer.spec.node]


def at_node(method: Method, ruling: Ruling, node: str) -> Method:
    """The method of a node: exactly what rules name there, else the one given."""
    wanted = ruling.wanted.get(node)
    if wanted is None:
        return method
    search = next((found for found in OF_SCALES if found in wanted), None)
    return Method(
        label=method.label,
        search=search,
        thorough=True,
        clipped=Algorithm.AWQ in wanted,
        second_order=Algorithm.GPTQ in wanted,
    )


@dataclass(frozen=True, slots=True)
class _Rule:
    """Scales from weights alone, one weight at a time. tied: tensors that are the transpose of another constant."""

    method: Method
    ruling: Ruling
    source: FloatModel

    def better(self, weight: AnyArray, spec: WeightSpec) -> _Scales | None:
        """Scales that a search finds; None where the weight is rounded to nearest, as floating types always are."""
        own = at_node(self.method, self.ruling, spec.node)
        fixed = own.searches(spec) is None or ELEMENTS[spec.dtype].floating or not weight.size
        return None if fixed else self(weight, spec)

    def __call__(self, weight: AnyArray, spec: WeightSpec, importance: AnyArray | None = None) -> _Scales:
        own = at_node(self.method, self.ruling, spec.node)
        return searched_scales(
            weight,
            spec,
            search=own.search if importance is not None else own.searches(spec),
            importance=importance,
            thorough=own.thorough,
            transposed=bool(self.source.facts.tensors[spec.tensor].transpose_of),
        )


def _fitted_params(layer: WeightLayer, weight: AnyArray, gram: Float64, own: Method, scales: _Rule) -> QuantParams:
    spec = layer.spec
    importance = layer.importance(gram) if own.weighted else None
    scale, zero_point = scales(weight, spec, importance)
    if own.clipped and layer.in_rows and len(gram) == 1:
        scale = _clipped(layer, weight, gram, scale, zero_point)
    scale = stored_scale(scale, spec.scale_type)
    return QuantParams(dtype=spec.dtype, scale=scale, zero_point=zero_point, axis=spec.axis, block_size=spec.block_size)


def _clipped(
    layer: WeightLayer, weight: AnyArray, gram: Float64, scale: FloatArray, zero_point: IntArray
) -> FloatArray:
    """Scales of least output error within each block, around those that a search found."""
    codes, wide = (layer.grid.qmin, layer.grid.qmax), layer.by_rows(scale).astype(np.float64)
    zeros = layer.by_rows(zero_point)
    shares = clip_shares(layer.matrix(weight), gram[0], wide, zeros, codes=codes, block=layer.block)
    return layer.from_rows(wide * shares, scale.shape)


def _second_order(
    layer: WeightLayer, source: FloatModel, params: QuantParams, gram: Float64, *, polished: bool
) -> tuple[AnyArray, QuantParams] | None:
    """GPTQ's codes in the weight's shape, and the scales that they have, where both are better than the nearest.

    polished: coordinate descent goes on from them, and fits scales to codes.
    """
    matrix = layer.matrix(source.constant(layer.spec.tensor)).astype(np.float64)
    step, zero = (part.astype(np.float64) for part in layer.steps(params))
    codes = gptq(matrix, gram, step, grid=layer.grid, zero_point=zero)
    if codes is None:
        return None
    nearest = np.clip(np.rint(matrix / step) + zero, layer.grid.qmin, layer.grid.qmax)
    before = output_noise(matrix - (nearest - zero) * step, gram)
    after = output_noise(matrix - (codes - zero) * step, gram)
    if polished and layer.in_rows and len(gram) == 1:
        better, fitted = _descended(layer, matrix, params, gram, codes)
        step = layer.steps(fitted)[0].astype(np.float64)
        noise = output_noise(matrix - (better - zero) * step, gram)
        if noise < after:
            codes, params, after = better, fitted, noise
    return (layer.stored(codes).astype(np.dtype(layer.spec.dtype)), params) if after < before else None


def _descended(
    layer: WeightLayer, matrix: Float64, params: QuantParams, gram: Float64, codes: IntArray
) -> tuple[IntArray, QuantParams]:
    """Codes and scales that coordinate descent makes of GPTQ's, the scales as they are stored."""
    found, scale = descended(
        matrix,
        gram[0],
        layer.by_rows(params.scale).astype(np.float64),
        layer.steps(params)[1],
        codes,
        grid=layer.grid,
        block=layer.block,
    )
    stored = stored_scale(layer.from_rows(scale, params.scale.shape), layer.spec.scale_type)
    return found, replace(params, scale=stored)
