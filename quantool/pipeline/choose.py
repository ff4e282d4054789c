"""Choosing by measurement: which ranges, and whether GPTQ and bias correction help, on the feeds that were kept.

A trial is a quantized model run beside the float one. Its score is the mean over samples and outputs of noise over
signal, in dB, so that a sample that is ruined counts more than many that are fine. An output behind a Softmax or
Sigmoid is scored in front of it, where saturation hides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType

import numpy as np

from quantool import graph
from quantool.graph.outputs import with_outputs
from quantool.ops import Role, op_of
from quantool.pipeline.build import loadable, quantized_graph
from quantool.pipeline.correct import corrections
from quantool.pipeline.round_weights import rounded, with_codes
from quantool.pipeline.source import FloatModel
from quantool.recipe import Effort, Recipe
from quantool.report.model import Trial
from quantool.runtime import tap
from quantool.schema import AnyArray, Feed, GraphFacts, NodeFact, Parameters, Plan, Range
from quantool.solve import default_calibrator, solve

#: a choice must gain this much, so that noise of the samples decides nothing
LEAST_GAIN_DB = 0.1
#: shares of noise beyond these say only "equal" and "ruined"
SHARE_LIMITS = (1e-10, 1e2)
#: models larger than this are not tried out: every trial quantizes all weights again
LARGEST_TRIAL_BYTES = 1_000_000_000
_SATURATING = frozenset({"Softmax", "LogSoftmax", "Sigmoid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to quantize the model.

    label: as a report names it; calibrator: what its ranges come from; codes: node -> codes of its weight, where they
    are not those of rounding to nearest.
    """

    label: str
    calibrator: str
    plan: Plan
    ranges: Mapping[str, Range]
    parameters: Parameters
    codes: Mapping[str, AnyArray] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judges:
    """Samples in memory. judging: what scores are measured on; fitting: what algorithms are fitted to.

    held_out: feeds judge that did not calibrate.
    """

    judging: Sequence[Feed]
    fitting: Sequence[Feed]
    held_out: bool


#: calibrator -> plan and ranges
Planner = Callable[[str], tuple[Plan, Mapping[str, Range]]]


def choose(
    source: FloatModel, planner: Planner, samples: Judges, *, recipe: Recipe
) -> tuple[Candidate, tuple[Trial, ...]]:
    """The best candidate by score, and what was tried; without feeds or effort, the first one and nothing."""
    first = _candidate(source, planner, str(recipe.calibrator or default_calibrator(recipe.activations)), recipe)
    too_large = source.loaded.source.size_bytes > LARGEST_TRIAL_BYTES or first.plan.reference
    if not samples.judging or recipe.effort is Effort.FAST or too_large or not first.plan.activations:
        return first, ()
    judge = _Judge(source, samples.judging, threads=recipe.threads or 0)
    scores = {first.label: judge.score(first)}
    best = first
    for proposal in _proposals(source, planner, samples, recipe=recipe):
        candidate = proposal(best)
        if candidate is None:
            continue
        scores[candidate.label] = judge.score(candidate)
        if scores[candidate.label] >= scores[best.label] + LEAST_GAIN_DB:
            best = candidate
    return best, tuple(Trial(name=n, score_db=v, chosen=n == best.label) for n, v in scores.items())


def _candidate(source: FloatModel, planner: Planner, calibrator: str, recipe: Recipe) -> Candidate:
    plan, ranges = planner(calibrator)
    parameters = solve(plan, ranges, load=source.constant, recipe=recipe)
    return Candidate(
        label=f"{calibrator} ranges", calibrator=calibrator, plan=plan, ranges=ranges, parameters=parameters
    )


def _proposals(
    source: FloatModel, planner: Planner, samples: Judges, *, recipe: Recipe
) -> Iterator[Callable[[Candidate], Candidate | None]]:
    """What may be better than the best so far, one after the other; None where it would change nothing."""
    # Feeds that calibrated fit their own extrema best, whatever other feeds will hold.
    if samples.held_out and recipe.calibrator is None and default_calibrator(recipe.activations) != "minmax":
        yield lambda _: _candidate(source, planner, "minmax", recipe)
    yield lambda best: _rounded(source, best, samples.fitting)
    yield lambda best: _corrected(source, best, samples.fitting, recipe)


def _rounded(source: FloatModel, best: Candidate, feeds: Sequence[Feed]) -> Candidate | None:
    """The same with GPTQ where the weights' noise dominates."""
    codes = rounded(source, best.plan, best.parameters, feeds)
    if not codes:
        return None
    return replace(
        best,
        label=f"{best.label}, GPTQ in {len(codes)} layers",
        parameters=with_codes(best.parameters, codes),
        codes=codes,
    )


def _corrected(source: FloatModel, best: Candidate, feeds: Sequence[Feed], recipe: Recipe) -> Candidate | None:
    """The same with bias correction."""
    shifts = corrections(source, best.plan, best.parameters, feeds)
    if not shifts:
        return None
    parameters = solve(best.plan, best.ranges, load=source.constant, recipe=recipe, corrections=shifts)
    return replace(best, label=f"{best.label}, bias correction", parameters=with_codes(parameters, best.codes))


class _Judge:
    """Scores candidates against the float model's tensors, which are computed once."""

    def __init__(self, source: FloatModel, feeds: Sequence[Feed], *, threads: int) -> None:
        self._source = source
        self._feeds = feeds
        self._threads = threads
        self._points = scored_tensors(source.facts)
        stream = tap(source.normalized, feeds, groups=[list(self._points)], with_outputs=with_outputs)
        self._reference = [arrays for _, arrays in stream]

    def score(self, candidate: Candidate) -> float:
        """Mean noise over signal of all samples and scored tensors, in dB."""
        model = quantized_graph(self._source, candidate.plan, candidate.parameters)
        names = {tensor: _counterpart(model, tensor, reader) for tensor, reader in self._points.items()}
        source = loadable(model, threads=self._threads)
        stream = tap(source, self._feeds, groups=[list(dict.fromkeys(names.values()))], with_outputs=with_outputs)
        ratios = [
            _noise_share(reference[tensor], arrays[name])
            for reference, (_, arrays) in zip(self._reference, stream, strict=True)
            for tensor, name in names.items()
        ]
        return -10.0 * math.log10(float(np.mean(ratios))) if ratios else 0.0


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
