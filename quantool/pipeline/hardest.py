"""The few samples with the largest activations, which a small random choice would miss.

A range is often right for most samples and cuts a few badly. Those few show it, so they judge too.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy

import numpy as np

from quantool.data.held_out import content_hash
from quantool.schema import AnyArray, Feed

MOST = 4
#: larger feeds are not kept: the choice of samples to verify on has its own bound
MOST_BYTES = 16 * 1024 * 1024


class Hardest:
    """Watches feeds and the activations that they make, and keeps the hardest feeds, whatever their order.

    A feed's hardness is the sum over the tensors of log2 of the largest absolute value, so that every tensor counts
    alike whatever its scale.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[float, str, Feed]] = []
        self._current: Feed = {}
        self._peaks: list[float] = []

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """The hardest feeds so far, at most four."""
        return tuple(feed for _, _, feed in self._kept)

    def watch(self, feeds: Iterable[Feed]) -> Iterator[Feed]:
        """Pass feeds on, remembering which one is under way; it is rated when the next one is asked for."""
        for feed in feeds:
            self._current, self._peaks = feed, []
            yield feed
            self._rate()

    def judge(self, stream: Iterable[tuple[int, dict[str, AnyArray]]]) -> Iterator[tuple[int, Mapping[str, AnyArray]]]:
        """Pass the activations of the watched feeds on, in one piece or several, adding up how hard they are.

        They are dropped before the next ones are asked for, whoever still holds the mapping.
        """
        for sample, arrays in stream:
            peaks = [max(float(a.max()), -float(a.min())) for a in arrays.values() if a.size]
            self._peaks += [math.log2(peak) for peak in peaks if 0 < peak < math.inf]
            yield sample, arrays
            arrays.clear()

    def _rate(self) -> None:
        hardness = math.fsum(self._peaks)  # whatever the order of the pieces
        full = len(self._kept) == MOST
        if full and -hardness > self._kept[-1][0]:
            return
        if sum(np.asarray(array).nbytes for array in self._current.values()) > MOST_BYTES:
            return
        digest = content_hash(self._current)
        if all(digest != known for _, known, _ in self._kept):
            insort(self._kept, (-hardness, digest, deepcopy(dict(self._current))), key=lambda entry: entry[:2])
            del self._kept[MOST:]
