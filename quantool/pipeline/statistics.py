"""Calibration: the model runs once over the feeds, and statistics are all that stays."""

from __future__ import annotations

from collections.abc import Set

from quantool.collect import CollectRequest, collect
from quantool.graph.outputs import with_outputs
from quantool.pipeline.feeds import Samples
from quantool.pipeline.hardest import Hardest
from quantool.pipeline.source import FloatModel
from quantool.recipe import Recipe
from quantool.runtime import tap, watched
from quantool.schema import Feed, GraphFacts, Plan
from quantool.solve import statistic_kind
from quantool.stats import Stats


def wanted_by(plan: Plan) -> frozenset[str]:
    """The tensors whose statistics a plan needs."""
    return frozenset(spec.statistic for spec in plan.activations.values())


def gather(
    source: FloatModel, wanted: Set[str], samples: Samples, *, recipe: Recipe, progress: bool
) -> tuple[Stats, tuple[Feed, ...]]:
    """Statistics of the wanted tensors, in one pass over the feeds that calibrate, and the hardest of those."""
    order = [name for name in source.facts.tensors if name in wanted]
    request = CollectRequest(
        kinds=dict.fromkeys(order, statistic_kind(recipe)),
        batched=batched_tensors(source.facts),
        allow_nonfinite=recipe.allow_nonfinite,
        model_sha256=source.loaded.source.sha256,
    )
    feeds = watched(samples.calibration(), "calibrating", progress=progress, total=recipe.samples)
    hardest = Hardest()
    stream = tap(source.normalized, hardest.watch(feeds), groups=[order], with_outputs=with_outputs)
    stats = collect(hardest.judge(stream), request)
    return stats, hardest.feeds


def usable_stats(stats: Stats | None, recipe: Recipe, source: FloatModel) -> Stats | None:
    """Statistics from memory or from the file that the recipe names, if they are this model's."""
    found = stats
    if found is None and recipe.ranges is not None:
        found = Stats.load(recipe.ranges)
    if found is not None:
        found.require_model(source.loaded.source.sha256)
    return found


def batched_tensors(facts: GraphFacts) -> frozenset[str]:
    """Tensors whose first axis is the batch of the inputs: the same symbol, or one row on both sides."""
    shapes = [facts.tensors[name].shape for name in facts.inputs]
    batches = {shape[0] for shape in shapes if shape} - {None}
    symbols = {b for b in batches if isinstance(b, str) or b == 1}
    return frozenset(name for name, t in facts.tensors.items() if t.shape and t.shape[0] in symbols)
