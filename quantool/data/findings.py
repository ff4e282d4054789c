"""Warnings about samples, gathered while they stream by, in memory that does not grow with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Final

import ml_dtypes  # noqa: F401  # registers bfloat16 and its kin as NumPy type names
import numpy as np

from quantool.data.held_out import short_hash
from quantool.data.source import FeedSource
from quantool.schema import AnyArray, Feed, Note

# How many samples ranges want, by the way they are chosen; extremes alone are right for what was seen.
ENOUGH: Final = {"mse": 16, "percentile": 16, "entropy": 16, "moving-average": 32}
# Elements of an array that are looked at: what holds for these holds for pixels, and costs little.
_LOOKED_AT = 256
_BRIGHT = 30
_WHITE = 255
_COLOURS = (3, 4)
_SMALLEST_SIDE = 8


@dataclass(slots=True)
class _Values:
    """What is known of an input; pixels: all samples so far may be pixels as they come out of a file."""

    pixels: bool = True
    peak: float = 0.0

    def look(self, shape: tuple[int, ...], some: AnyArray) -> None:
        """Judge a sample by its shape and some of its elements."""
        if not self.pixels:
            return
        with np.errstate(over="ignore"):  # a float64 beyond float32
            channels, values = _channels(shape), some.astype(np.float32)
        low, high = values.min(), values.max()
        self.pixels = channels > 0 and bool(low >= 0) and bool(high <= _WHITE)
        self.peak = max(self.peak, float(high))
        # Pixels that were resized are no whole numbers, and other arrays of one channel may be in that range too.
        if self.pixels and channels not in _COLOURS:
            self.pixels = bool((values == np.rint(values)).all())


class Findings:
    """What stands out in the samples of one run.

    Attributes:
        calibrated: hashes of the feeds that calibrated, once `notes` was told.
        verified: hashes of the feeds that verify, as far as they were read.
    """

    def __init__(self, source: FeedSource) -> None:
        self.calibrated: frozenset[int] = frozenset()
        self.verified: set[int] = set()
        self._source = source
        # Who prepares images by --preprocess has chosen the scale.
        chosen = source.raw.prepared
        self._values = {s.name: _Values() for s in source.inputs if "float" in s.dtype and not chosen}
        self._feeds = self._rows = self._constant = 0
        self._first_constant = 0

    def watch(self, feeds: Iterable[Feed]) -> Iterator[Feed]:
        """Pass feeds on, looking at their values."""
        for feed in feeds:
            self._look(feed)
            self._feeds += 1
            yield feed

    def verifying(self, feeds: Iterable[Feed]) -> Iterator[Feed]:
        """Pass feeds that verify on, remembering which they are."""
        for feed in feeds:
            self.verified.add(short_hash(feed))
            yield feed

    def notes(
        self, calibrated: Sequence[int], *, samples: int, calibrator: str, scaled: Set[str], where: str
    ) -> tuple[Note, ...]:
        """Warnings about what calibrated, none for random data.

        calibrated: hashes of the feeds; samples: how many there are; calibrator: how ranges are chosen; scaled: inputs
        that the model scales by itself; where: the source in words.
        """
        self.calibrated = frozenset(calibrated)
        if self._source.random:
            return ()
        rows = samples * self._rows // max(self._feeds, 1)
        enough = 0 if self._source.options.shard is not None else ENOUGH.get(calibrator, 0)
        found = [_unscaled(name, where) for name in sorted(self._unscaled() - scaled)]
        if self._source.options.preprocess is not None and not self._source.raw.prepared:
            found.append(_unprepared(self._source))
        found += [self._constants(where)] if self._constant else []
        if repeats := len(calibrated) - len(self.calibrated):
            found.append(_duplicates(repeats, len(calibrated), where))
        if rows < enough:
            found.append(_few(rows, enough, calibrator, where))
        return tuple(found)

    def overlap(self) -> tuple[Note, ...]:
        """A warning where samples that verify had calibrated too."""
        both = len(self.verified & self.calibrated)
        if not both:
            return ()
        return (
            Note(
                code="overlapping-data",
                what=f"{both} of {len(self.verified)} samples that verify calibrated too: "
                "the figures are better than they would be on new samples",
                where="verification",
                fix="Verify on samples that --data does not hold.",
            ),
        )

    def _look(self, feed: Feed) -> None:
        arrays = {name: array for name, array in feed.items() if isinstance(array, np.ndarray) and array.size > 1}
        constant = bool(arrays)
        for name, array in arrays.items():
            # An odd step meets every channel.
            some = array.reshape(-1)[:: array.size // _LOOKED_AT | 1]
            constant = constant and _is_constant(array, some)
            if name in self._values:
                self._values[name].look(array.shape, some)
        lengths = {array.shape[0] for array in arrays.values() if array.ndim > 1}
        self._rows += lengths.pop() if len(lengths) == 1 else 1
        if constant:
            self._first_constant = self._first_constant if self._constant else self._feeds
            self._constant += 1

    def _unscaled(self) -> set[str]:
        return {name for name, values in self._values.items() if values.pixels and values.peak > _BRIGHT}

    def _constants(self, where: str) -> Note:
        shard, shards = self._source.options.shard or (1, 1)
        return Note(
            code="constant-samples",
            what=f"{self._constant} of {self._feeds} samples hold one value throughout",
            where=f"sample {shard - 1 + shards * self._first_constant}, {where}",
            fix="Leave them out, if no real input is like that.",
        )


def _channels(shape: tuple[int, ...]) -> int:
    """How many channels a batch of images of this shape has; 0 where it is none."""
    if len(shape) == 4:
        for channels, sides in ((shape[1], shape[2:]), (shape[3], shape[1:3])):
            if channels in (1, *_COLOURS) and min(sides) >= _SMALLEST_SIDE:
                return channels
    return 0


def _is_constant(array: AnyArray, some: AnyArray) -> bool:
    """Whether all elements are equal, told by as few as possible."""
    return bool(some[-1] == some[0]) and bool((some == some[0]).all()) and bool((array == some[0]).all())


def _unscaled(name: str, where: str) -> Note:
    return Note(
        code="unscaled-values",
        what=f"the values of input '{name}' lie in 0 to 255, as pixels do; most models are trained on scaled values, "
        "and others saturate their first layers",
        where=f"input '{name}', {where}",
        fix="Prepare the samples as in training, such as x / 255. If the model was trained on pixels, all is well.",
    )


def _unprepared(source: FeedSource) -> Note:
    return Note(
        code="option-ignored",
        what=f"--preprocess {source.options.preprocess} prepares folders of images, and the data is none: "
        "it was taken as it is",
        where=source.description,
        fix="Prepare the samples yourself, or give a folder of images; else leave the option out.",
    )


def _duplicates(repeats: int, count: int, where: str) -> Note:
    return Note(
        code="duplicate-samples",
        what=f"{repeats} of {count} samples that calibrate repeat another one",
        where=where,
        fix="Give each sample once: repeats add no evidence.",
    )


def _few(rows: int, enough: int, calibrator: str, where: str) -> Note:
    return Note(
        code="few-samples",
        what=f"{rows} {'sample calibrates' if rows == 1 else 'samples calibrate'}, and {calibrator} ranges want "
        f"{enough} or more",
        where=where,
        fix="Give more samples with --data; a hundred are plenty.",
    )
