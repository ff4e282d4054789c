"""Cross-layer equalization: the same float function whose channels have one range, where they were unbalanced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from quantool.collect import collect
from quantool.edits import AddInitializer, Edit, SetInput
from quantool.graph.allocator import NameAllocator
from quantool.graph.edit import apply
from quantool.graph.outputs import with_outputs
from quantool.pipeline.calibration.statistics import collect_request
from quantool.pipeline.choice.channels import Group, Layout, scalable_groups
from quantool.pipeline.source import SAME_FLOAT, FloatModel, finished, run_all
from quantool.recipe import Recipe
from quantool.runtime import tap
from quantool.schema import AnyArray, Feed, NodeFact, Note, Plan
from quantool.solve import is_pinned
from quantool.verify import same

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
) -> tuple[FloatModel, Mapping[str, Statistic]] | Note | None:
    """The model with balanced channels and its statistics; None where they are balanced already.

    The feeds measure the channels, and calibrate again what was rescaled. On all of them the result is compared with
    the float model: a note where they differ, as behind a Clip that other values reach. among: the groups that may be
    rescaled; balanced_too: all of these are.
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
    model = replace(source.model, ir=source.model.ir.clone())
    apply(model, list(_edits(source, groups, factors, fresh=NameAllocator(model).fresh)))
    changed = (*source.changed, EQUALIZED)
    result = finished(source.loaded, model, source.given, changed=changed, threads=source.given.threads)
    pairs = zip(*(run_all(one.normalized, feeds) for one in (source, result)), strict=True)
    if not all(same(before, after, rtol=SAME_FLOAT) for before, after in pairs):
        return _left_out(groups)
    rescaled = {name for group in groups for name in group.tensors if name in stats}
    request = collect_request(result, rescaled, recipe)
    stream = tap(result.normalized, feeds, groups=[request.tensors], with_outputs=with_outputs)
    grown = _as_if_unseen(stream, groups, [_growth(source, group, plan, peaks) for group in groups])
    return result, {**stats, **collect(grown, request).tensors}


def _growth(source: FloatModel, group: Group, plan: Plan, peaks: Peaks) -> list[Float64]:
    """For each feed, how much its channels would grow if it had not been measured."""
    first = next(name for name in group.tensors if name in plan.activations)
    return unseen_growth(peaks[_measured(source, first)])


def _as_if_unseen(
    stream: Iterable[tuple[int, Mapping[str, AnyArray]]], groups: Sequence[Group], growth: Sequence[Sequence[Float64]]
) -> Iterator[tuple[int, Mapping[str, AnyArray]]]:
    """Each feed's tensors with the factors that the other feeds had given."""
    homes = {name: (index, layout) for index, group in enumerate(groups) for name, layout in group.tensors.items()}
    for sample, arrays in stream:
        found = {}
        for name, array in arrays.items():
            index, layout = homes[name]
            shape = [-1 if axis == layout.axis else 1 for axis in range(array.ndim)]
            factors = np.repeat(growth[index][sample], layout.repeats).astype(np.float32)
            found[name] = np.multiply(array, factors.reshape(shape), dtype=np.float32)
        yield sample, found


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


def by_channel(found: Float64, channels: Layout) -> Float64:
    """The largest of each channel's values."""
    largest: Float64 = found.reshape(channels.count, channels.repeats).max(axis=1)
    return largest


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


@dataclass(frozen=True, slots=True)
class _Place:
    """A layer between groups, by their indices."""

    node: NodeFact
    writes: int | None
    reads: int | None


def _places(source: FloatModel, groups: Sequence[Group]) -> Iterator[_Place]:
    """Every layer at an end of a group, in the order of the graph."""
    writes = {name: index for index, group in enumerate(groups) for name in group.writers}
    reads = {name: index for index, group in enumerate(groups) for name in group.readers}
    for node in source.facts.nodes:
        if node.name in writes or node.name in reads:
            yield _Place(node, writes.get(node.name), reads.get(node.name))


