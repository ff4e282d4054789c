"""Calibration: the model runs once over the feeds, and statistics are all that stays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Final

from quantool.algorithms.layer_input import LayerInput, layer_input
from quantool.collect import CollectRequest, collect
from quantool.data.held_out import short_hash
from quantool.graph import graph_identity, model_identity
from quantool.graph.outputs import with_outputs
from quantool.pipeline.feeds import Samples
from quantool.pipeline.hardest import Hardest
from quantool.pipeline.memory import Meter, Planner, Taps, feed_bytes
from quantool.pipeline.source import FloatModel
from quantool.recipe import Collect, Recipe
from quantool.runtime import tap, watched
from quantool.schema import Feed, GraphFacts, Plan
from quantool.solve import statistic_kind
from quantool.stats import Stats

#: the Gram matrix of a layer with more inputs takes over half a gigabyte
LARGEST_GRAM: Final = 8192


def wanted_by(plan: Plan) -> frozenset[str]:
    """The tensors whose statistics a plan needs."""
    return frozenset(spec.statistic for spec in plan.activations.values())


def collect_request(source: FloatModel, wanted: Set[str], recipe: Recipe) -> CollectRequest:
    """What to collect of the wanted tensors, for a run that uses it at once."""
    return CollectRequest(
        kinds=dict.fromkeys((name for name in source.facts.tensors if name in wanted), statistic_kind(recipe)),
        batched=batched_tensors(source.facts),
        full=Collect.FULL in recipe.collect,
        allow_nonfinite=recipe.allow_nonfinite,
    )


def with_grams(request: CollectRequest, source: FloatModel, *, largest: int) -> CollectRequest:
    """The same and the Gram matrices of the layers with at most so many inputs."""
    return replace(request, grams={layer.key: layer for layer in _layers(source) if layer.size <= largest})


def with_channels(request: CollectRequest, source: FloatModel) -> CollectRequest:
    """The same and the channels of what layers read."""
    return replace(request, channels={layer.tensor: layer.axis for layer in _layers(source)})


def _layers(source: FloatModel) -> list[LayerInput]:
    """What the layers with weights multiply, in float32."""
    floats = {name for name, tensor in source.facts.tensors.items() if tensor.dtype == "float32"}
    found = (layer_input(source.facts, node) for node in source.facts.nodes)
    return [layer for layer in found if layer is not None and layer.tensor in floats]


def file_request(source: FloatModel, wanted: Set[str], recipe: Recipe) -> CollectRequest:
    """What to collect for a file: whose model it is, the channels of layers' inputs, and Gram matrices if asked for."""
    assert isinstance(source.normalized.model, bytes)
    request = replace(
        collect_request(source, wanted, recipe),
        model_sha256=model_identity(source.loaded),
        graph_sha256=graph_identity(source.normalized.model, source.loaded.external),
    )
    request = with_channels(request, source)
    return with_grams(request, source, largest=LARGEST_GRAM) if Collect.GRAM in recipe.collect else request


class Digests:
    """Watches feeds, and keeps the first 8 bytes of each one's content hash."""

    def __init__(self) -> None:
        self._found: list[int] = []

    @property
    def found(self) -> tuple[int, ...]:
        """Of the feeds so far, sorted."""
        return tuple(sorted(self._found))

    def watch(self, feeds: Iterable[Feed]) -> Iterator[Feed]:
        """Pass feeds on."""
        for feed in feeds:
            self._found.append(short_hash(feed))
            yield feed


def taps_of(source: FloatModel, request: CollectRequest, samples: Samples, *, recipe: Recipe, meter: Meter) -> Taps:
    """How the request's tensors are tapped: all at once, or under --memory in groups, planned for the first feeds.

    Raises:
        OptionError: ``memory-too-small``.
    """
    probes = samples.probes() if recipe.memory is not None else ()
    if recipe.memory is None or not probes:
        return Taps(model=source.normalized, groups=(request.tensors,))
    planner = planner_of(source, request, samples, bound=recipe.memory, probes=len(probes))
    taps = Taps.within(planner, max(probes, key=feed_bytes))
    meter.planned(taps.plan)
    return taps


def planner_of(source: FloatModel, request: CollectRequest, samples: Samples, *, bound: int, probes: int) -> Planner:
    """What plans the memory of a calibration. probes: feeds that are held while it is planned."""
    return Planner(
        loaded=source.loaded,
        facts=source.facts,
        model=source.normalized,
        request=request,
        bound=bound,
        feeds=samples.most_kept + probes,
    )


def gather(
    request: CollectRequest, samples: Samples, *, taps: Taps, recipe: Recipe, progress: bool
) -> tuple[Stats, tuple[Feed, ...]]:
    """Statistics in one pass over the feeds that calibrate, and the hardest of those."""
    feeds = watched(taps.watch(samples.calibration()), "calibrating", progress=progress, total=samples.length)
    hardest, digests = Hardest(), Digests()
    watched_feeds = digests.watch(hardest.watch(feeds))
    stream = tap(taps.model, watched_feeds, groups=taps.groups, with_outputs=with_outputs)
    stats = collect(hardest.judge(stream), request)
    return replace(stats, feeds=digests.found, sources=(samples.description,)), hardest.feeds


def usable_stats(stats: Stats | None, recipe: Recipe, source: FloatModel) -> Stats | None:
    """Statistics from memory or from the file that the recipe names, if they are this model's."""
    found = stats
    if found is None and recipe.ranges is not None:
        found = Stats.load(recipe.ranges)
    if found is not None:
        found.require_model(model_identity(source.loaded))
    return found


def new_to(stats: Stats, feeds: Sequence[Feed]) -> bool | None:
    """Whether none of the feeds is among those that calibrated; None where a file does not tell, or without any."""
    if not stats.feeds or not feeds:
        return None
    return {short_hash(feed) for feed in feeds}.isdisjoint(stats.feeds)


def batched_tensors(facts: GraphFacts) -> frozenset[str]:
    """Tensors whose first axis is the batch of the inputs: the same symbol, or one row on both sides."""
    shapes = [facts.tensors[name].shape for name in facts.inputs]
    batches = {shape[0] for shape in shapes if shape} - {None}
    symbols = {b for b in batches if isinstance(b, str) or b == 1}
    return frozenset(name for name, t in facts.tensors.items() if t.shape and t.shape[0] in symbols)
