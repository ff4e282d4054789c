"""The run's samples: where they come from, which calibrate, which verify. Read once, at most 16 kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

from quantool import graph
from quantool.data import DataOptions, FeedSource, Findings, InputSpec, find_beside, open_data, split_feeds
from quantool.data.held_out import FITTING_FEEDS, MOST_BYTES, MOST_FEEDS, short_hash
from quantool.data.labels import labels_of
from quantool.pipeline.hardest import MOST
from quantool.recipe import Calibrator, Recipe
from quantool.report.model import OF_RANGES, DataInfo
from quantool.report.wording import plural
from quantool.requests import DataSource
from quantool.schema import Feed, GraphFacts, Note
from quantool.stats import Stats

#: feeds that a rewrite of the float graph is checked on
PROBES = 2
#: feeds kept by a comparison, to time both models on
TIMED = 16

#: operators that scale or shift values, and those that only move them
_SCALES = ("Add", "BatchNormalization", "Div", "Mul", "Sub")
_MOVES = ("Cast", "Identity", "Pad", "Resize", "Slice", "Transpose")


class Samples:
    """The feeds of one run.

    Attributes:
        beside: the data beside the model, where that was chosen.
        calibrates: there are feeds to calibrate on, not only to verify.
        description: the source in words, for the report: of what calibrates, else of what verifies.
        length: how many feeds the source has, None where only reading them tells.
        note: a warning about the source, such as random data.
        count: feeds that calibrated, or were read where nothing calibrates; known once `calibration` or `drain` ended.
        held_out: none of the feeds in `kept` calibrated, None where unknown; known then too.
        kept: feeds to judge on; known then too.
        fitting: feeds that calibrated, for what is fitted to samples; known then too.
    """

    def __init__(
        self,
        source: FeedSource | None,
        verify: FeedSource | None,
        *,
        beside: Path | None,
        keep_all: bool,
        whole: FeedSource | None = None,
    ) -> None:
        main = source or verify
        assert main is not None
        self.calibrates = source is not None
        self.description = f"{main.description} (beside the model)" if beside is not None else main.description
        self.note = next((_random_note(s) for s in (source, verify) if s is not None and s.random), None)
        self.length = main.length
        self.beside = beside
        self.count = 0
        self.held_out: bool | None = verify is not None
        self.kept: tuple[Feed, ...] = ()
        self.fitting: tuple[Feed, ...] = ()
        self._has_verify = verify is not None
        self._verify_description = "" if verify is None else verify.description
        self._keep_all = keep_all
        self._whole = whole
        # Each source is read through one iterator, once: it may be a generator.
        self._findings = Findings(main)
        self._feeds: Iterator[Feed] = self._findings.watch(source or ())
        self._verify: Iterator[Feed] = iter(verify or ())

    @property
    def most_kept(self) -> int:
        """How many feeds are held at a time, at most, the one under way not counted."""
        return MOST if self._keep_all else MOST + MOST_FEEDS + FITTING_FEEDS

    def probes(self) -> Sequence[Feed]:
        """The first feeds; they are not used up. A shard gives those of the whole, so that all shards see the same."""
        if self._whole is not None:
            return [_own(feed) for feed in islice(self._whole, PROBES)]
        found = [_own(feed) for feed in islice(self._feeds if self.calibrates else self._verify, PROBES)]
        if self.calibrates:
            self._feeds = chain(found, self._feeds)
        else:
            self._verify = chain(found, self._verify)
        return found

    @property
    def verifies_on(self) -> str:
        """The source of the feeds that verify, in words."""
        return self._verify_description or self.description

    def has_labels(self) -> bool:
        """Whether the first feed that verifies knows its labels; it is not used up."""
        feeds = self._verify if self._has_verify else self._feeds
        first = [_own(feed) for feed in islice(feeds, 1)]
        if self._has_verify:
            self._verify = chain(first, self._verify)
        else:
            self._feeds = chain(first, self._feeds)
        return any(labels_of(feed) for feed in first)

    def calibration(self) -> Iterator[Feed]:
        """The feeds that calibrate, once; what verifies is known when it ends."""
        if self._keep_all:
            for feed in self._feeds:
                self.count += 1
                yield feed
            return
        split = split_feeds(self._feeds, most_feeds=0 if self._has_verify else MOST_FEEDS)
        for feed in split:
            self.count += 1
            yield feed
        self.fitting = split.fitting
        if self._has_verify:
            self.kept = _first(self._verify)
        else:
            self.kept, self.held_out = split.verification, split.held_out

    def drain(self, *, held_out: bool | None = True) -> None:
        """Make `kept` known where nothing calibrates. held_out: None where ranges from elsewhere leave it unknown."""
        if self._has_verify:
            self.kept, self.description = _first(self._verify), self._verify_description
            return
        split = split_feeds(self._feeds)
        for _ in split:
            pass
        self.count, self.kept, self.held_out = split.samples, split.verification, held_out

    def verification(self) -> Iterator[Feed]:
        """The feeds that verify, once: all of the verification data, else those kept."""
        return self._findings.verifying(chain(self.kept, self._verify))

    def notes(self, stats: Stats, recipe: Recipe, facts: GraphFacts) -> tuple[Note, ...]:
        """Warnings about the feeds behind statistics. Where all that verify are among them, none is held out."""
        found = self._findings.notes(
            stats.feeds,
            samples=stats.samples,
            calibrator=recipe.calibrator or Calibrator.MSE,
            scaled=_scaled_inside(facts),
            where=" + ".join(stats.sources) or self.description,
        )
        if self.kept and self._has_verify and {short_hash(feed) for feed in self.kept} <= self._findings.calibrated:
            self.held_out = False
        return found

    def overlap(self) -> tuple[Note, ...]:
        """A warning where feeds that verify calibrated too, though they are said to be held out; known at the end."""
        return self._findings.overlap() if self._has_verify or self.held_out else ()

    def everything(self) -> Iterator[Feed]:
        """Every feed in order, once; the first ones are kept."""
        self.kept = _first(self._feeds)
        for feed in chain(self.kept, self._feeds):
            self.count += 1
            yield feed


@dataclass(frozen=True, slots=True)
class Judging:
    """Feeds that verify one candidate after the other. kept: those to time on; feeds: all, as often as asked."""

    kept: Sequence[Feed]
    feeds: Iterable[Feed]

    def verification(self) -> Iterator[Feed]:
        """The feeds that verify."""
        return iter(self.feeds)

    def overlap(self) -> tuple[Note, ...]:
        """No warning: whoever made the feeds known has warned."""
        return ()


def _first(feeds: Iterator[Feed]) -> tuple[Feed, ...]:
    """The first feeds, one at least, as many as are kept for timing and no more bytes than the split may keep."""
    kept: list[Feed] = []
    size_bytes = 0
    while len(kept) < TIMED and size_bytes < MOST_BYTES and (feed := next(feeds, None)) is not None:
        kept.append(_own(feed))
        size_bytes += sum(map(_size, feed.values()))
    return tuple(kept)


def _scaled_inside(facts: GraphFacts) -> frozenset[str]:
    """The inputs whose values the model scales or shifts first."""
    return frozenset(name for name in facts.inputs if _is_scaled(facts, name))


def _is_scaled(facts: GraphFacts, tensor: str) -> bool:
    readers = [facts.by_name[use.node] for use in facts.readers(tensor)]
    return bool(readers) and all(
        node.op_type in _SCALES or (node.op_type in _MOVES and _is_scaled(facts, node.outputs[0])) for node in readers
    )


def _own(feed: Feed) -> Feed:
    """A copy, because a source may reuse its arrays for the next feed."""
    return deepcopy(feed)


def _size(value: object) -> int:
    """The bytes of a feed's entry, which is a list where the input is a sequence."""
    return sum(map(_size, value)) if isinstance(value, list) else int(getattr(value, "nbytes", 0))


