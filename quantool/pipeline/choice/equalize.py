"""Cross-layer equalization: the same float function whose channels have one range, where they were unbalanced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from calibrators import Channels
from calibrators.statistic import Statistic
from quantool.algorithms.equalization import (
    Activation,
    Float64,
    Weight,
    clip_limits,
    equalizing_factors,
    imbalance,
    sizes_of,
    unseen_growth,
)
from quantool.graph.outputs import with_outputs
from quantool.pipeline.choice.channels import Group, scalable_groups
from quantool.pipeline.choice.rescale import (
    Origin,
    Rescaled,
    Rescaling,
    by_channel,
    by_taps,
    computes_the_same,
    edited,
    factor_edits,
    factor_origins,
    places,
    recalibrated,
)
from quantool.pipeline.source import FloatModel
from quantool.recipe import Recipe
from quantool.runtime import tap
from quantool.schema import Feed, Note, Plan
from quantool.solve import is_pinned

#: tensor -> the largest magnitudes of its channels in each feed
Peaks: TypeAlias = Mapping[str, Sequence[Float64]]

_RECTIFIERS = frozenset({"Relu", "Clip"})

#: what `FloatModel.changed` holds of a model that was equalized
EQUALIZED = "equalize"
#: standard deviation of the logarithms of channels' sizes from which on they are unbalanced: the sample models have 0.1
#: to 0.4; digits_depthwise loses 13 dB where exp(N(0, ln 2)) rescales its channels, which gives 0.6 to 0.75
UNBALANCED = 0.5


def equalized(
    source: FloatModel,
    plan: Plan,
    stats: Mapping[str, Statistic],
    feeds: Sequence[Feed],
    *,
    recipe: Recipe,
    among: Callable[[Group], bool] = lambda _: True,
    balanced_too: bool = False,
    origins: Mapping[str, Origin] = MappingProxyType({}),
) -> Rescaled | Note | None:
    """The model with balanced channels and its statistics; None where they are balanced already.

    The feeds measure the channels, and calibrate again what was rescaled. On all of them the result is compared with
    the float model: a note where they differ, as behind a Clip that other values reach. among: the groups that may be
    rescaled; balanced_too: all of these are; origins: of tensors that were rescaled before.
    """
    groups = tuple(group for group in planned_groups(source, plan, recipe) if among(group))
    if not groups or not feeds:
        return None
    peaks = _peaks(source, groups, plan, feeds)
    groups = groups if balanced_too else unbalanced(source, plan, groups, peaks)
    if not groups:
        return None
    activations, weights = _activations(source, groups, plan, peaks), list(_weights(source, plan, groups))
    factors = equalizing_factors([group.count for group in groups], activations, weights)
    result = edited(source, lambda fresh: factor_edits(source, groups, factors, fresh=fresh), label=EQUALIZED)
    if not computes_the_same(source, result, feeds):
        return _left_out(groups)
    growth = [_growth(source, group, plan, peaks) for group in groups]
    rescalings = {
        name: Rescaling(layout=layout, growth=grown)
        for group, grown in zip(groups, growth, strict=True)
        for name, layout in group.tensors.items()
        if name in stats
    }
    again = recalibrated(result, rescalings, feeds, recipe)
    return Rescaled(source=result, stats={**stats, **again}, origins=factor_origins(groups, factors, origins))


def _growth(source: FloatModel, group: Group, plan: Plan, peaks: Peaks) -> list[Float64]:
    """For each feed, how much its channels would grow if it had not been measured."""
    first = next(name for name in group.tensors if name in plan.activations)
    return unseen_growth(peaks[_measured(source, first)])


def planned_groups(source: FloatModel, plan: Plan, recipe: Recipe) -> tuple[Group, ...]:
    """The groups that hold a tensor which becomes integers, and none whose range a rule says."""
    specs = plan.activations
    pinned = {name for name, spec in specs.items() if is_pinned(spec, source.facts, recipe)}
    return tuple(
        group
        for group in scalable_groups(source.facts)
        if not specs.keys().isdisjoint(group.tensors) and pinned.isdisjoint(group.tensors)
    )


def unbalanced(source: FloatModel, plan: Plan, groups: Sequence[Group], peaks: Peaks) -> tuple[Group, ...]:
    """The groups whose channels differ so much that the small ones get too few codes."""
    sizes = [group.count for group in groups]
    found = imbalance(sizes, _activations(source, groups, plan, peaks), _weights(source, plan, groups))
    return tuple(group for group, spread in zip(groups, found, strict=True) if spread >= UNBALANCED)


def not_equalized(source: FloatModel, plan: Plan, known: Mapping[str, Channels], recipe: Recipe) -> list[Note]:
    """Why channels that a calibration found unbalanced stay so, where no samples are there to calibrate them again."""
    groups = planned_groups(source, plan, recipe)
    peaks = {
        name: [by_channel(known[name].peaks, layout)]
        for group in groups
        for name, layout in group.tensors.items()
        if name in known and known[name].peaks.size
    }
    found = unbalanced(source, plan, groups, peaks)
    if not found:
        return []
    return [
        Note(
            code="not-equalized",
            what=f"channels are unbalanced at {len(found)} tensors or more, and were not equalized: what that rescales "
            "must be calibrated again, and ranges from a file come without samples",
            where=next(iter(found[0].tensors)),
            fix="Give --data in place of --ranges.",
        )
    ]


def _left_out(groups: Sequence[Group]) -> Note:
    return Note(
        code="equalization-left-out",
        what=f"channels are unbalanced at {len(groups)} tensors or more, and balanced they compute something else",
        where=next(iter(groups[0].tensors)),
        fix="Exclude the layers around it, or give their activations 16 bits.",
    )


def _measured(source: FloatModel, tensor: str) -> str:
    """Where the sizes of a tensor's channels are measured: in front of its Relu or Clip.

    A channel that is rarely positive shows its size there in every sample.
    """
    producer = source.facts.producer(tensor)
    while producer is not None and producer.op_type in _RECTIFIERS:
        tensor = producer.inputs[0]
        producer = source.facts.producer(tensor)
    return tensor


def _peaks(source: FloatModel, groups: Sequence[Group], plan: Plan, feeds: Sequence[Feed]) -> Peaks:
    """The largest |x| of each channel in each feed: of what becomes integers, and of what a Clip writes.

    One feed's tensors are in memory at a time.
    """
    layouts = {name: layout for group in groups for name, layout in group.tensors.items()}
    planned = (_measured(source, name) for name in layouts if name in plan.activations)
    wanted = sorted({*planned, *(name for group in groups for name in group.bounds)})
    peaks: dict[str, list[Float64]] = {name: [] for name in wanted}
    for _, arrays in tap(source.normalized, feeds, groups=[wanted], with_outputs=with_outputs):
        for name in wanted:
            array, layout = arrays[name], layouts[name]
            others = tuple(axis for axis in range(array.ndim) if axis != layout.axis)
            finite = np.where(np.isfinite(array), np.abs(array), 0)
            peaks[name].append(by_channel(finite.max(axis=others, initial=0).astype(np.float64), layout))
    return peaks


def _activations(source: FloatModel, groups: Sequence[Group], plan: Plan, peaks: Peaks) -> list[Activation]:
    """What was measured; of tensors that share a scale the first."""
    found: dict[tuple[int, str], Activation] = {}
    for index, group in enumerate(groups):
        for name in group.tensors:
            spec, bound = plan.activations.get(name), group.bounds.get(name)
            sizes = peaks.get(_measured(source, name), peaks.get(name))
            if sizes is None or (spec is None and bound is None):
                continue
            limits = None if bound is None or name not in peaks else clip_limits(peaks[name], bound)
            key = name if spec is None or bound is not None else spec.group
            found.setdefault((index, key), Activation(sizes=sizes_of(sizes), grows=index, limits=limits))
    return list(found.values())


def _weights(source: FloatModel, plan: Plan, groups: Sequence[Group]) -> Iterator[Weight]:
    """The quantized layers at the ends of groups, loaded one at a time."""
    per_tensor = {spec.node: spec.axis is None for spec in plan.weights if spec.index == 1}
    for place in places(source, groups):
        if place.node.name in per_tensor:
            magnitudes = np.abs(by_taps(source, place, groups)).max(axis=3).astype(np.float64)
            yield Weight(
                magnitudes=magnitudes,
                grows=place.writes,
                shrinks=place.reads,
                per_tensor=per_tensor[place.node.name],
            )
