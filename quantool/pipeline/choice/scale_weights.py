"""AWQ on a graph: factors for the inputs of products, taken up by what comes before; the same function in float."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from quantool.algorithms.awq import best_factors
from quantool.algorithms.gptq import Float64
from quantool.edits import AddInitializer, Edit, SetInput
from quantool.graph.allocator import NameAllocator
from quantool.graph.edit import apply
from quantool.pipeline.choice.fold import Place, absorbing
from quantool.pipeline.choice.weight_layers import Grams, WeightLayer
from quantool.pipeline.source import SAME_FLOAT, FloatModel, finished, run_all
from quantool.schema import AnyArray, Feed, FloatArray, IntArray, WeightSpec
from quantool.verify import same

#: factors must lower a group's output error to this share of it, or they are left out
MOST_SHARE = 0.95
#: name that `FloatModel.changed` has for it
SCALED = "awq"

_Factors: TypeAlias = list[tuple[int, Float64]]
_Scales: TypeAlias = Callable[[AnyArray, WeightSpec], tuple[FloatArray, IntArray]]


def scaled(
    source: FloatModel,
    layers: Sequence[WeightLayer],
    grams: Grams,
    feeds: Sequence[Feed],
    *,
    scales_of: _Scales,
) -> tuple[FloatModel, int] | None:
    """The model with the inputs of products scaled, and how many products; None where no factors help.

    Products that read one tensor take the same factors, and nothing else may read it. The result is compared with the
    float model on the first feed: None where they differ.
    """
    changes: dict[tuple[str, int], _Factors] = {}
    count = 0
    groups = _groups(source, layers)
    members = [layer for readers, _ in groups.values() for layer in readers]
    for part, known in grams.groups(members):
        for tensor in dict.fromkeys(layer.input.tensor for layer in part):
            readers, places = groups[tensor]
            gram = known.get(readers[0].input.key)
            factors = None if gram is None else _best(source, readers, gram[0], scales_of)
            if factors is None:
                continue
            count += len(readers)
            for layer in readers:
                axis = 1 if layer.node.attributes.get("transB", 0) else 0
                changes.setdefault((layer.node.name, 1), []).append((axis, factors))
            for place in places:
                changes.setdefault((place.node, place.index), []).append((place.axis, 1.0 / factors))
    result = _edited(source, changes) if changes else None
    if result is None:
        return None
    before, after = (run_all(one.normalized, feeds[:1])[0] for one in (source, result))
    return (result, count) if same(before, after, rtol=SAME_FLOAT) else None


def _groups(
    source: FloatModel, layers: Sequence[WeightLayer]
) -> Mapping[str, tuple[list[WeightLayer], tuple[Place, ...]]]:
    """Tensor -> the products that read it and what takes their factors up."""
    readers: dict[str, list[WeightLayer]] = {}
    for layer in layers:
        if layer.node.op_type in ("MatMul", "Gemm") and len(layer.shape) == 2:
            readers.setdefault(layer.input.tensor, []).append(layer)
    found = {}
    for tensor, group in readers.items():
        names = [layer.node.name for layer in group]
        places = absorbing(source.facts, tensor, group[0].input.size, readers=names)
        if places is not None:
            found[tensor] = (group, places)
    return found


def _best(source: FloatModel, readers: Sequence[WeightLayer], gram: Float64, scales_of: _Scales) -> Float64 | None:
    """The factors of least output error; root mean squares stand for the means of |x|, which no Gram matrix has."""
    matrices = [layer.matrix(source.constant(layer.spec.tensor)).astype(np.float64) for layer in readers]
    magnitudes = np.sqrt(np.diagonal(gram))
    factors, share = best_factors(
        matrices, gram, magnitudes, rounded=lambda i, matrix: _rounded(readers[i], matrix, scales_of)
    )
    return factors if share <= MOST_SHARE else None


def _rounded(layer: WeightLayer, matrix: Float64, scales_of: _Scales) -> Float64:
    """What the codes of a matrix stand for, rounded to nearest."""
    weight = layer.stored(matrix.astype(np.float32))
    scale, zero = (layer.spread(part).astype(np.float64) for part in scales_of(weight, layer.spec))
    grid = layer.grid
    values: Float64 = (np.clip(np.rint(matrix / scale) + zero, grid.qmin, grid.qmax) - zero) * scale
    return values


def _edited(source: FloatModel, changes: Mapping[tuple[str, int], _Factors]) -> FloatModel:
    model = replace(source.model, ir=source.model.ir.clone())
    fresh = NameAllocator(model).fresh
    edits: list[Edit] = []
    for (node, index), factors in changes.items():
        old = source.facts.by_name[node].inputs[index]
        shape = tuple(int(d) for d in source.facts.tensors[old].shape or () if isinstance(d, int))
        name, load = fresh(f"{old}_scaled"), partial(_times, source.constant, old, factors)
        edits += [AddInitializer(name=name, dtype="float32", shape=shape, load=load), SetInput(node, index, name)]
    apply(model, edits)
    changed = (*source.changed, SCALED)
    return finished(source.loaded, model, source.given, changed=changed, threads=source.given.threads)


def _times(constant: Callable[[str], AnyArray], tensor: str, factors: _Factors) -> AnyArray:
    """A constant times factors along its axes, float32."""
    values = constant(tensor).astype(np.float64)
    for axis, each in factors:
        values = values * each.reshape((-1,) + (1,) * (values.ndim - axis - 1))
    return values.astype(np.float32)
