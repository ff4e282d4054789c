"""Smoothing of layers' inputs: the same float function with easier activations, each unit at its own strength.

A unit is a tensor that matrix products read, or a group of tensors between layers. What stands in front takes the
factors up where it can: layers, and the constants of a LayerNormalization; elsewhere one Mul is inserted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from calibrators import Channels
from calibrators.statistic import Statistic
from quantool.algorithms.equalization import clip_limits
from quantool.algorithms.smoothing import LEAST_SAVED, Float64, SmoothedInput, SmoothedLayer, best_factors
from quantool.edits import AddInitializer, AddNode, Edit, SetInput
from quantool.pipeline.choice.channels import Group
from quantool.pipeline.choice.rescale import (
    Origin,
    Place,
    Rescaled,
    Rescaling,
    by_taps,
    computes_the_same,
    edited,
    factor_edits,
    factor_origins,
    recalibrated,
    with_ends,
)
from quantool.pipeline.choice.seen import Seen, seen_channels
from quantool.pipeline.choice.smoothable import SmoothUnit, smooth_units
from quantool.pipeline.source import FloatModel
from quantool.recipe import Recipe
from quantool.schema import AnyArray, Feed, Grid, Note, Plan, WeightSpec

#: what `FloatModel.changed` holds of a model whose inputs were smoothed
SMOOTHED: Final = "smooth"


def smoothed(
    source: FloatModel,
    plan: Plan,
    stats: Mapping[str, Statistic],
    feeds: Sequence[Feed],
    *,
    recipe: Recipe,
    known: Mapping[str, Channels],
    origins: Mapping[str, Origin],
    among: Callable[[Group], bool],
    convolutions: bool,
    least_saved: float = LEAST_SAVED,
) -> Rescaled | Note | None:
    """The model with smoothed inputs; None where nothing applies, or no unit is expected to gain.

    The feeds measure the channels, and calibrate again what was rescaled. On all of them the result is compared with
    the float model: a note where they differ. known: channels of calibration; origins: of tensors that were rescaled
    since; among: the units that may be changed; convolutions: those that such layers read, else those of products;
    least_saved: the share of its expected error that a unit must save.
    """
    units = [unit for unit in smooth_units(source, plan, recipe, convolutions=convolutions) if among(unit.group)]
    if not units or not feeds:
        return None
    layouts = {name: layout for unit in units for name, layout in unit.layouts.items()}
    seen = seen_channels(source, layouts, feeds)
    ends = {name: each.ends(*_calibrated(name, known, origins)) for name, each in seen.items()}
    found = [(unit, _factors(source, plan, unit, seen, ends, least_saved=least_saved)) for unit in units]
    chosen = [(unit, factors) for unit, factors in found if factors is not None]
    if not chosen:
        return None
    # A tensor that a Mul smooths has a new name.
    names: dict[str, str] = {}
    result = edited(source, lambda fresh: _edits(source, chosen, names, fresh=fresh), label=SMOOTHED)
    if not computes_the_same(source, result, feeds):
        return _left_out(chosen[0][0])
    again = _calibrated_again(result, chosen, names, seen, ends, feeds, recipe, stats.keys())
    return Rescaled(source=result, stats={**stats, **again}, origins=_origins(chosen, names, origins))


def _calibrated_again(
    result: FloatModel,
    chosen: Sequence[tuple[SmoothUnit, Float64]],
    names: Mapping[str, str],
    seen: Mapping[str, Seen],
    ends: Mapping[str, tuple[Float64, Float64]],
    feeds: Sequence[Feed],
    recipe: Recipe,
    wanted: Collection[str],
) -> Mapping[str, Statistic]:
    """Statistics of the wanted tensors that were rescaled. names: old name -> new one, of those that a Mul smooths."""
    growth = {name: each.growth for name, each in seen.items()}
    rescalings = {
        names.get(name, name): Rescaling(layout=layout, growth=growth[unit.read])
        for unit, _ in chosen
        for name, layout in unit.group.tensors.items()
        if name in wanted
    }
    again = dict(recalibrated(result, rescalings, feeds, recipe))
    for unit, factors in chosen:
        for name in unit.rounded:
            if (new := names.get(name, name)) in again:
                again[new] = with_ends(again[new], *(end * factors for end in ends[name]))
    return again


def _left_out(unit: SmoothUnit) -> Note:
    return Note(
        code="smoothing-left-out",
        what="with smoothed inputs the model computes something else, and they were left as they are",
        where=unit.read,
        fix="Nothing to do; a rule with algorithms = [] for the layers around it saves the trial.",
    )


def _calibrated(
    name: str, known: Mapping[str, Channels], origins: Mapping[str, Origin]
) -> tuple[Channels | None, Origin | None]:
    """What calibration knows of a tensor's channels, and how it was rescaled since."""
    origin = origins.get(name)
    return known.get(name if origin is None else origin.tensor), origin


