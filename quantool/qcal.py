"""The bytes of a ``.qcal`` file (its members are described in :mod:`quantool.stats`)."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from calibrators import Extrema, Histogram, MovingAverage, Statistic
from calibrators.buckets import FIRST_KEY, LAST_KEY
from quantool.errors import DataError, QuantoolError

FORMAT: Final = "quantool-stats"
VERSION: Final = 1

_HEADER, _KEYS, _COUNTS = "header.json", "keys.bin", "counts.bin"
_KEY_TYPE, _COUNT_TYPE = np.dtype("<u2"), np.dtype("<i8")
# The earliest time that a zip archive can state: files must not depend on the clock.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_LARGEST_HEADER_BYTES = 1 << 28
# 2^63 times the largest float32, in units of 2^-149.
_LARGEST_SUM_BITS = 149 + 128 + 63


class Averages(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ordered part of a moving average, as the header holds it."""

    samples: int
    decay: float
    weight: float
    minima: float
    maxima: float


class TensorRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tensor, as the header holds it."""

    name: str
    kind: str
    count: int
    nonfinite: int
    minimum: float | None
    maximum: float | None
    buckets: int = 0
    total: str = "0"
    averages: Averages | None = None


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The header: what the statistics belong to, and a row for each tensor."""

    format: str = FORMAT
    version: int = VERSION
    model_sha256: str
    samples: int
    full: bool
    tensors: tuple[TensorRow, ...] = ()


class _Version(msgspec.Struct):
    """What every version of the header has."""

    format: str
    version: int


def encode(header: Header, tensors: Mapping[str, Statistic]) -> bytes:
    """The file of these statistics; the header's own rows are replaced."""
    states = [(name, tensors[name]) for name in sorted(tensors)]
    header = msgspec.structs.replace(header, tensors=tuple(_row(name, state) for name, state in states))
    histograms = [histogram for _, state in states if (histogram := _histogram(state)) is not None]
    members = {
        _HEADER: msgspec.json.encode(header),
        _KEYS: b"".join(h.keys.astype(_KEY_TYPE).tobytes() for h in histograms),
        _COUNTS: b"".join(h.counts.astype(_COUNT_TYPE).tobytes() for h in histograms),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            # The default differs between systems.
            info.create_system, info.compress_type = 3, zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return buffer.getvalue()


def decode(content: bytes, *, where: str) -> tuple[Header, dict[str, Statistic]]:
    """Read a file's bytes back.

    Raises:
        DataError: damaged, or not such a file.
        QuantoolError: another version of the format.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            header = _header(_read(archive, _HEADER, _LARGEST_HEADER_BYTES), where)
            buckets = sum(row.buckets for row in header.tensors)
            keys = np.frombuffer(_read(archive, _KEYS, buckets * 2), _KEY_TYPE)
            counts = np.frombuffer(_read(archive, _COUNTS, buckets * 8), _COUNT_TYPE)
        return header, _states(header, keys, counts)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, RuntimeError, ValueError) as error:
        # msgspec's errors are ValueErrors; an encrypted member is a RuntimeError.
        raise DataError(
            "stats-damaged",
            f"this is no undamaged .qcal file: {error}",
            where=where,
            fix="Name a file that `quantool calibrate` or `quantool merge` wrote, or calibrate again.",
        ) from error


def _read(archive: zipfile.ZipFile, name: str, most_bytes: int) -> bytes:
    size = archive.getinfo(name).file_size
    if size > most_bytes:
        raise ValueError(f"{name} holds {size} bytes, more than the {most_bytes} that belong there")
    return archive.read(name)


def _header(content: bytes, where: str) -> Header:
    found = msgspec.json.decode(content, type=_Version)
    if found.format != FORMAT:
        raise ValueError(f"its format is {found.format!r}, not {FORMAT!r}")
    if found.version != VERSION:
        raise QuantoolError(
            "stats-version",
            f"the file has version {found.version}, and this quantool reads version {VERSION}",
            where=where,
            fix="Calibrate again with this version of quantool.",
        )
    return msgspec.json.decode(content, type=Header)


def _row(name: str, state: Statistic) -> TensorRow:
    seen, histogram = state.extrema, _histogram(state) or Histogram()
    averages = None
    if isinstance(state, MovingAverage):
        averages = Averages(
            samples=state.samples,
            decay=state.decay,
            weight=state.weight,
            minima=state.minima,
            maxima=state.maxima,
        )
    return TensorRow(
        name=name,
        kind=state.kind,
        count=seen.count,
        nonfinite=seen.nonfinite,
        minimum=seen.minimum if seen.count else None,
        maximum=seen.maximum if seen.count else None,
        buckets=histogram.keys.size,
        total=format(histogram.total, "x"),
        averages=averages,
    )


def _histogram(state: Statistic) -> Histogram | None:
    match state:
        case Histogram():
            return state
        case MovingAverage():
            return state.histogram
        case Extrema():
            return None


def _states(header: Header, keys: npt.NDArray[np.uint16], counts: npt.NDArray[np.int64]) -> dict[str, Statistic]:
    states: dict[str, Statistic] = {}
    start = 0
    for row in header.tensors:
        end = start + row.buckets
        if row.buckets < 0 or end > keys.size or end > counts.size or row.name in states:
            raise ValueError(f"the buckets of tensor {row.name!r} do not fit the file")
        histogram = Histogram(
            extrema=_extrema(row),
            keys=keys[start:end].astype(np.uint16),
            counts=counts[start:end].astype(np.int64),
            total=int(row.total, 16),
        )
        states[row.name] = _state(row, _consistent(row.name, histogram))
        start = end
    if start != keys.size or start != counts.size:
        raise ValueError("the file holds more buckets than its tensors")
    return states


def _extrema(row: TensorRow) -> Extrema:
    low = math.inf if row.minimum is None else row.minimum
    high = -math.inf if row.maximum is None else row.maximum
    if row.count < 0 or row.nonfinite < 0 or (low <= high) != (row.count > 0):
        raise ValueError(f"the extrema of tensor {row.name!r} contradict its count of {row.count}")
    return Extrema(count=row.count, nonfinite=row.nonfinite, minimum=low, maximum=high)


def _consistent(name: str, histogram: Histogram) -> Histogram:
    keys, counts = histogram.keys, histogram.counts
    ordered = bool(np.all(keys[1:] > keys[:-1])) and bool(np.all((keys >= FIRST_KEY) & (keys <= LAST_KEY)))
    counted = bool(np.all(counts > 0)) and histogram.counted <= histogram.extrema.count
    summed = histogram.total.bit_length() <= _LARGEST_SUM_BITS
    if not (ordered and counted and summed):
        raise ValueError(f"the buckets of tensor {name!r} contradict themselves or its count")
    return histogram


def _state(row: TensorRow, histogram: Histogram) -> Statistic:
    match row.kind:
        case Extrema.kind if row.buckets == 0:
            return histogram.extrema
        case Histogram.kind:
            return histogram
        case MovingAverage.kind if row.averages is not None:
            return MovingAverage(histogram=histogram, **msgspec.structs.asdict(row.averages))
    raise ValueError(f"tensor {row.name!r} has no readable statistic of kind {row.kind!r}")
