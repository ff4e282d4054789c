"""Statistics of a model's tensors, and the ``.qcal`` file that keeps them.

A ``.qcal`` file is a zip archive of these members, in this order, with fixed timestamps, all numbers little-endian:

- ``header.json``: format, version, the version of each kind of statistic, model_sha256, graph_sha256 (of the normalized
  graph), data_sha256, samples, sources, full, and a row for each statistic with its address: a hash of graph, tensor,
  version and data. A tensor's row has its kind, counts, extrema (null where there are none), the number of
  occupied buckets, and the averages of an ordered statistic.
- ``feeds.bin``: the first 8 bytes of each feed's content hash, sorted, uint64.
- ``keys.bin``: the keys of the occupied buckets of all tensors, one after the other, uint16.
- ``counts.bin``: their counters, int64.
- ``channels.bin``: for each tensor with channels its lows and highs, float32, and its sums grid by grid, int64.
- ``grams.bin``: for each Gram matrix, grid by grid and group by group, its upper triangle, int64.

Equal statistics give equal bytes. Nothing in the file is executed when it is read.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

from calibrators import Extrema, Histogram, MovingAverage, Statistic
from quantool import qcal
from quantool.errors import DataError, QuantoolError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats(qcal.Contents):
    """What one pass over the data found out about each tensor; parts of one data set merge in any order."""

    @property
    def nonfinite(self) -> int:
        """How many NaN and infinite elements were skipped, over all tensors."""
        return sum(state.extrema.nonfinite for state in self.tensors.values())

    def merge(self, other: Stats) -> Stats:
        """The statistics of both data sets together, the same in either order.

        Raises:
            QuantoolError: other model, tensors, kinds or sampling; or moving averages, which have an order.
        """
        _require_same_origin(self, other)
        return replace(
            self,
            tensors=_both(self.tensors, other.tensors, _merged),
            channels=_both(self.channels, other.channels, lambda _, a, b: a.merge(b)),
            grams=_both(self.grams, other.grams, lambda _, a, b: a.merge(b)),
            samples=self.samples + other.samples,
            sources=tuple(sorted({*self.sources, *other.sources})),
            feeds=tuple(sorted((*self.feeds, *other.feeds))),
        )

    def require_model(self, model_sha256: str) -> None:
        """Refuse statistics of another model.

        Raises:
            QuantoolError: the hashes differ.
        """
        if self.model_sha256 != model_sha256:
            raise QuantoolError(
                "stats-other-model",
                f"the statistics belong to the model {self.model_sha256[:12] or '(unknown)'}, "
                f"not to {model_sha256[:12]}",
                where="statistics",
                fix="Calibrate this model, or name the .qcal file that belongs to it.",
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a ``.qcal`` file in one step, so that a reader sees the old file or the whole new one."""
        target = Path(path)
        partial = target.with_name(f".{target.name}.partial")
        try:
            partial.write_bytes(self.to_bytes())
            partial.replace(target)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise QuantoolError(
                "stats-unwritable",
                f"the file cannot be written: {error.strerror or error}",
                where=str(target),
                fix="Name a file in an existing folder that you may write to.",
            ) from error

    def to_bytes(self) -> bytes:
        """The content of a ``.qcal`` file; equal statistics give equal bytes."""
        buffer = io.BytesIO()
        qcal.write(buffer, self)
        return buffer.getvalue()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Stats:
        """Read a ``.qcal`` file.

        Raises:
            DataError: missing, damaged, or not such a file.
            QuantoolError: written in another version of the format.
        """
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise DataError(
                "stats-unreadable",
                f"the file cannot be read: {error.strerror or error}",
                where=str(path),
                fix="Name a .qcal file that `quantool calibrate` wrote.",
            ) from error
        return cls.from_bytes(content, where=str(path))

    @classmethod
    def from_bytes(cls, content: bytes, *, where: str = "statistics") -> Stats:
        """Read the content of a ``.qcal`` file; `where` is what errors call it.

        Raises:
            DataError: damaged, or not such a file.
            QuantoolError: written in another version of the format.
        """
        contents = qcal.decode(content, where=where)
        return cls(**{spec.name: getattr(contents, spec.name) for spec in fields(contents)})


def _require_same_origin(a: Stats, b: Stats) -> None:
    b.require_model(a.model_sha256)
    if a.full != b.full:
        raise _not_mergeable("one counted every element, the other a share of large tensors", "statistics")
    if a.graph_sha256 != b.graph_sha256:
        raise _not_mergeable("their normalized graphs differ", "statistics")
    for one, other in ((a.tensors, b.tensors), (a.channels, b.channels), (a.grams, b.grams)):
        if odd := sorted(one.keys() ^ other.keys()):
            raise _not_mergeable(f"{len(odd)} statistics are in one of them only", f"tensor '{odd[0]}'")


def _both(a: Mapping[str, T], b: Mapping[str, T], merged: Callable[[str, T, T], T]) -> dict[str, T]:
    return {name: merged(name, a[name], b[name]) for name in sorted(a)}


def _merged(name: str, a: Statistic, b: Statistic) -> Statistic:
    match a, b:
        case Extrema(), Extrema():
            return a.merge(b)
        case Histogram(), Histogram():
            return a.merge(b)
        case MovingAverage(), MovingAverage():
            return a.merge(b)
    raise _not_mergeable(f"one holds {a.kind}, the other {b.kind}", f"tensor '{name}'")


def _not_mergeable(what: str, where: str) -> QuantoolError:
    return QuantoolError(
        "stats-differ",
        f"the statistics cannot be merged: {what}",
        where=where,
        fix="Calibrate every part with the same options.",
    )
