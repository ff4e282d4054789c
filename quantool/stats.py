"""Statistics of a model's tensors, and the ``.qcal`` file that keeps them.

A ``.qcal`` file is a zip archive of three members, in this order, with fixed timestamps:

- ``header.json``: format, version, model_sha256, samples, full, and for each tensor, sorted by name, its kind,
  counts, extrema (null where there are none), the sum (a hexadecimal integer in units of 2^-149), the number
  of occupied buckets, and the averages of an ordered statistic.
- ``keys.bin``: the keys of the occupied buckets of all tensors, one after the other, little-endian uint16.
- ``counts.bin``: their counters, little-endian int64.

Equal statistics give equal bytes. Nothing in the file is executed when it is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from calibrators import Extrema, Histogram, MovingAverage, Statistic
from quantool import qcal
from quantool.errors import DataError, QuantoolError


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What one pass over the data found out about each tensor.

    Attributes:
        tensors: tensor name -> statistic.
        model_sha256: hash of the model that produced the tensors.
        samples: how many feeds went in.
        full: every element was counted, also of large tensors.
    """

    tensors: Mapping[str, Statistic] = field(default_factory=dict)
    model_sha256: str = ""
    samples: int = 0
    full: bool = False

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
        merged = {name: _merged(name, self.tensors[name], other.tensors[name]) for name in sorted(self.tensors)}
        return Stats(
            tensors=merged,
            model_sha256=self.model_sha256,
            samples=self.samples + other.samples,
            full=self.full,
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
        header = qcal.Header(model_sha256=self.model_sha256, samples=self.samples, full=self.full)
        return qcal.encode(header, self.tensors)

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
        header, tensors = qcal.decode(content, where=str(path))
        return cls(tensors=tensors, model_sha256=header.model_sha256, samples=header.samples, full=header.full)


def _require_same_origin(a: Stats, b: Stats) -> None:
    b.require_model(a.model_sha256)
    if a.full != b.full:
        raise _not_mergeable("one counted every element, the other a share of large tensors", "statistics")
    if odd := sorted(a.tensors.keys() ^ b.tensors.keys()):
        raise _not_mergeable(f"{len(odd)} tensors are in one of them only", f"tensor '{odd[0]}'")


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
