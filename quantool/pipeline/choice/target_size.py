"""--target-size: narrow types for most weights, wider ones where their error is dearest, within so many bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from quantool.algorithms.gptq import output_noise
from quantool.elements import ELEMENTS
from quantool.errors import OptionError, VerificationError
from quantool.graph.size import weight_count, written_bytes
from quantool.pipeline.build import quantized_graph
from quantool.pipeline.choice.levels import Item, least_error
from quantool.pipeline.choice.weight_layers import Grams, WeightLayer, weight_layers
from quantool.pipeline.source import FloatModel
from quantool.pipeline.weight_error import rounded_values
from quantool.recipe import Recipe, Rule
from quantool.report.wording import plural
from quantool.runtime import Thrift
from quantool.schema import Parameters, Plan
from quantool.solve import solve
from quantool.values import parse_target_size

#: the narrowest type -> what weights may have instead, wider and wider
WIDER: Final = {
    "int2": ("int4", "int8"),
    "uint2": ("uint4", "uint8"),
    "int4": ("int8",),
    "uint4": ("uint8",),
    "int8": (),
    "uint8": (),
}
#: plan of a float graph by a recipe
PlanOf = Callable[[FloatModel, Recipe], Plan]


def size_words(source: FloatModel, plan: Plan, size: int) -> str:
    """What a verdict says of a result of so many bytes: its types, and the bits that each weight takes."""
    kinds = {spec.tensor: spec.dtype for spec in plan.weights}
    counts = sorted(Counter(kinds.values()).items(), key=lambda kind: (ELEMENTS[kind[0]].bits, kind[0]))
    parts = ", ".join(f"{plural(count, 'weight')} in {dtype}" for dtype, count in counts)
    return f"It takes {bits_per_weight(size, weight_count(source.model)):.2f} bits per weight ({parts})."


def refuse_oversize(source: FloatModel, recipe: Recipe, size: int) -> None:
    """Refuse a result that came out larger than was reckoned. Raises VerificationError."""
    if recipe.target_size is None:
        return
    most, elements = _most_bytes(recipe.target_size, source)
    if size > most:
        raise VerificationError(
            "target-size-missed",
            f"the result takes {size:,} bytes, {bits_per_weight(size, elements):.2f} bits per weight, more than was "
            f"reckoned and than --target-size {recipe.target_size} allows",
            where="--target-size",
            fix=f"Give a target that is smaller by {size - most:,} bytes.",
        )


def bits_per_weight(size: int, elements: int) -> float:
    """Bits of a whole model over the number of its weights."""
    return 8 * size / max(elements, 1)


def _most_bytes(text: str, source: FloatModel) -> tuple[int, int]:
    """How many bytes a target allows, and the weights that it is over: all floating-point constants of the model."""
    elements, target = weight_count(source.model), parse_target_size(text)
    assert target is not None
    return (int(target.bits * elements / 8) if target.size is None else target.size), elements


def fitted_to_size(source: FloatModel, recipe: Recipe, plan_of: PlanOf, *, grams: Grams | None) -> Recipe:
    """The recipe with a rule for each weight that takes a wider type than the others.

    grams: inputs of layers, for errors as they show in their outputs; without, the weights' own. Raises OptionError
    where even the narrowest types do not fit, naming the size that they need.
    """
    assert recipe.target_size is not None
    assert recipe.weights is not None
    most, elements = _most_bytes(recipe.target_size, source)
    types = (recipe.weights, *WIDER[recipe.weights])
    plans = [plan_of(source, replace(recipe, weights=dtype)) for dtype in types]
    made = [solve(plan, {}, load=source.constant, recipe=recipe) for plan in plans]
    totals = [_bytes(source, recipe, plan, parameters) for plan, parameters in zip(plans, made, strict=True)]
    if totals[0] > most:
        raise _unreachable(recipe, types[0], totals[0], elements)
    groups = _groups(source, plans)
    errors = [_errors(source, plan, parameters, grams) for plan, parameters in zip(plans, made, strict=True)]
    items = [_item(places, made, errors) for places in groups]
    levels = least_error(_scaled(items, totals), sum(item.sizes[0] for item in items) + most - totals[0])
    rules: list[Rule] = []
    for places, level in zip(groups, levels, strict=True):
        if level:
            nodes = dict.fromkeys(node for node, _ in places)
            rules += [Rule(name=node, weights=types[level], granularity=recipe.granularity) for node in nodes]
    return replace(recipe, rules=(*rules, *recipe.rules))


def _unreachable(recipe: Recipe, narrowest: str, least: int, elements: int) -> OptionError:
    further = "" if narrowest.endswith("2") else ", or a narrower type in --weights"
    bits = np.ceil(bits_per_weight(least, elements) * 100) / 100
    return OptionError(
        "target-size-unreachable",
        f"--target-size {recipe.target_size} cannot be reached: with every weight in {narrowest} the result takes "
        f"{least:,} bytes, {bits_per_weight(least, elements):.2f} bits per weight",
        where="--target-size",
        fix=f"Give {-(-least // 1024)}K or {bits:.2f}bpw or more, larger blocks in --granularity{further}.",
    )


def _bytes(source: FloatModel, recipe: Recipe, plan: Plan, parameters: Parameters) -> int:
    """What the result takes: codes, scales, zero points, and all that stays float."""
    assert isinstance(source.normalized.model, bytes)
    external = True if source.normalized.thrift is Thrift.WEIGHTS or recipe.shard_size is not None else None
    result = quantized_graph(source, plan, parameters)
    return written_bytes(result, before=source.model, serialized=len(source.normalized.model), external=external)


Place = tuple[str, int]


def _groups(source: FloatModel, plans: Sequence[Plan]) -> list[tuple[Place, ...]]:
    """Readings whose weights take one type together: of one constant, or of one that is its transpose."""
    found: dict[str, list[Place]] = {}
    for spec in plans[0].weights:
        if all(any((spec.node, spec.index) == (s.node, s.index) for s in plan.weights) for plan in plans[1:]):
            root = source.facts.tensors[spec.tensor].transpose_of or spec.tensor
            found.setdefault(root, []).append((spec.node, spec.index))
    return [tuple(places) for places in found.values()]


def _item(places: Sequence[Place], made: Sequence[Parameters], errors: Sequence[Mapping[Place, float]]) -> Item:
    return Item(
        sizes=tuple(_stored_bytes(places, parameters) for parameters in made),
        errors=tuple(sum(found[place] for place in places) for found in errors),
    )


def _stored_bytes(places: Sequence[Place], parameters: Parameters) -> int:
    """Codes and scales of the weights at some places, each stored once; zero points where they are not all zero."""
    distinct = {parameters.weights[place].key: parameters.weights[place] for place in places}
    total = 0
    for weight in distinct.values():
        bits = ELEMENTS[weight.spec.dtype].bits
        total += -(-int(np.prod(weight.shape)) * bits // 8) + 4 * weight.params.scale.size
        total += 0 if weight.spec.symmetric else -(-weight.params.zero_point.size * bits // 8)
    return total


def _scaled(items: Sequence[Item], totals: Sequence[int]) -> list[Item]:
    """The items with sizes that add up to what whole models take, at each level that all of them have."""
    sums = [sum(item.sizes[level] for item in items) for level in range(len(totals))]
    factors = [max((totals[level] - totals[0]) / max(sums[level] - sums[0], 1), 1.0) for level in range(len(totals))]
    return [
        Item(
            sizes=tuple(
                item.sizes[0] + int(np.ceil((size - item.sizes[0]) * factor))
                for size, factor in zip(item.sizes, factors, strict=True)
            ),
            errors=item.errors,
        )
        for item in items
    ]


def _errors(source: FloatModel, plan: Plan, parameters: Parameters, grams: Grams | None) -> dict[Place, float]:
    """Noise over signal of each weight: at its layer's outputs where the Gram matrix of the inputs is known."""
    layers = {(layer.spec.node, layer.spec.index): layer for layer in weight_layers(source, plan)} if grams else {}
    found = dict(_at_outputs(source, list(layers.values()), parameters, grams))
    for place, weight in parameters.weights.items():
        if place not in found:
            exact = source.constant(weight.spec.tensor).astype(np.float32, copy=False)
            error = exact - rounded_values(weight).astype(np.float32, copy=False)
            signal = float(np.vdot(exact, exact))
            found[place] = float(np.vdot(error, error)) / signal if signal else 0.0
    return found


def _at_outputs(
    source: FloatModel, layers: Sequence[WeightLayer], parameters: Parameters, grams: Grams | None
) -> Iterator[tuple[Place, float]]:
    for part, known in grams.groups(layers) if grams is not None and layers else ():
        for layer in part:
            place = (layer.spec.node, layer.spec.index)
            gram = known.get(layer.input.key)
            if gram is None:
                continue
            exact = layer.matrix(source.constant(layer.spec.tensor)).astype(np.float64)
            signal = output_noise(exact, gram)
            error = exact - layer.matrix(rounded_values(parameters.weights[place])).astype(np.float64)
            yield place, output_noise(error, gram) / signal if signal else 0.0
