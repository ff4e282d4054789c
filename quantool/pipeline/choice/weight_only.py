"""Choosing how weights alone are quantized: by a rule without data, on samples what serves them best.

Every method gives the same size and speed, so that the samples alone decide. A trial is a quantized model run beside
the float one, as for static models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from quantool.pipeline.choice.choose import LARGEST_TRIAL_BYTES, Judges
from quantool.pipeline.choice.forced import Ruling
from quantool.pipeline.choice.scale_weights import scaled
from quantool.pipeline.choice.score import Judge
from quantool.pipeline.choice.weight_layers import Grams, gram_bound
from quantool.pipeline.choice.weight_methods import DATA_FREE, Method, Planner, Weighed, Weigher
from quantool.pipeline.source import FloatModel
from quantool.recipe import OF_DATA, OF_SCALES, Algorithm, Effort, Recipe
from quantool.report.model import Trial
from quantool.report.wording import plural
from quantool.runtime import Thrift
from quantool.schema import Feed, Note

#: a method must gain this much over the first on the samples that judge: none costs anything when the model runs
LEAST_GAIN_DB: Final = 0.2

#: what a report calls weights that nothing was searched for
NEAREST: Final = "round to nearest"

#: tried at the highest effort only: other searches, and inputs' mean squares as weights of errors
_MORE: Final = (
    Method(label=NEAREST, thorough=True),
    Method(label="mse-clip", search=Algorithm.MSE_CLIP, thorough=True),
    Method(label="hqq", search=Algorithm.HQQ, thorough=True),
    Method(label="k-quant weighted by inputs", search=Algorithm.K_QUANT, thorough=True, weighted=True),
)


def wants_data(recipe: Recipe) -> bool:
    """Whether samples decide something about weights alone, or rules want what is fitted to them."""
    forced = any(set(rule.algorithms or ()) & set(OF_DATA) for rule in recipe.rules)
    return recipe.effort is not Effort.FAST or forced


def is_too_large(source: FloatModel) -> bool:
    """Whether a model is too large to be tried out: its weights get what they get without data."""
    return source.loaded.source.size_bytes > LARGEST_TRIAL_BYTES or source.normalized.thrift is Thrift.WEIGHTS


def choose_weights(
    source: FloatModel, planner: Planner, samples: Judges | None, *, recipe: Recipe
) -> tuple[Weighed, tuple[Trial, ...], Sequence[Note]]:
    """The best way to quantize the weights, what was tried, and what could not be.

    samples: None without data, or where it is not to be used. Where no feeds are held out, those that fit are divided:
    every other one judges.
    """
    ruling = Ruling.of(source.facts, recipe)
    weigher = Weigher(planner=planner, recipe=recipe, ruling=ruling)
    fitting, judging = _divided(samples)
    maker = _Maker(weigher=weigher, fitting=fitting, bound=gram_bound(recipe.memory))
    first = maker.first(source)
    notes = tuple(_without_effect(ruling, first))
    if recipe.effort is Effort.FAST or first.plan.reference or not judging or not first.parameters.weights:
        return first, (), notes
    judge = Judge(source, judging, recipe)
    scores = {first.label: judge.score(first.source, first.plan, first.parameters)}
    best = first
    for proposal in maker.proposals(first, everything=recipe.effort is Effort.MAX):
        found = proposal(best)
        if found is None or found.label in scores:
            continue
        scores[found.label] = judge.score(found.source, found.plan, found.parameters)
        if scores[found.label] >= max(scores[best.label], scores[first.label] + LEAST_GAIN_DB):
            best = found
    trials = tuple(Trial(name=n, score_db=v, chosen=n == best.label) for n, v in scores.items())
    return best, trials if len(trials) > 1 else (), notes


def _divided(samples: Judges | None) -> tuple[Sequence[Feed], Sequence[Feed]]:
    """Feeds to fit to, and others to judge on; none where there is one feed only."""
    if samples is None:
        return (), ()
    if samples.held_out:
        return samples.fitting, samples.judging
    return (samples.fitting[::2], samples.fitting[1::2]) if len(samples.fitting) > 1 else (samples.fitting, ())


@dataclass(slots=True, kw_only=True)
class _Maker:
    """Makes candidates. fitting: the feeds that methods are fitted to; bound: bytes of Gram matrices at a time."""

    weigher: Weigher
    fitting: Sequence[Feed]
    bound: int
    _grams: dict[int, Grams] = field(default_factory=dict)

    def first(self, source: FloatModel) -> Weighed:
        """The candidate that all others are held against: without data, but for what rules want."""
        method = DATA_FREE[self.weigher.recipe.effort]
        forced = self.weigher.ruling.forced(Algorithm.AWQ)
        found = self._scaled(source, method, at=forced.__contains__) if forced and self.fitting else None
        made = self.made(source if found is None else found[0], method)
        if any(method.searches(spec) for spec in made.plan.weights):
            return made
        return replace(made, label=NEAREST, method=replace(method, label=NEAREST))

    def made(self, source: FloatModel, method: Method) -> Weighed:
        """All weights by a method."""
        grams = self._grams_of(source) if self.fitting else None
        return self.weigher.made(source, method, grams)

    def proposals(self, first: Weighed, *, everything: bool) -> Iterator[Callable[[Weighed], Weighed | None]]:
        """What may be better than the best so far, one after the other; None where it would change nothing."""
        for method in _MORE if everything else ():
            yield lambda _, method=method: self.made(first.source, method)  # type: ignore[misc]  # bound now
        yield lambda best: self._clipped(first, best)
        yield lambda best: self._awq(first, best)
        yield self._second_order
        if everything:
            yield lambda best: self._second_order(first) if best.source is not first.source else None
            yield lambda _: self._second_order(self.made(first.source, _MORE[-1]))
            yield self._polished

    def _clipped(self, first: Weighed, best: Weighed) -> Weighed | None:
        """The clip search of AWQ."""
        method = replace(best.method, label=f"{best.method.label}, awq clip", clipped=True, weighted=False)
        found = self.made(first.source, method)
        return found if found.fitted else None

    def _awq(self, first: Weighed, best: Weighed) -> Weighed | None:
        """Inputs scaled as AWQ does, by the method of the best so far."""
        found = self._scaled(first.source, best.method, at=self.weigher.ruling.is_open)
        if found is None:
            return None
        result, count = found
        method = replace(best.method, label=f"{best.method.label}, awq scales in {plural(count, 'layer')}")
        return self.made(result, method)

    def _second_order(self, base: Weighed) -> Weighed | None:
        """GPTQ on the scales of a candidate."""
        method = replace(base.method, second_order=True)
        made = self.made(base.source, method)
        weights = made.parameters.weights.values()
        count = sum(not weight.rounded_to_nearest for weight in weights)
        return replace(made, label=f"{base.label}, GPTQ in {plural(count, 'layer')}") if count else None

    def _polished(self, best: Weighed) -> Weighed | None:
        """Coordinate descent where GPTQ is the best so far."""
        if not best.method.second_order:
            return None
        made = self.made(best.source, replace(best.method, polished=True))
        return replace(made, label=f"{best.label}, coordinate descent")

    def _scaled(
        self, source: FloatModel, method: Method, *, at: Callable[[str], bool]
    ) -> tuple[FloatModel, int] | None:
        layers = self.weigher.layers(source, at=at)
        scales_of = self.weigher.rule(source, method)
        return scaled(source, layers, self._grams_of(source), self.fitting, scales_of=scales_of)

    def _grams_of(self, source: FloatModel) -> Grams:
        """The Gram matrices of a float graph; those of the latest one alone are kept."""
        if id(source) not in self._grams:
            self._grams = {id(source): Grams(source=source, feeds=self.fitting, bound=self.bound)}
        return self._grams[id(source)]


def _without_effect(ruling: Ruling, first: Weighed) -> Iterator[Note]:
    """A warning for each algorithm that changes nothing at nodes that a rule wants it for."""
    weights = frozenset(spec.node for spec in first.plan.weights)
    rounded = {node for (node, _), weight in first.parameters.weights.items() if not weight.rounded_to_nearest}
    applied = {Algorithm.GPTQ: rounded, Algorithm.AWQ: first.fitted, **dict.fromkeys(OF_SCALES, weights)}
    fix = (
        "It takes quantized Conv, MatMul and Gemm with constant weights of their own; gptq and awq take samples to fit "
        "as well."
    )
    return ruling.unapplied(applied, fix)
