"""Choosing by measurement: which ranges, and whether GPTQ, bias correction and smoothing help, on the kept feeds.

A trial is a quantized model run beside the float one. Its score is the mean over samples of noise over signal, in dB,
of the worst output, so that a sample or an output that is ruined counts more than many that are fine. An output
behind a Softmax or Sigmoid is scored in front of it, where saturation hides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from types import MappingProxyType

import numpy as np

from calibrators.statistic import Statistic
from quantool import graph
from quantool.graph.outputs import with_outputs
from quantool.ops import Role, op_of
from quantool.pipeline.build import loadable, quantized_graph
from quantool.pipeline.channels import Group
from quantool.pipeline.correct import corrections
from quantool.pipeline.equalize import EQUALIZED, equalized
from quantool.pipeline.forced import Ruling
from quantool.pipeline.round_weights import Rounding, rounded, with_codes
from quantool.pipeline.smooth import smoothed
from quantool.pipeline.source import FloatModel
from quantool.recipe import Algorithm, Effort, Recipe
from quantool.report.model import Trial
from quantool.report.wording import plural
from quantool.runtime import Thrift, tap
from quantool.schema import AnyArray, Feed, GraphFacts, NodeFact, Note, Parameters, Plan, Range
from quantool.solve import NO_CORRECTIONS, Corrections, default_calibrator, solve
from quantool.stats import Stats

#: a choice must gain this much: what sixteen samples say is not surer than that
LEAST_GAIN_DB = 1.0
#: and all multiplications as integers may cost this much, a share of them that share of it
MOST_LOSS_DB = 3.0
#: shares of noise beyond these say only "equal" and "ruined"
SHARE_LIMITS = (1e-10, 1e2)
#: models larger than this are not tried out: every trial quantizes all weights again
LARGEST_TRIAL_BYTES = 1_000_000_000
#: strengths of smoothing that are tried; 0.8 was best on two transformers, 0.5 is the paper's
SMOOTHING = (0.5, 0.8)
_SATURATING = frozenset({"Softmax", "LogSoftmax", "Sigmoid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to quantize the model.

    label: as a report names it; source: the float graph, smoothed or not; stats: its statistics; calibrator: what the
    ranges come from; allowed: nodes before a Log that are quantized all the same; roundings: node -> how its weight is
    rounded, where not to nearest.
    """

    label: str
    source: FloatModel
    stats: Mapping[str, Statistic]
    calibrator: str
    allowed: frozenset[str]
    plan: Plan
    ranges: Mapping[str, Range]
    parameters: Parameters
    roundings: Mapping[str, Rounding] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judges:
    """Samples in memory. judging: what scores are measured on; fitting: what algorithms are fitted to.

    held_out: feeds judge that did not calibrate.
    """

    judging: Sequence[Feed]
    fitting: Sequence[Feed]
    held_out: bool


#: (float graph, statistics, calibrator, allowed nodes) -> plan and ranges
Planner = Callable[[FloatModel, Mapping[str, Statistic], str, frozenset[str]], tuple[Plan, Mapping[str, Range]]]


