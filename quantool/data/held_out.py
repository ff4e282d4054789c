"""Choose feeds to verify on, in one pass and bounded memory, whatever the order of the feeds."""

from __future__ import annotations

import hashlib
from bisect import insort
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np

from quantool.data.labels import Labelled, labels_of
from quantool.schema import AnyArray, Feed

FEWEST = 16
MOST_FEEDS = 16
# Feeds that calibrate and stay as well, so that what is fitted to samples is never judged on the same ones.
FITTING_FEEDS = 12
MOST_BYTES = 256 * 1024 * 1024
# Of a small data set most must calibrate.
_SHARE = 4


class Hashed(Labelled):
    """A feed that knows the hash of its content, so that it is computed once a run."""

    __slots__ = ("digest",)

    def __init__(self, feed: Feed, digest: str) -> None:
        super().__init__(feed, labels_of(feed))
        self.digest = digest


@dataclass(frozen=True, slots=True, order=True)
class _Kept:
    digest: str
    number: int
    feed: Feed = field(compare=False)
    size_bytes: int = field(compare=False)


class Split:
    """Feeds divided into those that calibrate and those that verify.

    Iterate once, to the end: feeds that calibrate come as they are read, or late, when they fall out of the choice.
    Kept are the feeds with the smallest hashes of their content, at most 28 and 256 MiB, one at least. From 16 feeds
    on, the first quarter of them and at most 16 verify and do not calibrate, the next fit; with fewer all calibrate,
    and those kept verify and fit.

    Attributes:
        verification: the feeds to verify on, in the order of their hashes; filled at the end.
        fitting: feeds that calibrated, for what is fitted to samples in memory; in that order, filled then too.
        held_out: no feed that verifies calibrated.
        order: the number in the source of each feed that was yielded, so that errors can state it.
        samples: how many feeds the source had.
    """

    def __init__(self, feeds: Iterable[Feed], *, most_feeds: int = MOST_FEEDS, most_bytes: int = MOST_BYTES) -> None:
        self.verification: tuple[Feed, ...] = ()
        self.fitting: tuple[Feed, ...] = ()
        self.held_out = False
        self.order: list[int] = []
        self.samples = 0
        self._feeds = feeds
        self._most_feeds = most_feeds
        self._most_bytes = most_bytes

    def __iter__(self) -> Iterator[Feed]:
        kept: list[_Kept] = []
        # Once something was dropped, all that is larger is: the choice is a prefix in the order of hashes.
        limit: str | None = None
        for number, feed in enumerate(self._feeds):
            self.samples = number + 1
            digest = content_hash(feed)
            if limit is not None and digest >= limit:
                yield self._passed(number, Hashed(feed, digest))
                continue
            # A source may reuse its arrays for the next feed.
            own = Hashed(deepcopy(feed), digest)
            size_bytes = sum(array.nbytes for value in own.values() for array in _arrays(value))
            insort(kept, _Kept(digest, number, own, size_bytes))
            while self._too_many(kept):
                dropped = kept.pop()
                limit = dropped.digest
                yield self._passed(dropped.number, dropped.feed)
        yield from self._rest(kept)

    def _rest(self, kept: list[_Kept]) -> Iterator[Feed]:
        self.held_out = self.samples >= FEWEST
        share = min(self.samples // _SHARE, self._most_feeds) if self.held_out else self._most_feeds
        verifying = kept[:share]
        calibrating = kept[share:] if self.held_out else kept
        self.verification = tuple(entry.feed for entry in verifying)
        self.fitting = tuple(entry.feed for entry in calibrating[:FITTING_FEEDS])
        for entry in sorted(calibrating, key=lambda entry: entry.number):
            yield self._passed(entry.number, entry.feed)

    def _too_many(self, kept: list[_Kept]) -> bool:
        size_bytes = sum(entry.size_bytes for entry in kept)
        return len(kept) > self._most_feeds + FITTING_FEEDS or (len(kept) > 1 and size_bytes > self._most_bytes)

    def _passed(self, number: int, feed: Feed) -> Feed:
        self.order.append(number)
        return feed


def split_feeds(feeds: Iterable[Feed], *, most_feeds: int = MOST_FEEDS, most_bytes: int = MOST_BYTES) -> Split:
    """Divide feeds into calibration, which the result yields, and verification, which it holds at the end."""
    return Split(feeds, most_feeds=most_feeds, most_bytes=most_bytes)


def content_hash(feed: Feed) -> str:
    """A hash of names, types, shapes and elements; the order of the names does not count."""
    if isinstance(feed, Hashed):
        return feed.digest
    digest = hashlib.sha256()
    for name in sorted(feed):
        for array in _arrays(feed[name]):
            digest.update(f"{name}\0{array.dtype.name}\0{array.shape}\0".encode())
            if array.dtype.kind in "OU":
                digest.update("\0".join(map(str, array.flat)).encode())
            else:
                digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def short_hash(feed: Feed) -> int:
    """The first 8 bytes of a feed's hash, which tell the feeds of a run apart."""
    return int(content_hash(feed)[:16], 16)


def _arrays(value: object) -> list[AnyArray]:
    """The arrays of a feed's entry: one for a tensor, several for a sequence, none for an absent optional."""
    if isinstance(value, list):
        return [array for member in value for array in _arrays(member)]
    return [] if value is None else [np.asarray(value)]
