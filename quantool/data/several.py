"""Several sources: one after the other where each holds all inputs, side by side where each holds its own."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import partial
from itertools import chain, zip_longest

from quantool.data.decoder_inputs import fillable
from quantool.data.labels import is_label
from quantool.data.spec import InputSpec, RawFeed, RawFeeds
from quantool.errors import DataError


def combined(parts: list[RawFeeds], inputs: tuple[InputSpec, ...]) -> RawFeeds:
    """The feeds of several sources, matched by the names of the inputs.

    A source that tells its names only while it is read is taken to hold all inputs.

    Raises:
        DataError: the sources are neither complete nor complementary, or differ in length.
    """
    every = frozenset(spec.name for spec in inputs)
    lengths = [part.length for part in parts]
    needed = frozenset(spec.name for spec in inputs if spec.required) - fillable(inputs)
    held = [every if len(parts) == 1 or part.names is None else part.names() for part in parts]
    covered = [names & every for names in held]
    if all(names >= needed for names in covered):
        return RawFeeds(
            description=" + ".join(part.description for part in parts),
            read=lambda: chain.from_iterable(part.read() for part in parts),
            length=None if None in lengths else sum(length for length in lengths if length),
            random=any(part.random for part in parts),
            prepared=any(part.prepared for part in parts),
        )
    if missing := needed.difference(*covered):
        raise _missing(min(missing), sorted(frozenset().union(*held) - every))
    if sum(map(len, covered)) > len(frozenset().union(*covered)) or not all(covered):
        raise _neither(parts, covered)
    return _side_by_side(parts)


def _side_by_side(parts: list[RawFeeds]) -> RawFeeds:
    known = [part for part in parts if part.length is not None]
    for part in known:
        if part.length != known[0].length:
            raise _uneven(f"{known[0].description} and {part.description} differ in their numbers of samples", part)

    def read() -> Iterator[RawFeed]:
        rows = zip_longest(*(part.read() for part in parts))
        for number, row in enumerate(rows):
            if None in row:
                part = parts[row.index(None)]
                raise _uneven(f"{part.description} ends after {number} samples, and another source goes on", part)
            origins = [origin for origin, _ in row if origin]
            yield ", ".join(origins), partial(_merged, row)

    return RawFeeds(
        description=" with ".join(part.description for part in parts),
        read=read,
        length=known[0].length if known else None,
        random=any(part.random for part in parts),
        prepared=any(part.prepared for part in parts),
    )


def _merged(row: tuple[RawFeed, ...]) -> dict[str, object]:
    merged: dict[str, object] = {}
    for _, load in row:
        feed = load()
        assert isinstance(feed, dict), "sources that know their names yield dicts"
        merged |= feed
    return merged


def _missing(name: str, unknown: list[str]) -> DataError:
    others = [other for other in unknown if not is_label(other)]
    near = difflib.get_close_matches(name, others, n=1) or (others if len(others) == 1 else [])
    return DataError(
        "missing-input",
        f"no source holds input '{name}'",
        where=f"input '{name}', --data",
        fix=f"Rename '{near[0]}' to '{name}'." if near else f"Add --data for it, such as {name}.npy.",
    )


def _neither(parts: list[RawFeeds], covered: list[frozenset[str]]) -> DataError:
    held = "; ".join(
        f"{part.description} holds {', '.join(map(repr, sorted(names))) or 'no input'}"
        for part, names in zip(parts, covered, strict=True)
    )
    return DataError(
        "mixed-sources",
        f"the sources neither hold all inputs each nor each input once: {held}",
        where="--data",
        fix="Give each input in one source, or all inputs in every source.",
    )


def _uneven(what: str, part: RawFeeds) -> DataError:
    return DataError(
        "uneven-sources",
        what,
        where=part.description,
        fix="Sources of different inputs are matched sample by sample: give each the same number of samples.",
    )
