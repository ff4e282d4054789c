"""Find out what kind of data a source is, and hand out checked feeds one at a time."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from quantool.data.decoder_inputs import completed, in_words
from quantool.data.folder import ARRAY_SUFFIXES, data_sets_in, read_array_files, read_test_data_sets, visible
from quantool.data.function import names_callable, read_callable
from quantool.data.images import IMAGE_SUFFIXES, read_images
from quantool.data.json_lines import read_json_lines
from quantool.data.lint import checked_feed
from quantool.data.made_up import read_random
from quantool.data.rows import read_rows
from quantool.data.several import combined
from quantool.data.spec import DataOptions, InputSpec, RawFeed, RawFeeds, in_memory
from quantool.errors import DataError
from quantool.schema import AnyArray, Feed

RANDOM = "random"
PathReader = Callable[[Path, tuple[InputSpec, ...], DataOptions], RawFeeds]

# What a file's suffix means.
FILE_READERS: dict[str, PathReader] = {".npz": read_rows, ".npy": read_rows, ".jsonl": read_json_lines}
# What a folder is, by the first test that holds.
FOLDER_READERS: dict[str, tuple[Callable[[Path], bool], PathReader]] = {
    "test_data_set_*/input_*.pb": (lambda folder: bool(data_sets_in(folder)), read_test_data_sets),
    ".npz or .npy files": (lambda folder: bool(visible(folder, ARRAY_SUFFIXES)), read_array_files),
    "images": (lambda folder: bool(visible(folder, IMAGE_SUFFIXES)), read_images),
}


@dataclass(frozen=True, slots=True)
class FeedSource:
    """Checked feeds, loaded when their turn comes.

    Iterating starts anew each time, but for an iterator in memory, which can be read once.

    Attributes:
        raw: what the reader found.
        inputs: what the model takes.
        options: how to read.
    """

    raw: RawFeeds
    inputs: tuple[InputSpec, ...]
    options: DataOptions

    @property
    def description(self) -> str:
        """The source in words, for the report, and what is added to it."""
        held = frozenset[str]() if self.raw.names is None else self.raw.names()
        return self.raw.description + in_words(self.inputs, held)

    @property
    def random(self) -> bool:
        """Whether the feeds are made up."""
        return self.raw.random

    @property
    def length(self) -> int | None:
        """How many feeds there are, None where only reading them tells."""
        if self.raw.length is None:
            return None
        shard, shards = self.options.shard or (1, 1)
        every = self.raw.length if self.options.samples is None else min(self.raw.length, self.options.samples)
        return len(range(shard - 1, every, shards))

    def __iter__(self) -> Iterator[dict[str, AnyArray]]:
        """Each feed as the model takes it, of a shard its own; samples are counted over all shards.

        Raises:
            DataError: a feed does not fit, a file cannot be read, or there is no sample at all, in any shard.
        """
        shard, shards = self.options.shard or (1, 1)
        number = -1
        for number, (origin, load) in enumerate(islice(self.raw.read(), self.options.samples)):
            if number % shards != shard - 1:
                continue
            sample = f"sample {number} ({origin})" if origin else f"sample {number}"
            nonfinite, labels = self.options.allow_nonfinite, self.options.labels
            raw = completed(load(), self.inputs, sample=sample)
            yield checked_feed(raw, self.inputs, sample=sample, allow_nonfinite=nonfinite, labels=labels)
        if number < 0:
            names = ", ".join(f"'{spec.name}'" for spec in self.inputs) or "none"
            raise DataError(
                "no-samples",
                f"there is no sample in {self.description}",
                where=f"inputs {names}",
                fix="Give at least one sample; 100 or more calibrate well.",
            )


def open_data(
    source: str | Path | Sequence[str | Path] | Iterable[Feed],
    inputs: Iterable[InputSpec],
    options: DataOptions | None = None,
) -> FeedSource:
    """Open data for a model; nothing but headers is read yet.

    Args:
        source: a file or folder (see FILE_READERS and FOLDER_READERS), several (one after the other, or side by side
            where each holds other inputs), ``random``, ``package.module:callable``, or an iterable of feeds.
        inputs: what the model takes, in its order.
        options: how to read.

    Raises:
        DataError: the source does not exist, is of no known kind, or cannot be read.
        OptionError: an option does not fit the model or the data.
    """
    specs = tuple(inputs)
    chosen = DataOptions() if options is None else options
    return FeedSource(_raw_feeds(source, specs, chosen), specs, chosen)


def _raw_feeds(
    source: str | Path | Sequence[str | Path] | Iterable[Feed], inputs: tuple[InputSpec, ...], options: DataOptions
) -> RawFeeds:
    if isinstance(source, str | Path):
        return _named(source, inputs, options)
    if isinstance(source, list | tuple) and source and all(isinstance(part, str | Path) for part in source):
        return combined([_named(part, inputs, options) for part in source], inputs)
    return _in_memory(source)


def _named(source: str | Path, inputs: tuple[InputSpec, ...], options: DataOptions) -> RawFeeds:
    path = Path(source)
    if source == RANDOM:
        return read_random(inputs, options)
    if isinstance(source, str) and names_callable(source) and not path.exists():
        return read_callable(source)
    if path.is_dir():
        for is_one, reader in FOLDER_READERS.values():
            if is_one(path):
                return reader(path, inputs, options)
        raise _unknown_kind(path, f"the folder holds none of: {', '.join(FOLDER_READERS)}")
    if not path.exists():
        raise _missing(path)
    if path.suffix.lower() not in FILE_READERS:
        raise _unknown_kind(path, f"files of type '{path.suffix}' are not read as data")
    return FILE_READERS[path.suffix.lower()](path, inputs, options)


def _in_memory(source: Iterable[object]) -> RawFeeds:
    if isinstance(source, Mapping):
        source = [source]
    if not isinstance(source, Iterable):
        raise DataError(
            "data-type",
            f"data is a {type(source).__name__}",
            where="data",
            fix="Give a path or an iterable of dicts from input name to array.",
        )
    once = isinstance(source, Iterator)
    started = False

    def read() -> Iterator[RawFeed]:
        nonlocal started
        if started and once:
            raise DataError(
                "data-consumed",
                "the iterator was read already, and it can be read once",
                where="data",
                fix="Give a list, or a path.",
            )
        started = True
        return map(in_memory, source)

    return RawFeeds(description="feeds in memory", read=read, length=len(source) if isinstance(source, Sized) else None)


def _missing(path: Path) -> DataError:
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, sorted(siblings), n=1)
    return DataError(
        "data-missing",
        "there is no such file or folder",
        where=str(path),
        fix=f"Did you mean '{path.parent / near[0]}'?" if near else "Check the path.",
    )


def _unknown_kind(path: Path, what: str) -> DataError:
    return DataError(
        "data-kind",
        what,
        where=str(path),
        fix=f"Give one of: {', '.join(FILE_READERS)} files, or a folder of {', '.join(FOLDER_READERS)}.",
    )