def choose(
    source: FloatModel, stats: Stats, planner: Planner, samples: Judges, *, recipe: Recipe
) -> tuple[Candidate, tuple[Trial, ...], Sequence[Note]]:
    """The best candidate by score, what was tried, and what could not be.

    Without held-out feeds or effort, the first one and nothing.
    """
    ruling = Ruling.of(source.facts, recipe)
    maker = _Maker(planner=planner, recipe=recipe, fitting=samples.fitting, known=stats, ruling=ruling)
    first = maker.first(source, stats.tensors, str(recipe.calibrator or default_calibrator(recipe.activations)))
    too_large = source.loaded.source.size_bytes > LARGEST_TRIAL_BYTES or first.plan.reference
    too_large = too_large or source.normalized.thrift is Thrift.WEIGHTS
    blind = not samples.judging or not samples.held_out
    if blind or recipe.effort is Effort.FAST or too_large or not first.plan.activations:
        return first, (), maker.notes
    judge = _Judge(source, samples.judging, threads=recipe.threads or 0)
    scores = {first.label: judge.score(first)}
    best = first
    for proposal in maker.proposals(first):
        candidate = proposal(best)
        if candidate is None:
            continue
        scores[candidate.label] = judge.score(candidate)
        if scores[candidate.label] >= scores[best.label] + _needed_gain(candidate, best):
            best = candidate
    trials = tuple(Trial(name=n, score_db=v, chosen=n == best.label) for n, v in scores.items())
    return best, trials, maker.notes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """Makes candidates. fitting: the feeds that algorithms are fitted to; known: what they may use instead.

    ruling: what rules force, which every candidate has, and what they forbid; notes: what could not be done.
    """

    planner: Planner
    recipe: Recipe
    fitting: Sequence[Feed]
    known: Stats
    ruling: Ruling
    notes: list[Note] = field(default_factory=list)

    def first(self, source: FloatModel, stats: Mapping[str, Statistic], calibrator: str) -> Candidate:
        """The candidate that all others are held against: equalized and smoothed where rules want it."""
        found = self.made(source, stats, calibrator)
        if self.ruling.forced(Algorithm.EQUALIZATION):
            found = self._equalized(found, self.ruling.is_forced_group, balanced_too=True) or found
        nodes = self.ruling.forced(Algorithm.SMOOTHING)
        if not nodes:
            return found
        smooth = smoothed(found.source, found.plan, self.fitting, alpha=SMOOTHING[0], at=nodes.__contains__)
        return found if smooth is None else self.made(smooth[0], {**found.stats, **smooth[1]}, calibrator)

    def made(
        self,
        source: FloatModel,
        stats: Mapping[str, Statistic],
        calibrator: str,
        *,
        allowed: frozenset[str] = frozenset(),
    ) -> Candidate:
        """Weights rounded to nearest, ranges by a calibrator."""
        plan, ranges = self.planner(source, stats, calibrator, allowed)
        spectra = f", {plural(len(allowed), 'node')} before a Log too" if allowed else ""
        candidate = Candidate(
            label=f"{calibrator} ranges{', equalized' if EQUALIZED in source.changed else ''}{spectra}",
            allowed=allowed,
            source=source,
            stats=stats,
            calibrator=calibrator,
            plan=plan,
            ranges=ranges,
            parameters=solve(plan, ranges, load=source.constant, recipe=self.recipe),
        )
        return self._forced(candidate)

    def proposals(self, first: Candidate) -> Iterator[Callable[[Candidate], Candidate | None]]:
        """What may be better than the best so far, one after the other; None where it would change nothing."""
        recipe = self.recipe
        yield self.equalized
        if recipe.calibrator is None and default_calibrator(recipe.activations) != "minmax":
            yield lambda best: self.made(best.source, best.stats, "minmax")
        yield partial(self.spectral, first)
        everywhere = recipe.effort is Effort.MAX
        for alpha in SMOOTHING if everywhere else ():
            yield partial(self.smoothed, first, alpha)
        yield partial(self.rounded, everywhere=everywhere)
        yield partial(self.rounded_as_given, first)
        yield self.corrected

    def spectral(self, first: Candidate, best: Candidate) -> Candidate | None:
        """The best so far with the nodes before a Log, Sqrt, Sin or Cos as integers: faster, if it is no worse."""
        nodes = spectral_nodes(first.plan)
        return self.made(best.source, best.stats, best.calibrator, allowed=nodes) if nodes else None

    def equalized(self, best: Candidate) -> Candidate | None:
        """The same on a model whose channels are balanced."""
        found = self._equalized(best, self.ruling.is_open_group)
        forced = EQUALIZED in best.source.changed
        return replace(found, label=f"{found.label} elsewhere too") if found is not None and forced else found

    def _equalized(
        self, best: Candidate, among: Callable[[Group], bool], *, balanced_too: bool = False
    ) -> Candidate | None:
        found = equalized(
            best.source, best.plan, best.stats, self.fitting, recipe=self.recipe, among=among, balanced_too=balanced_too
        )
        if isinstance(found, Note):
            self.notes.append(found)
        return self.made(*found, best.calibrator) if isinstance(found, tuple) else None

    def smoothed(self, first: Candidate, alpha: float, best: Candidate) -> Candidate | None:
        """The ranges of the best so far on inputs that are smoothed."""
        found = smoothed(first.source, first.plan, self.fitting, alpha=alpha, at=self.ruling.is_open)
        if found is None:
            return None
        source, new = found
        candidate = self.made(source, {**first.stats, **new}, best.calibrator, allowed=best.allowed)
        return replace(candidate, label=f"{candidate.label}, smoothed by {alpha}")

    def rounded(self, best: Candidate, *, everywhere: bool) -> Candidate | None:
        """The same with GPTQ, everywhere or where the weights' noise dominates."""
        found = self._roundings(best, everywhere=everywhere, at=self.ruling.is_open)
        if not found:
            return None
        label = f"{best.label}, GPTQ in {plural(len(found), 'layer')}"
        return self._corrected_by_force(self.solved(replace(best, label=label, roundings={**best.roundings, **found})))

    def rounded_as_given(self, first: Candidate, best: Candidate) -> Candidate | None:
        """GPTQ on the inputs as they were, of which calibration knows more, where smoothing is the best so far."""
        if best.source is first.source or EQUALIZED in best.source.changed:
            return None
        plain = self.made(first.source, first.stats, best.calibrator, allowed=best.allowed)
        return self.rounded(plain, everywhere=True)

    def corrected(self, best: Candidate) -> Candidate | None:
        """The same with bias correction."""
        forced = self.ruling.forced(Algorithm.BIAS_CORRECTION)
        shifts = self._shifts(best, at=lambda node: self.ruling.is_open(node) or node in forced)
        if not shifts.keys() - forced:
            return None
        return self.solved(replace(best, label=f"{best.label}, bias correction"), shifts)

    def solved(self, candidate: Candidate, shifts: Corrections = NO_CORRECTIONS) -> Candidate:
        """A candidate's parameters from its roundings and what leaves its biases."""
        scales = {node: found.scale for node, found in candidate.roundings.items() if found.scale is not None}
        parameters = solve(
            candidate.plan,
            candidate.ranges,
            load=candidate.source.constant,
            recipe=self.recipe,
            corrections=shifts,
            scales=scales,
        )
        return replace(candidate, parameters=with_codes(parameters, candidate.roundings))

    def _forced(self, candidate: Candidate) -> Candidate:
        """The same with the rounding and the bias correction that rules want."""
        nodes = self.ruling.forced(Algorithm.GPTQ)
        if nodes:
            found = self._roundings(candidate, everywhere=True, at=nodes.__contains__)
            candidate = self.solved(replace(candidate, roundings=found))
        return self._corrected_by_force(candidate)

    def _corrected_by_force(self, candidate: Candidate) -> Candidate:
        """The same with the bias correction that rules want, which follows from all that was decided before."""
        nodes = self.ruling.forced(Algorithm.BIAS_CORRECTION)
        return self.solved(candidate, self._shifts(candidate, at=nodes.__contains__)) if nodes else candidate

    def _roundings(self, best: Candidate, *, everywhere: bool, at: Callable[[str], bool]) -> Mapping[str, Rounding]:
        # Gram matrices of the first model say nothing of rescaled channels.
        known = {} if EQUALIZED in best.source.changed else self.known.grams
        return rounded(best.source, best.plan, best.parameters, self.fitting, known=known, everywhere=everywhere, at=at)

    def _shifts(self, best: Candidate, *, at: Callable[[str], bool]) -> Corrections:
        known = self.known.channels
        return corrections(best.source, best.plan, best.parameters, self.fitting, known=known, at=at)


