"""Staying within --memory: what a calibration takes is estimated, and tensors are tapped in groups that fit.

Weights in external data are mapped from their file and cost no private memory, unless the runtime copies them into a
faster layout: that is switched off where the copies would take more than half of the bound. Estimates come from sizes
alone, so that a bound always gives the same bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from quantool import graph
from quantool.algorithms.layer_input import LayerInput
from quantool.collect import CollectRequest
from quantool.data.held_out import MOST_BYTES
from quantool.errors import DataError, OptionError
from quantool.graph.load import OUTLINED_FROM
from quantool.graph.outputs import with_outputs
from quantool.report.model import MemoryInfo
from quantool.report.wording import size as words
from quantool.runtime import (
    Loadable,
    Optimization,
    Peak,
    Thrift,
    machine_bytes,
    private_bytes,
    return_freed_blocks,
    tap,
    watched_memory,
)
from quantool.schema import Feed, GraphFacts

MIB: Final = 1024 * 1024
#: the interpreter and its packages, and the buffers of the statistics
PROCESS: Final = 192 * MIB
#: what planning and rewriting hold of a node, and one session
PLANNED_NODE, LOADED_NODE = 48 * 1024, 16 * 1024
#: a weight inside the model's file is held so often: as read, as normalized, and while a session is made of it
INLINE_COPIES: Final = 4
#: and a session that is not thrifty with weights takes so much of all weights: rewritten, and while it is loaded
LAYOUT_COPIES: Final = 2
#: one tensor's statistics, many exponents occupied
STATISTICS: Final = 192 * 1024
#: external weights from this size on stay mapped where no data asks for speed, even if nothing bounds the memory
MAPPED_FROM: Final = 512 * 1000 * 1000
#: what a caller's process holds beyond that counts in steps, so that small differences change nothing
STEP: Final = 256 * MIB


def passes(sizes: Mapping[str, int], budget: int) -> list[list[str]]:
    """Names in their order, cut into the fewest runs of neighbours whose sizes fit together.

    One that does not fit alone stands alone.
    """
    groups: list[list[str]] = []
    left = 0
    for name, size in sizes.items():
        if not groups or size > left:
            groups.append([])
            left = budget
        groups[-1].append(name)
        left -= size
    return groups


def gram_bytes(layer: LayerInput) -> int:
    """What a layer's Gram matrix takes: sums on two grids of 64 bits; a sample's products take as much for a moment."""
    return 16 * layer.size**2 * layer.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class TapPlan:
    """How tensors are tapped. estimate: bytes of private memory at the peak."""

    groups: tuple[tuple[str, ...], ...]
    thrift: Thrift
    estimate: int


def thrift_of(loaded: graph.Loaded, bound: int | None, *, has_data: bool) -> Thrift:
    """What sessions must save: weights where copies of them would take half of what the bound leaves.

    Without a bound, the memory of the machine is one. Without data nobody times a session, so that copies of large
    weights would serve nobody.
    """
    if bound is None and not has_data and external_bytes(loaded) >= MAPPED_FROM:
        return Thrift.WEIGHTS
    if bound is None and (external_bytes(loaded) < MAPPED_FROM or (bound := machine_bytes()) is None):
        return Thrift.NONE
    copies = LAYOUT_COPIES * loaded.source.size_bytes + INLINE_COPIES * inline_bytes(loaded)
    return Thrift.ACTIVATIONS if 2 * copies <= bound - PROCESS else Thrift.WEIGHTS


def inline_bytes(loaded: graph.Loaded) -> int:
    """What the model's file itself holds, which is read into private memory."""
    return loaded.source.size_bytes - external_bytes(loaded)


