"""The same float function with other channels: factors between layers, and what is known of the tensors they scale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from calibrators import Extrema, Histogram
from calibrators.statistic import Statistic
from quantool.algorithms.equalization import Float64
from quantool.collect import collect
from quantool.edits import AddInitializer, Edit, SetInput
from quantool.graph.allocator import NameAllocator
from quantool.graph.edit import apply
from quantool.graph.outputs import with_outputs
from quantool.pipeline.calibration.statistics import collect_request
from quantool.pipeline.choice.channels import Group, Layout
from quantool.pipeline.source import SAME_FLOAT, FloatModel, finished, run_all
from quantool.recipe import Recipe
from quantool.runtime import tap
from quantool.schema import AnyArray, Feed, NodeFact
from quantool.verify import same


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Origin:
    """Where a rescaled tensor comes from.

    tensor: its name in the model that was calibrated; factors: float64[C], one for each entry of the axis that layers
    multiply.
    """

    tensor: str
    factors: Float64

    def scaled(self, factors: Float64) -> Origin:
        """The origin of the tensor with its channels scaled once more."""
        return Origin(tensor=self.tensor, factors=self.factors * factors)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rescaled:
    """A model whose channels were rescaled. stats: all statistics; origins: of what was rescaled since calibration."""

    source: FloatModel
    stats: Mapping[str, Statistic]
    origins: Mapping[str, Origin]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rescaling:
    """A tensor that is to be calibrated again. layout: its channels; growth: float64[C] for each feed, as if unseen."""

    layout: Layout
    growth: Sequence[Float64]


def edited(source: FloatModel, edits: Callable[[Callable[[str], str]], Iterable[Edit]], *, label: str) -> FloatModel:
    """A copy of the model with edits, which may ask for fresh names; label: of the change."""
    model = replace(source.model, ir=source.model.ir.clone())
    apply(model, list(edits(NameAllocator(model).fresh)))
    changed = source.changed if label in source.changed else (*source.changed, label)
    return finished(source.loaded, model, source.given, changed=changed, threads=source.given.threads)


def computes_the_same(source: FloatModel, other: FloatModel, feeds: Sequence[Feed]) -> bool:
    """Whether two float models agree on all feeds."""
    pairs = zip(*(run_all(one.normalized, feeds) for one in (source, other)), strict=True)
    return all(same(before, after, rtol=SAME_FLOAT) for before, after in pairs)


def recalibrated(
    source: FloatModel, tensors: Mapping[str, Rescaling], feeds: Sequence[Feed], recipe: Recipe
) -> Mapping[str, Statistic]:
    """Statistics of the tensors over the feeds, each of which counts as large as if it had given no factors."""
    request = collect_request(source, tensors.keys(), recipe)
    stream = tap(source.normalized, feeds, groups=[request.tensors], with_outputs=with_outputs)
    return collect(_as_if_unseen(stream, tensors), request).tensors


def _as_if_unseen(
    stream: Iterable[tuple[int, Mapping[str, AnyArray]]], tensors: Mapping[str, Rescaling]
) -> Iterator[tuple[int, Mapping[str, AnyArray]]]:
    """Each feed's tensors with the factors that the other feeds had given."""
    for sample, arrays in stream:
        found = {}
        for name, array in arrays.items():
            layout = tensors[name].layout
            shape = [-1 if axis == layout.axis % array.ndim else 1 for axis in range(array.ndim)]
            factors = np.repeat(tensors[name].growth[sample], layout.repeats).astype(np.float32)
            found[name] = np.multiply(array, factors.reshape(shape), dtype=np.float32)
        yield sample, found


def factor_origins(
    groups: Sequence[Group], factors: Sequence[Float64], before: Mapping[str, Origin]
) -> Mapping[str, Origin]:
    """The origins of all tensors after the groups took factors. before: those that there were."""
    found = dict(before)
    for group, factor in zip(groups, factors, strict=True):
        for name, layout in group.tensors.items():
            scale = np.repeat(factor, layout.repeats)
            found[name] = found[name].scaled(scale) if name in found else Origin(tensor=name, factors=scale)
    return found


def with_ends(state: Statistic, lows: Float64, highs: Float64) -> Statistic:
    """A statistic that has also seen the ends of a tensor's channels; a moving average has no place for them."""
    ends = np.array([lows.min(initial=0.0), highs.max(initial=0.0)], np.float32)
    return state.observe(ends) if isinstance(state, Histogram | Extrema) else state


def by_channel(found: Float64, channels: Layout) -> Float64:
    """The largest of each channel's values."""
    largest: Float64 = found.reshape(channels.count, channels.repeats).max(axis=1)
    return largest


@dataclass(frozen=True, slots=True)
class Place:
    """A layer between groups, by their indices."""

    node: NodeFact
    writes: int | None
    reads: int | None


def places(source: FloatModel, groups: Sequence[Group]) -> Iterator[Place]:
    """Every layer at an end of a group, in the order of the graph."""
    writes = {name: index for index, group in enumerate(groups) for name in group.writers}
    reads = {name: index for index, group in enumerate(groups) for name in group.readers}
    for node in source.facts.nodes:
        if node.name in writes or node.name in reads:
            yield Place(node, writes.get(node.name), reads.get(node.name))


def by_taps(source: FloatModel, place: Place, groups: Sequence[Group]) -> AnyArray:
    """A weight as [G, O / G, I / G, taps]: outputs first, what one input channel is multiplied with last."""
    weight = source.constant(place.node.inputs[1])
    if place.node.op_type == "Conv":
        count = place.node.attributes.get("group", 1)
        assert isinstance(count, int)
        return weight.reshape(count, weight.shape[0] // count, weight.shape[1], -1)
    matrix = weight if place.node.attributes.get("transB", 0) else weight.T
    inputs = matrix.shape[1] if place.reads is None else groups[place.reads].count
    return matrix.reshape(1, matrix.shape[0], inputs, -1)


def factor_edits(
    source: FloatModel, groups: Sequence[Group], factors: Sequence[Float64], *, fresh: Callable[[str], str]
) -> Iterator[Edit]:
    """New weights, and new biases for the layers that write scaled tensors."""
    for place in places(source, groups):
        node = place.node
        load = partial(_scaled_weight, source, place, groups, factors)
        yield from replaced(source, node, 1, load, fresh=fresh)
        if place.writes is not None and len(node.inputs) > 2 and node.inputs[2]:
            bias = partial(_scaled_operand, source, node.inputs[2], factors[place.writes])
            yield from replaced(source, node, 2, bias, fresh=fresh)
    for group, factor in zip(groups, factors, strict=True):
        for use in group.operands:
            node = source.facts.by_name[use.node]
            operand = partial(_scaled_operand, source, node.inputs[use.index], factor)
            yield from replaced(source, node, use.index, operand, fresh=fresh)


def replaced(
    source: FloatModel, node: NodeFact, index: int, load: Callable[[], AnyArray], *, fresh: Callable[[str], str]
) -> Iterator[Edit]:
    """One constant of a node in place of another of the same shape."""
    old = node.inputs[index]
    name, shape = fresh(f"{old}_rescaled"), source.constant(old).shape
    yield AddInitializer(name=name, dtype="float32", shape=shape, load=load)
    yield SetInput(node.name, index, name)


def _scaled_weight(source: FloatModel, place: Place, groups: Sequence[Group], factors: Sequence[Float64]) -> AnyArray:
    """Scale a weight: S_out W S_in^-1, in float64, rounded once."""
    wide = by_taps(source, place, groups).astype(np.float64)
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