def _factors(
    source: FloatModel,
    plan: Plan,
    unit: SmoothUnit,
    seen: Mapping[str, Seen],
    ends: Mapping[str, tuple[Float64, Float64]],
    *,
    least_saved: float,
) -> Float64 | None:
    """What multiplies the channels of a unit, None where that is not expected to gain."""
    inputs = []
    for name in unit.rounded:
        grid = Grid.of(plan.activations[name].dtype)
        inputs.append(SmoothedInput(lows=ends[name][0], highs=ends[name][1], levels=grid.qmax - grid.qmin))
    layers = [_layer(source, unit, spec) for spec in unit.weights]
    bounds = [clip_limits(seen[name].peaks, bound) for name, bound in unit.group.bounds.items()]
    most = np.min(bounds, axis=0) if bounds else None
    found = best_factors(inputs, layers, seen[unit.read].power, most=most, least_saved=least_saved)
    return None if found is None else 1.0 / found[0]


def _layer(source: FloatModel, unit: SmoothUnit, spec: WeightSpec) -> SmoothedLayer:
    weight = by_taps(source, Place(source.facts.by_name[spec.node], None, 0), [unit.group]).astype(np.float64)
    return SmoothedLayer(
        magnitudes=np.abs(weight).max(axis=3),
        energies=np.square(weight).sum(axis=(1, 3)).reshape(-1),
        taps=weight.shape[3],
        levels=Grid.of(spec.dtype, symmetric=True, bits=spec.bits).qmax,
        per_tensor=spec.axis is None,
    )


def _edits(
    source: FloatModel,
    chosen: Sequence[tuple[SmoothUnit, Float64]],
    names: dict[str, str],
    *,
    fresh: Callable[[str], str],
) -> Iterator[Edit]:
    """The factors where the units take them up, and a Mul where nothing does; fills in the new names."""
    yield from factor_edits(source, [unit.group for unit, _ in chosen], [f for _, f in chosen], fresh=fresh)
    for unit, factors in chosen:
        if not unit.inserted:
            continue
        values = factors.astype(np.float32)
        name, constant = fresh(f"{unit.read}_smoothed"), fresh(f"{unit.read}_smoothing")
        names[unit.read] = name
        yield AddInitializer(name=constant, dtype="float32", shape=values.shape, load=partial(_same, values))
        yield AddNode(op_type="Mul", name=fresh(f"{name}_Mul"), inputs=(unit.read, constant), outputs=(name,))
        for node in unit.group.readers:
            yield SetInput(node, 0, name)


def _same(array: AnyArray) -> AnyArray:
    return array


def _origins(
    chosen: Sequence[tuple[SmoothUnit, Float64]], names: Mapping[str, str], before: Mapping[str, Origin]
) -> Mapping[str, Origin]:
    kept = [(unit.group, factors) for unit, factors in chosen if not unit.inserted]
    found = dict(factor_origins([group for group, _ in kept], [factors for _, factors in kept], before))
    for unit, factors in chosen:
        if unit.inserted:
            origin = before.get(unit.read)
            new = Origin(tensor=unit.read, factors=factors) if origin is None else origin.scaled(factors)
            found[names[unit.read]] = new
    return found
