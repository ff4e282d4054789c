"""What rounding single groups costs at the outputs, measured with one session that computes in float."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from quantool.graph.outputs import with_outputs
from quantool.graph.switches import RoundedConstant, RoundedTensor, with_switches
from quantool.pipeline.choice.score import Scored
from quantool.pipeline.choice.units import FusionGroup, integer_readers
from quantool.pipeline.source import FloatModel
from quantool.pipeline.weight_error import rounded_values
from quantool.runtime import Session
from quantool.schema import AnyArray, Feed, Parameters, Plan

#: activations of these types are rounded by QuantizeLinear of any opset; those of 16 bits count as exact beside them
ROUNDED: Final = frozenset({"uint8", "int8"})
EXACT: Final = frozenset({"uint16", "int16"})
#: larger models are not measured, nor those beyond this share of --memory: their weights are held four to six times
LARGEST_BYTES: Final = 300_000_000
MEMORY_SHARE: Final = 8
#: feeds that each group is measured on, where the number of runs allows it
MOST_FEEDS: Final = 4
#: measurements that must be possible before more than one feed is used
FEWEST_TRIALS: Final = 12


def is_measurable(source: FloatModel, plan: Plan, *, memory: int | None) -> bool:
    """Whether a plan's groups can be switched on one by one. memory: a bound in bytes, or None."""
    types = {spec.dtype for spec in plan.activations.values()}
    most = LARGEST_BYTES if memory is None else min(LARGEST_BYTES, memory // MEMORY_SHARE)
    return source.loaded.source.size_bytes <= most and types <= ROUNDED | EXACT


class Noise:
    """Measures the noise share of any set of groups, all others computed in float.

    trials: how many measurements keep the runs of the model within a bound, which is not enforced here; 0 without
    one; with fewer than `fewest`, fewer feeds are used. runs: how many there were.
    """

    def __init__(
        self,
        source: FloatModel,
        plan: Plan,
        parameters: Parameters,
        groups: Sequence[FusionGroup],
        feeds: Sequence[Feed],
        *,
        runs: int | None,
        fewest: int = FEWEST_TRIALS,
    ) -> None:
        assert isinstance(source.normalized.model, bytes)
        count = min(MOST_FEEDS, len(feeds))
        while runs is not None and count > 1 and runs // count - 1 < fewest:
            count -= 1
        self.trials = 0 if runs is None else max(runs // count - 1, 0)
        self.runs = 0
        self._feeds = [feeds[i * len(feeds) // count] for i in range(count)]
        model, self._switches = with_switches(
            source.normalized.model,
            list(_tensors(source, plan, parameters, groups)),
            list(_constants(source, parameters, groups)),
        )
        self._scored = Scored.of(source.facts)
        self._points = list(self._scored.readers)
        self._session = Session(replace(source.normalized, model=with_outputs(model, self._points)))
        self._reference = list(self._run(()))

    def share(self, groups: Collection[int]) -> float:
        """Noise over signal at the outputs where only these groups are rounded."""
        return float(10 ** (-self._scored.score(self._reference, self._run(groups)) / 10))

    def _run(self, groups: Collection[int]) -> Iterator[Mapping[str, AnyArray]]:
        switches = {name: np.array(number in groups) for number, name in self._switches.items()}
        for sample, feed in enumerate(self._feeds):
            self.runs += 1
            yield self._session.run({**feed, **switches}, self._points, sample=sample)


def _tensors(
    source: FloatModel, plan: Plan, parameters: Parameters, groups: Iterable[FusionGroup]
) -> Iterator[RoundedTensor]:
    for number, group in enumerate(groups):
        for tensor in group.tensors:
            spec, params = plan.activations[tensor], parameters.activations[tensor]
            if spec.dtype in ROUNDED:
                uses = integer_readers(source.facts, plan, tensor)
                yield RoundedTensor(
                    switch=number,
                    tensor=tensor,
                    scale=params.scale,
                    zero_point=params.zero_point.astype(params.dtype),
                    readers=None if spec.replaces else [(source.facts.by_name[node], i) for node, i in uses],
                )


def _constants(source: FloatModel, parameters: Parameters, groups: Iterable[FusionGroup]) -> Iterator[RoundedConstant]:
    for number, group in enumerate(groups):
        for node, index in group.weights:
            values = rounded_values(parameters.weights[node, index]).astype(np.float32)
            yield RoundedConstant(switch=number, reader=source.facts.by_name[node], index=index, values=values)


def largest_shares(noise: Noise, count: int, *, alone: Sequence[int], least: float) -> dict[tuple[int, ...], float]:
    """Sets of groups and their noise shares; those that carry much of the noise are single groups.

    The groups in `alone` are measured one by one; the others as one set, which is halved, the noisiest set first, until
    no set of several groups carries `least` of all noise or the trials are used up.
    """
    others = tuple(number for number in range(count) if number not in alone)
    pending = [(number,) for number in alone] + ([others] if others else [])
    limit = least * noise.share(range(count))
    left = noise.trials - 1
    found: dict[tuple[int, ...], float] = {}
    while pending and len(pending) <= left:
        found.update((members, noise.share(members)) for members in pending)
        left -= len(pending)
        several = {members: share for members, share in found.items() if len(members) > 1 and share >= limit}
        noisiest = max(several, key=lambda members: (several[members], members), default=())
        pending = [half for half in _halves(noisiest) if half]
        if pending and len(pending) <= left:
            del found[noisiest]
    return found


def _halves(members: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    middle = len(members) // 2
    return members[:middle], members[middle:]