def _weights(source: FloatModel, plan: Plan, groups: Sequence[Group]) -> Iterator[Weight]:
    """The quantized layers at the ends of groups, loaded one at a time."""
    per_tensor = {spec.node: spec.axis is None for spec in plan.weights if spec.index == 1}
    for place in _places(source, groups):
        if place.node.name in per_tensor:
            magnitudes = np.abs(_by_taps(source, place, groups)).max(axis=3).astype(np.float64)
            yield Weight(
                magnitudes=magnitudes,
                grows=place.writes,
                shrinks=place.reads,
                per_tensor=per_tensor[place.node.name],
            )


def _by_taps(source: FloatModel, place: _Place, groups: Sequence[Group]) -> AnyArray:
    """A weight as [G, O / G, I / G, taps]: outputs first, what one input channel is multiplied with last."""
    weight = source.constant(place.node.inputs[1])
    if place.node.op_type == "Conv":
        count = place.node.attributes.get("group", 1)
        assert isinstance(count, int)
        return weight.reshape(count, weight.shape[0] // count, weight.shape[1], -1)
    matrix = weight if place.node.attributes.get("transB", 0) else weight.T
    inputs = matrix.shape[1] if place.reads is None else groups[place.reads].count
    return matrix.reshape(1, matrix.shape[0], inputs, -1)


def _edits(
    source: FloatModel, groups: Sequence[Group], factors: Sequence[Float64], *, fresh: Callable[[str], str]
) -> Iterator[Edit]:
    """New weights, and new biases for the layers that write scaled tensors."""
    for place in _places(source, groups):
        node = place.node
        load = partial(_scaled_weight, source, place, groups, factors)
        yield from _replaced(source, node, 1, load, fresh=fresh)
        if place.writes is not None and len(node.inputs) > 2 and node.inputs[2]:
            bias = partial(_scaled_operand, source, node.inputs[2], factors[place.writes])
            yield from _replaced(source, node, 2, bias, fresh=fresh)
    for group, factor in zip(groups, factors, strict=True):
        for use in group.operands:
            node = source.facts.by_name[use.node]
            operand = partial(_scaled_operand, source, node.inputs[use.index], factor)
            yield from _replaced(source, node, use.index, operand, fresh=fresh)


def _replaced(
    source: FloatModel, node: NodeFact, index: int, load: Callable[[], AnyArray], *, fresh: Callable[[str], str]
) -> Iterator[Edit]:
    """One constant of a node in place of another of the same shape."""
    old = node.inputs[index]
    name, shape = fresh(f"{old}_equalized"), source.constant(old).shape
    yield AddInitializer(name=name, dtype="float32", shape=shape, load=load)
    yield SetInput(node.name, index, name)


def _scaled_weight(source: FloatModel, place: _Place, groups: Sequence[Group], factors: Sequence[Float64]) -> AnyArray:
    """Scale a weight: S_out W S_in^-1, in float64, rounded once."""
    wide = _by_taps(source, place, groups).astype(np.float64)
    count, outputs, inputs, _ = wide.shape
    if place.writes is not None:
        wide *= factors[place.writes].reshape(count, outputs, 1, 1)
    if place.reads is not None:
        wide /= factors[place.reads].reshape(count, 1, inputs, 1)
    shape = source.constant(place.node.inputs[1]).shape
    if place.node.op_type == "Conv" or place.node.attributes.get("transB", 0):
        return wide.reshape(shape).astype(np.float32)
    return np.ascontiguousarray(wide.reshape(shape[::-1]).T.astype(np.float32))


def _scaled_operand(source: FloatModel, name: str, factors: Float64) -> AnyArray:
    """Scale a constant with a number for each channel."""
    constant = source.constant(name)
    return (constant.astype(np.float64) * factors.reshape(constant.shape)).astype(np.float32)
