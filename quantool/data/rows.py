"""One .npz or .npy file whose rows are the samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from quantool.data.archive import Layout, RowReader, layouts, row_readers
from quantool.data.decoder_inputs import fillable
from quantool.data.labels import is_label
from quantool.data.spec import DataOptions, InputSpec, RawFeed, RawFeeds, one_input
from quantool.errors import DataError, OptionError
from quantool.schema import AnyArray


@dataclass(frozen=True, slots=True)
class _Cut:
    """How an array becomes feeds: how many there are, of how many rows, and whether axis 0 falls away.

    feeds None: the array has no axis to cut, and every feed holds it.
    """

    feeds: int | None
    rows: int
    left_over: int
    unstacked: bool


def read_rows(path: Path, inputs: tuple[InputSpec, ...], options: DataOptions) -> RawFeeds:
    """Cut a file's arrays into feeds.

    An array of the input's rank is cut along axis 0: into single rows, or batches of the size asked for, where the
    model's batch is symbolic, else into feeds of the fixed size. An array with one axis more than the input holds
    one feed for each entry of axis 0. Of arrays that belong to no input, type and shape are passed on for the check.
    """
    found = layouts(path)
    specs = {spec.name: spec for spec in inputs}
    if list(found) == [""]:
        needed = tuple(spec for spec in inputs if spec.name not in fillable(inputs))
        specs = {"": one_input(needed, named=path.stem, where=str(path), kind="a .npy file")}
    cuts = {key: _cut(layout, specs[key], options=options, path=path) for key, layout in found.items() if key in specs}
    if options.labels and cuts:
        cuts |= _label_cuts(found, specs, next(iter(cuts.values())))
        specs |= {key: InputSpec(name=key, dtype="", shape=None) for key in cuts.keys() - specs.keys()}
    feeds = _common_length({specs[key].name: cut for key, cut in cuts.items()}, path)
    names = {key: specs[key].name for key in cuts}
    others = {key: _unread(layout) for key, layout in found.items() if key not in cuts}
    return RawFeeds(
        description=_words(path, cuts, feeds),
        read=lambda: _feeds(path, cuts, names, others),
        names=lambda: frozenset((*names.values(), *others)),
        length=feeds,
    )


def _cut(layout: Layout, spec: InputSpec, *, options: DataOptions, path: Path) -> _Cut:
    rank = None if spec.shape is None else len(spec.shape)
    if rank is not None and len(layout.shape) == rank + 1:
        return _Cut(layout.shape[0], 1, 0, True)
    if not layout.shape:
        return _Cut(None, 1, 0, False)
    batch = spec.batch if spec.batch is not None else options.batch_size or 1
    if options.batch_size not in (None, batch):
        raise OptionError(
            "batch-size",
            f"--batch-size is {options.batch_size}, and the batch of input '{spec.name}' is fixed at {batch}",
            where="--batch-size",
            fix="Leave the option out.",
        )
    if layout.shape[0] and (batch == 0 or layout.shape[0] < batch) and rank == len(layout.shape):
        raise DataError(
            "too-few-rows",
            f"the array '{spec.name}' has {layout.shape[0]} rows, and the model takes {batch} at a time",
            where=f"input '{spec.name}', {path}",
            fix=f"Give at least {batch} rows along axis 0.",
        )
    return _Cut(layout.shape[0] // batch, batch, layout.shape[0] % batch, False)


def _label_cuts(found: Mapping[str, Layout], inputs: Mapping[str, InputSpec], like: _Cut) -> dict[str, _Cut]:
    """Labels are cut along axis 0 as the inputs are."""
    labels = {key: layout for key, layout in found.items() if is_label(key) and key not in inputs and layout.shape}
    return {key: replace(like, feeds=layout.shape[0] // like.rows) for key, layout in labels.items()}


def _common_length(cuts: Mapping[str, _Cut], path: Path) -> int:
    """The number of feeds; 1 where nothing can be cut."""
    lengths = {name: cut.feeds for name, cut in cuts.items() if cut.feeds is not None}
    if len(set(lengths.values())) <= 1:
        return next(iter(lengths.values()), 1)
    (one, first), (other, second) = [
        next(item for item in lengths.items() if item[1] == pick(lengths.values())) for pick in (max, min)
    ]
    raise DataError(
        "uneven-rows",
        f"the array '{one}' makes {first} feeds and '{other}' makes {second}",
        where=f"input '{other}', {path}",
        fix="Give every array the same number of samples; repeat what all samples share.",
    )


def _unread(layout: Layout) -> AnyArray:
    """An array without content that has the type and shape of a row."""
    return np.broadcast_to(np.zeros((), layout.dtype), (1, *layout.shape[1:]))


def _words(path: Path, cuts: Mapping[str, _Cut], feeds: int) -> str:
    rows = max((cut.rows for cut in cuts.values()), default=1)
    left_over = max((cut.left_over for cut in cuts.values()), default=0)
    size = f" of {rows} rows" if rows > 1 else ""
    rest = f"; the last {left_over} rows fill no feed and are left out" if left_over else ""
    return f"{path} ({feeds} {'feed' if feeds == 1 else 'feeds'}{size}{rest})"


def _feeds(
    path: Path, cuts: Mapping[str, _Cut], names: Mapping[str, str], others: Mapping[str, AnyArray]
) -> Iterator[RawFeed]:
    with row_readers(path, cuts) as readers:
        shared = {**others, **{names[key]: readers[key].all() for key, cut in cuts.items() if cut.feeds is None}}
        cut_up = {key: cut for key, cut in cuts.items() if cut.feeds is not None}
        length = next((cut.feeds for cut in cut_up.values()), 1) or 0

        def load(number: int) -> dict[str, AnyArray]:
            return shared | {names[key]: _entry(readers[key], cut, number) for key, cut in cut_up.items()}

        yield from (("", partial(load, number)) for number in range(length))


def _entry(reader: RowReader, cut: _Cut, number: int) -> AnyArray:
    rows = reader.rows(number * cut.rows, cut.rows)
    return rows[0] if cut.unstacked else rows