def open_samples(
    data: DataSource | None,
    verify_data: DataSource | None,
    loaded: graph.Loaded,
    *,
    recipe: Recipe,
    progress: bool,
    keep_all: bool = False,
    shard: tuple[int, int] | None = None,
) -> Samples | None:
    """The run's samples, or None without any. Data beside the model is used where none is named."""
    inputs = input_specs(loaded)
    options = data_options(recipe, shard)
    beside = None
    if data is None and loaded.source.path is not None:
        beside = find_beside(Path(loaded.source.path))
    chosen = data if data is not None else beside
    source = None if chosen is None else open_data(chosen, inputs, options)
    verify = None if verify_data is None else open_data(verify_data, inputs, options)
    if source is None and verify is None:
        return None
    # An iterator can be read once.
    again = source is not None and shard is not None and not isinstance(chosen, Iterator)
    whole = replace(source, options=data_options(recipe)) if again and source is not None else None
    return Samples(source, verify, beside=beside, keep_all=keep_all, whole=whole)


def data_info(samples: Samples) -> DataInfo:
    """The feeds of a run for its report, once they were read."""
    return DataInfo(source=samples.description, samples=samples.count, held_out=samples.held_out)


def ranges_info(stats: Stats, path: Path | None, samples: Samples | None) -> DataInfo:
    """The feeds behind ranges that were given."""
    source = f"{OF_RANGES}{'in memory' if path is None else f'of {path}'} ({plural(stats.samples, 'sample')})"
    if samples is None:
        return DataInfo(source=source, samples=stats.samples, held_out=None)
    new = {True: ", which did not calibrate", False: ", which calibrated too", None: ""}[samples.held_out]
    source = f"{source}, verified on {samples.description}{new}"
    return DataInfo(source=source, samples=stats.samples, held_out=samples.held_out)


def input_specs(loaded: graph.Loaded) -> list[InputSpec]:
    """What the model must be fed; an input that nothing reads may be absent."""
    return [InputSpec(name=name, dtype=dtype, shape=shape) for name, dtype, shape in graph.input_specs(loaded)]


def data_options(recipe: Recipe, shard: tuple[int, int] | None = None) -> DataOptions:
    """How the recipe says that data is read."""
    return DataOptions(
        samples=recipe.samples,
        shard=shard,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        preprocess=recipe.preprocess,
        allow_nonfinite=recipe.allow_nonfinite,
        labels=recipe.metric is not None,
        decode_tensor=graph.decode_tensor,
    )


def random_probe(loaded: graph.Loaded, *, seed: int) -> list[Feed]:
    """One made-up feed of the declared shapes, to compare float graphs on; it never calibrates."""
    return list(open_data("random", input_specs(loaded), DataOptions(samples=1, seed=seed)))


def _random_note(source: FeedSource) -> Note:
    return Note(
        code="random-data",
        what="the data is random: ranges and accuracy say nothing about real inputs",
        where=source.description,
        fix="Give real samples with --data.",
    )