def external_bytes(loaded: graph.Loaded) -> int:
    """What the files of external data hold."""
    return 0 if loaded.external is None else loaded.external.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Plans calibrations of one model within a bound in bytes. feeds: how many are held at a time, at most."""

    loaded: graph.Loaded
    facts: GraphFacts
    model: Loadable
    request: CollectRequest
    bound: int
    feeds: int

    def plan(self, feed: Feed) -> TapPlan:
        """The fewest groups that fit; the thrift of the model where that fits, else that of weights too.

        Raises:
            OptionError: ``memory-too-small``, naming the least size that would do.
        """
        costs = self._costs(feed)
        for thrift in dict.fromkeys((self.model.thrift, Thrift.WEIGHTS)):
            found = costs.plan(thrift, self.bound)
            if found is not None:
                return found
        raise _too_small(self.bound, costs.least(), inline=costs.inline)

    def needed(self, feed: Feed, plan: TapPlan) -> int:
        """What a calibration takes whose tensors are tapped as planned, if all feeds are like this one."""
        return self._costs(feed).estimate(plan.thrift, plan.groups)

    def _costs(self, feed: Feed) -> _Costs:
        assert isinstance(self.model.model, bytes)
        sizes = tensor_sizes(self.facts, self.model, feed)
        inline = max(inline_bytes(self.loaded), len(self.model.model))
        fixed = PROCESS + PLANNED_NODE * len(self.facts.nodes) + INLINE_COPIES * inline
        feeds = min(self.feeds * feed_bytes(feed), MOST_BYTES) + 2 * feed_bytes(feed)
        beyond = max(0, (private_bytes() or 0) - fixed - feeds)
        grams = [gram_bytes(layer) for layer in self.request.grams.values()]
        return _Costs(
            taps={name: sizes.get(name, 0) for name in self.request.tensors},
            around=fixed
            + feeds
            + -(-beyond // STEP) * STEP
            + sum(grams)
            + max(grams, default=0)
            + STATISTICS * len(self.request.tensors)
            + plain_peak(self.facts, sizes),
            inline=inline,
            session=LOADED_NODE * len(self.facts.nodes) + inline,
            layouts=LAYOUT_COPIES * self.loaded.source.size_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Taps:
    """How the wanted tensors of a model are tapped. planner: None where nothing bounds the memory."""

    model: Loadable
    groups: tuple[tuple[str, ...], ...]
    planner: Planner | None = None
    plan: TapPlan | None = None
    planned_bytes: int = 0

    @classmethod
    def within(cls, planner: Planner, feed: Feed) -> Taps:
        """Grouped to fit. Raises OptionError: ``memory-too-small``."""
        plan = planner.plan(feed)
        model = replace(planner.model, thrift=plan.thrift)
        return cls(model=model, groups=plan.groups, planner=planner, plan=plan, planned_bytes=feed_bytes(feed))

    def watch(self, feeds: Iterable[Feed]) -> Iterator[Feed]:
        """Pass feeds on, as long as the memory that was planned for holds what they make.

        Raises:
            DataError: ``sample-too-large``.
        """
        largest = self.planned_bytes
        for number, feed in enumerate(feeds):
            if self.planner is not None and self.plan is not None and feed_bytes(feed) > largest:
                largest = feed_bytes(feed)
                needed = self.planner.needed(feed, self.plan)
                if needed > self.planner.bound:
                    raise _too_large(number, self.planner.bound, needed)
            yield feed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Costs:
    """What a calibration takes, in bytes.

    taps: the wanted tensors in topological order; around: all that does not depend on how they are grouped; inline:
    what the model holds itself; session: one session; layouts: its copies of weights, where it makes any.
    """

    taps: Mapping[str, int]
    around: int
    inline: int
    session: int
    layouts: int

    def plan(self, thrift: Thrift, bound: int) -> TapPlan | None:
        """The fewest groups that fit, or None."""
        for count in range(1, max(len(self.taps), 1) + 1):
            groups = passes(self.taps, bound - self.estimate(thrift, [()] * count))
            estimate = self.estimate(thrift, groups)
            if len(groups) <= count and estimate <= bound:
                return TapPlan(groups=tuple(map(tuple, groups)), thrift=thrift, estimate=estimate)
        return None

    def least(self) -> int:
        """The smallest bound that would do, with the thriftiest sessions."""
        whole, largest = sum(self.taps.values()), max(self.taps.values(), default=0)
        budgets = {max(largest, whole // count) for count in range(1, len(self.taps) + 1)}
        return min(self.estimate(Thrift.WEIGHTS, passes(self.taps, budget)) for budget in budgets)

    def estimate(self, thrift: Thrift, groups: Sequence[Sequence[str]]) -> int:
        """The peak with tensors tapped in groups, one session each. Counting a tensor may take a copy of it."""
        session = self.session + (0 if thrift is Thrift.WEIGHTS else self.layouts)
        group = max((sum(self.taps[name] for name in group) for group in groups), default=0)
        return self.around + len(groups) * session + group + max(self.taps.values(), default=0)


def _too_small(bound: int, least: int, *, inline: int) -> OptionError:
    fix = f"Give --memory {-(-least // MIB)}M or more, or smaller feeds"
    if inline > bound // 16:
        fix += (
            f"; or save the model with external data and its constants folded, because {words(inline)} of weights "
            "that stand in the model's file or are computed at load are held several times"
        )
    return OptionError(
        "memory-too-small",
        f"--memory {bound // MIB}M does not hold this calibration, which needs {-(-least // MIB)}M",
        where="--memory",
        fix=f"{fix}.",
    )


def _too_large(number: int, bound: int, needed: int) -> DataError:
    return DataError(
        "sample-too-large",
        f"sample {number} is larger than the first one: --memory {bound // MIB}M does not hold what it makes, "
        f"{-(-needed // MIB)}M",
        where=f"sample {number}",
        fix=f"Put the largest sample first, for which tensors are grouped, or give --memory {-(-needed // MIB)}M.",
    )


def refuse_large_file(model: object, bound: int | None) -> None:
    """Refuse a file that would exceed the bound when it is read and loaded, before it is read.

    Raises:
        OptionError: ``memory-too-small``.
    """
    inline = Path(model).stat().st_size if isinstance(model, str | Path) and Path(model).is_file() else 0
    if inline >= OUTLINED_FROM:
        return
    least = PROCESS + (INLINE_COPIES + 1) * inline
    if bound is not None and least > bound:
        raise _too_small(bound, least, inline=inline)


# --- sizes of tensors -----------------------------------------------------------------------------------


def tensor_sizes(facts: GraphFacts, model: Loadable, feed: Feed) -> Mapping[str, int]:
    """Bytes of every tensor that the main graph computes for a feed; where no inference tells a shape, measured."""
    assert isinstance(model.model, bytes)
    inputs = {name: value.shape for name, value in feed.items() if isinstance(value, np.ndarray)}
    shapes = graph.shapes_for(model.model, inputs)
    names = [output for node in facts.nodes if not node.scope for output in node.outputs if output]
    known = {n: math.prod(shapes[n]) * _item_bytes(facts.tensors[n].dtype) for n in names if n in shapes}
    unknown = [name for name in names if name not in shapes and facts.tensors[name].dtype]
    return {**known, **_measured(model, unknown, feed)}


def _item_bytes(dtype: str) -> int:
    """By the number of bits in the type's name; texts as the pointers that they are."""
    bits = re.search(r"[0-9]+", dtype)
    return 1 if dtype == "bool" else 8 if bits is None else -(-int(bits[0]) // 8)


def _measured(model: Loadable, names: Sequence[str], feed: Feed) -> Mapping[str, int]:
    """Sizes by running the feed, a few tensors at a time, more of them while they are small."""
    plain = replace(model, optimization=Optimization.DISABLED, thrift=Thrift.WEIGHTS)
    found: dict[str, int] = {}
    count, position = 1, 0
    while position < len(names):
        group = names[position : position + count]
        for _, arrays in tap(plain, [feed], groups=[group], with_outputs=with_outputs):
            found.update({name: array.nbytes for name, array in arrays.items()})
        position += count
        count = count * 2 if sum(found[name] for name in group if name in found) < 16 * MIB else 1
    return found


def plain_peak(facts: GraphFacts, sizes: Mapping[str, int]) -> int:
    """Bytes of the tensors alive at once in plain inference, at most; what inner graphs compute is left out."""
    nodes = [node for node in facts.nodes if not node.scope]
    position = {node.name: index for index, node in enumerate(nodes)}
    expiring: dict[int, int] = {}
    alive = peak = 0
    for index, node in enumerate(nodes):
        for name in (output for output in node.outputs if output):
            readers = facts.tensors[name].readers
            # What an inner graph reads, and what the model returns, stays to the end.
            last = max((position.get(use.node, len(nodes)) for use in readers), default=index)
            last = len(nodes) if facts.tensors[name].is_output else last
            expiring[last] = expiring.get(last, 0) + sizes.get(name, 0)
            alive += sizes.get(name, 0)
        peak = max(peak, alive)
        alive -= expiring.pop(index, 0)
    return peak


def feed_bytes(feed: Feed) -> int:
    """Bytes of a feed's arrays."""
    return sum(value.nbytes for value in feed.values() if isinstance(value, np.ndarray))


# --- what a report says ---------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Meter:
    """A run's memory, for its report. plan: of the pass that takes most; passes: how often the data is read."""

    bound: int | None = None
    plan: TapPlan | None = None
    passes: int | None = None
    peak: Peak | None = None

    def planned(self, plan: TapPlan | None) -> None:
        """Note the plan of one more pass over the data."""
        self.passes = (self.passes or 0) + 1
        if plan is not None and (self.plan is None or plan.estimate > self.plan.estimate):
            self.plan = plan

    @contextmanager
    def watching(self, bound: int | None) -> Iterator[None]:
        """Watch the memory of a run that has a bound."""
        if bound is None:
            yield
            return
        self.bound = bound
        return_freed_blocks()
        with watched_memory() as self.peak:
            yield

    def info(self) -> MemoryInfo | None:
        """What a report says; None without a bound."""
        if self.bound is None:
            return None
        return MemoryInfo(
            bound_bytes=self.bound,
            groups=None if self.plan is None else len(self.plan.groups),
            passes=self.passes,
            estimated_peak_bytes=None if self.plan is None else self.plan.estimate,
            measured_peak_bytes=None if self.peak is None else self.peak.bytes,
        )
