"""The header of a ``.qcal`` file: strict structures, so that an unknown field is an error and never lost."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

FORMAT: Final = "quantool-stats"
VERSION: Final = 2
#: version of each kind of statistic: what its numbers mean, and which elements are counted
STATISTIC_VERSIONS: Final[Mapping[str, int]] = {
    "extrema": 1, "histogram": 1, "moving-average": 1, "channels": 1, "gram": 1,
}  # fmt: skip


class Averages(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ordered part of a moving average."""

    samples: int
    decay: float
    weight: float
    minima: float
    maxima: float


class TensorRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tensor; the extrema are null where there are none."""

    name: str
    kind: str
    address: str
    count: int
    nonfinite: int
    minimum: float | None
    maximum: float | None
    buckets: int = 0
    averages: Averages | None = None


class ChannelsRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The channels of one tensor. exponents: of the grids that its sums lie on, ascending."""

    name: str
    address: str
    axis: int
    size: int
    rows: int
    exponents: tuple[int, ...]


class GramRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One Gram matrix, or one for each group. exponents: of the grids that its sums lie on, ascending."""

    key: str
    address: str
    groups: int
    size: int
    rows: int
    exponents: tuple[int, ...]


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the statistics belong to, and a row for each of them. data_sha256: of the member ``feeds.bin``."""

    format: str = FORMAT
    version: int = VERSION
    statistics: Mapping[str, int] = msgspec.field(default_factory=lambda: dict(STATISTIC_VERSIONS))
    model_sha256: str
    graph_sha256: str
    data_sha256: str
    samples: int
    sources: tuple[str, ...]
    full: bool
    tensors: tuple[TensorRow, ...] = ()
    channels: tuple[ChannelsRow, ...] = ()
    grams: tuple[GramRow, ...] = ()

    def address(self, kind: str, name: str) -> str:
        """What a statistic is a function of, as a hash: graph, tensor, version of the statistic, and data."""
        parts = (self.model_sha256, self.graph_sha256, name, kind, str(self.statistics.get(kind)), self.data_sha256)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


class VersionOnly(msgspec.Struct):
    """What every version of the header has."""

    format: str
    version: int


class Versions(msgspec.Struct):
    """What every header of this version has, whatever its statistics are."""

    statistics: dict[str, int]