def _needed_gain(candidate: Candidate, best: Candidate) -> float:
    """How many dB better a candidate must be: fewer than none where it runs more multiplications as integers."""
    more = candidate.allowed - best.allowed
    if not more:
        return LEAST_GAIN_DB
    macs = graph.macs(candidate.source.facts)
    return -MOST_LOSS_DB * sum(macs.get(node, 0) for node in more) / max(sum(macs.values()), 1)


def spectral_nodes(plan: Plan) -> frozenset[str]:
    """The nodes that a plan keeps in float only because they feed a Log or its kin."""
    kept = (d for d in plan.decisions.values() if d.reason is not None)
    return frozenset(d.node for d in kept if d.reason is not None and d.reason.code == "before-log")


class _Judge:
    """Scores candidates against the float model's tensors, which are computed once."""

    def __init__(self, source: FloatModel, feeds: Sequence[Feed], *, threads: int) -> None:
        self._feeds = feeds
        self._threads = threads
        self._points = scored_tensors(source.facts)
        stream = tap(source.normalized, feeds, groups=[list(self._points)], with_outputs=with_outputs)
        self._reference = [arrays for _, arrays in stream]

    def score(self, candidate: Candidate) -> float:
        """Mean noise over signal of the samples, in dB, of the worst scored tensor."""
        model = quantized_graph(candidate.source, candidate.plan, candidate.parameters)
        names = {tensor: _counterpart(model, tensor, reader) for tensor, reader in self._points.items()}
        source = loadable(model, threads=self._threads, thrift=candidate.source.normalized.thrift)
        stream = tap(source, self._feeds, groups=[list(dict.fromkeys(names.values()))], with_outputs=with_outputs)
        shares: dict[str, list[float]] = {tensor: [] for tensor in names}
        for reference, (_, arrays) in zip(self._reference, stream, strict=True):
            for tensor, name in names.items():
                shares[tensor].append(_noise_share(reference[tensor], arrays[name]))
        worst = max((float(np.mean(found)) for found in shares.values()), default=1.0)
        return -10.0 * math.log10(worst)


