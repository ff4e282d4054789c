"""The run's samples: where they come from, which calibrate, which verify. Read once, at most 16 kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from quantool import graph
from quantool.data import DataOptions, FeedSource, InputSpec, find_beside, open_data, split_feeds
from quantool.recipe import Recipe
from quantool.requests import DataSource
from quantool.schema import Feed, Note

#: feeds that a rewrite of the float graph is checked on
PROBES = 2
#: feeds kept by a comparison, to time both models on
TIMED = 16


class Samples:
    """The feeds of one run.

    Attributes:
        calibrates: there are feeds to calibrate on, not only to verify.
        description: the source in words, for the report.
        note: a warning about the source, such as random data.
        count: feeds that calibrated; known once `calibration` or `drain` ended.
        held_out: none of the feeds in `kept` calibrated; known then too.
        kept: feeds for whatever must run the model again; known then too.
    """

    def __init__(self, source: FeedSource | None, verify: FeedSource | None, *, beside: bool, keep_all: bool) -> None:
        main = source or verify
        assert main is not None
        self.calibrates = source is not None
        self.description = f"{main.description} (beside the model)" if beside else main.description
        self.note = _random_note(main) if main.random else None
        self.count = 0
        self.held_out = verify is not None
        self.kept: tuple[Feed, ...] = ()
        self._verify = verify
        self._keep_all = keep_all
        self._feeds: Iterator[Feed] = iter(main)
        self._peeked: list[Feed] = []

    def probes(self) -> Sequence[Feed]:
        """The first feeds; they are not used up."""
        if not self._peeked:
            self._peeked = list(islice(self._feeds, PROBES))
        return self._peeked

    def calibration(self) -> Iterator[Feed]:
        """The feeds that calibrate, once; what verifies is known when it ends."""
        feeds = chain(self._peeked, self._feeds)
        if self._keep_all or self._verify is not None:
            for feed in feeds:
                self.count += 1
                yield feed
            self.kept = () if self._verify is None else tuple(islice(iter(self._verify), TIMED))
            return
        split = split_feeds(feeds)
        for feed in split:
            self.count += 1
            yield feed
        self.kept, self.held_out = split.verification, split.held_out

    def drain(self) -> None:
        """Read everything without calibrating, so that `kept` is known; nothing counts as calibrated then."""
        for _ in self.calibration():
            pass
        self.held_out = True

    def verification(self) -> Iterable[Feed]:
        """The feeds that verify: all of the verification data, else those kept."""
        return self.kept if self._verify is None else self._verify

    def everything(self) -> Iterator[Feed]:
        """Every feed in order, once; the first ones are kept."""
        kept: list[Feed] = []
        for feed in chain(self._peeked, self._feeds):
            self.count += 1
            if len(kept) < TIMED:
                kept.append(feed)
            yield feed
        self.kept = tuple(kept)


def open_samples(
    data: DataSource | None,
    verify_data: DataSource | None,
    loaded: graph.Loaded,
    *,
    recipe: Recipe,
    progress: bool,
    keep_all: bool = False,
) -> Samples | None:
    """The run's samples, or None without any. Data beside the model is used where none is named."""
    inputs = input_specs(loaded)
    options = data_options(recipe)
    beside = None
    if data is None and verify_data is None and loaded.source.path is not None:
        beside = find_beside(Path(loaded.source.path))
    chosen = data if data is not None else beside
    source = None if chosen is None else open_data(chosen, inputs, options)
    verify = None if verify_data is None else open_data(verify_data, inputs, options)
    if source is None and verify is None:
        return None
    return Samples(source, verify, beside=beside is not None, keep_all=keep_all)


def input_specs(loaded: graph.Loaded) -> list[InputSpec]:
    """What the model must be fed; an input that nothing reads may be absent."""
    return [InputSpec(name=name, dtype=dtype, shape=shape) for name, dtype, shape in graph.input_specs(loaded)]


def data_options(recipe: Recipe) -> DataOptions:
    """How the recipe says that data is read."""
    return DataOptions(
        samples=recipe.samples,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        preprocess=recipe.preprocess,
        allow_nonfinite=recipe.allow_nonfinite,
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
