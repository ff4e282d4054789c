"""The score of a quantized model: noise over signal at its outputs, in dB, on the kept feeds.

It is the mean over samples of the worst output, so that a sample or an output that is ruined counts more than many
that are fine. An output behind a Softmax or Sigmoid is scored in front of it, where saturation hides nothing; what a
Softmax does not see, the mean of its scores, is taken out, so that small margins on a large offset count. A channel
that is lost while the whole still reads well counts too: that is how a detector loses its scores beside boxes a
thousand times as large. With a metric of the user's, a model that is worse in it beyond doubt scores TASK_LOST_DB
less, so that one that keeps the task is preferred to a cleaner one that does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from quantool import graph
from quantool.data import labels_of
from quantool.graph.outputs import with_outputs
from quantool.metrics import Paired, Sample, find
from quantool.ops import Role, op_of
from quantool.pipeline.build import loadable, quantized_graph
from quantool.pipeline.source import FloatModel
from quantool.recipe import Recipe
from quantool.runtime import tap
from quantool.schema import AnyArray, Feed, GraphFacts, NodeFact, Parameters, Plan
from quantool.verify import Comparator
from quantool.verify.verdict import LOST_GAP_DB

#: shares of noise beyond these say only "equal" and "ruined"
SHARE_LIMITS = (1e-10, 1e2)
#: what a model scores less that is worse in the user's metric, however clean its outputs are beyond CLEAN_DB
TASK_LOST_DB, CLEAN_DB = 20.0, 40.0
_SATURATING = frozenset({"Softmax", "LogSoftmax", "Sigmoid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What tells how good a result is. readers: tensor -> the node that reads it, "" for a graph output itself.

    axes: tensor -> the axis along which its Softmax compares scores.
    """

    readers: Mapping[str, str]
    axes: Mapping[str, int]

    @classmethod
    def of(cls, facts: GraphFacts) -> Scored:
        """The scored tensors of a graph."""
        readers = scored_tensors(facts)
        nodes = {tensor: facts.by_name[reader] for tensor, reader in readers.items() if reader}
        softmax = {tensor: node for tensor, node in nodes.items() if node.op_type in ("Softmax", "LogSoftmax")}
        axes = {tensor: node.attributes.get("axis", -1) for tensor, node in softmax.items()}
        return cls(readers=readers, axes={tensor: axis for tensor, axis in axes.items() if isinstance(axis, int)})

    def score(self, reference: Iterable[Mapping[str, AnyArray]], test: Iterable[Mapping[str, AnyArray]]) -> float:
        """The score in dB: of the worst tensor as a whole, or of its worst channel where that is lost."""
        comparator = Comparator()
        shares: dict[str, list[float]] = {}
        for given, other in zip(reference, test, strict=True):
            exact, found = self._centred(given), self._centred(other)
            comparator.add(exact, found)
            for tensor, array in exact.items():
                shares.setdefault(tensor, []).append(_noise_share(array, found[tensor]))
        whole = max((float(np.mean(each)) for each in shares.values()), default=1.0)
        worst = (output.worst_channel_sqnr_db for output in comparator.result().values())
        lowest = -10.0 * math.log10(SHARE_LIMITS[1])
        channels = (max(db + LOST_GAP_DB, lowest) for db in worst if db is not None)
        return min((-10.0 * math.log10(whole), *channels))

    def _centred(self, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """The scored tensors, without the mean that a Softmax does not see."""
        found = {tensor: arrays[tensor] for tensor in self.readers}
        for tensor, axis in self.axes.items():
            scores = found[tensor].astype(np.float64)
            if scores.size and np.isfinite(scores).all():
                found[tensor] = scores - scores.mean(axis=axis, keepdims=True)
        return found


class Judge:
    """Scores quantized models against the float model's tensors, which are computed once."""

    def __init__(self, source: FloatModel, feeds: Sequence[Feed], recipe: Recipe) -> None:
        self.feeds = feeds
        self._threads = recipe.threads or 0
        self._metric = None if recipe.metric is None else find(recipe.metric)
        self._scored = Scored.of(source.facts)
        self._outputs = () if self._metric is None else source.facts.outputs
        points = list(dict.fromkeys((*self._scored.readers, *self._outputs)))
        stream = tap(source.normalized, feeds, groups=[points], with_outputs=with_outputs)
        self._reference = [arrays for _, arrays in stream]

    def score(self, source: FloatModel, plan: Plan, parameters: Parameters) -> float:
        """The score in dB of a float model's quantized form."""
        model = quantized_graph(source, plan, parameters)
        read = counterparts(model, {reader: tensor for tensor, reader in self._scored.readers.items() if reader})
        names = {tensor: read.get(reader, tensor) for tensor, reader in self._scored.readers.items()}
        written = loadable(model, threads=self._threads, thrift=source.normalized.thrift)
        points = list(dict.fromkeys((*names.values(), *self._outputs)))
        found = [arrays for _, arrays in tap(written, self.feeds, groups=[points], with_outputs=with_outputs)]
        scored = self._scored.score(
            self._reference, ({tensor: arrays[name] for tensor, name in names.items()} for arrays in found)
        )
        return min(scored, CLEAN_DB) - TASK_LOST_DB if self._loses_task(found) else scored

    def _loses_task(self, found: Sequence[Mapping[str, AnyArray]]) -> bool:
        """Whether the samples tell that a quantized model is worse in the user's metric."""
        if self._metric is None:
            return False
        paired = Paired(self._metric)
        for feed, exact, other in zip(self.feeds, self._reference, found, strict=True):
            if self._metric.needs_labels and not labels_of(feed):
                continue
            reference = {name: exact[name] for name in self._outputs}
            sample = Sample(feed=feed, labels=labels_of(feed), outputs=reference, reference=reference)
            paired.add(sample, replace(sample, outputs={name: other[name] for name in self._outputs}))
        measured = paired.result()
        return measured is not None and measured.resolved and (measured.drop or 0.0) > 0.0


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


def counterparts(model: graph.Model, readers: Mapping[str, str]) -> Mapping[str, str]:
    """Node -> what its first input reads in a quantized graph. readers: node -> what that reads in the float graph."""
    nodes = {node.name: node for node in model.ir.graph if node.name}
    inputs = {name: nodes[name].inputs[0] for name in readers if name in nodes and nodes[name].inputs}
    found = {name: value.name for name, value in inputs.items() if value is not None and value.name is not None}
    return {**readers, **found}


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