def scored_tensors(facts: GraphFacts) -> Mapping[str, str]:
    """Float tensors that tell how good a result is -> the node that reads each, "" for a graph output itself."""
    points: dict[str, str] = {}
    for output in facts.outputs:
        if facts.tensors[output].is_float:
            reader = _saturating(facts, output)
            points[output if reader is None else reader.inputs[0]] = "" if reader is None else reader.name
    return points


def _saturating(facts: GraphFacts, output: str) -> NodeFact | None:
    """The Softmax or Sigmoid, or the Exp of a Softmax in primitive operators, behind an output; None without one."""
    node = facts.producer(output)
    while node is not None and (op_of(node).role is Role.MOVER or node.op_type == "Cast") and not node.scope:
        node = facts.producer(node.inputs[0])
    if node is not None and node.op_type == "Div":
        node = facts.producer(node.inputs[0])
        return node if node is not None and node.op_type == "Exp" and not node.scope else None
    return node if node is not None and node.op_type in _SATURATING and not node.scope else None


def _counterpart(model: graph.Model, tensor: str, reader: str) -> str:
    """The tensor that the reader reads in the quantized graph; its own name where it is a graph output."""
    if not reader:
        return tensor
    node = next((n for n in islice(model.ir.graph, None) if n.name == reader), None)
    value = None if node is None else node.inputs[0]
    return tensor if value is None or value.name is None else value.name


def _noise_share(reference: AnyArray, test: AnyArray) -> float:
    """Noise over signal, between what is called equal and what is called ruined."""
    exact = reference.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        noise = float(np.square(exact - test.astype(np.float64)).sum())
        signal = float(np.square(exact).sum())
    least, most = SHARE_LIMITS
    if noise == 0.0:
        return least
    share = noise / signal if signal else most
    return min(most, max(least, share)) if math.isfinite(share) else most
