"""Statistics of tensors as rows of the header, and their histograms as numbers of two members."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from calibrators import Extrema, Histogram, MovingAverage, Statistic
from calibrators.buckets import FIRST_KEY, LAST_KEY
from quantool.qcal.rows import Averages, Header, TensorRow

_KEY_TYPE, _COUNT_TYPE = np.dtype("<u2"), np.dtype("<i8")


def buckets(state: Statistic) -> tuple[bytes, bytes]:
    """The keys and the counters of a statistic's histogram."""
    histogram = _histogram(state) or Histogram()
    return histogram.keys.astype(_KEY_TYPE).tobytes(), histogram.counts.astype(_COUNT_TYPE).tobytes()


def row(header: Header, name: str, state: Statistic) -> TensorRow:
    """The header's row."""
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
        address=header.address(state.kind, name),
        count=seen.count,
        nonfinite=seen.nonfinite,
        minimum=seen.minimum if seen.count else None,
        maximum=seen.maximum if seen.count else None,
        buckets=histogram.keys.size,
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


def states(header: Header, key_bytes: bytes, count_bytes: bytes) -> dict[str, Statistic]:
    """The statistics of all tensors.

    Raises:
        ValueError: rows and numbers contradict themselves or each other.
    """
    keys, counts = np.frombuffer(key_bytes, _KEY_TYPE), np.frombuffer(count_bytes, _COUNT_TYPE)
    found: dict[str, Statistic] = {}
    start = 0
    for row in header.tensors:
        end = start + row.buckets
        if row.buckets < 0 or end > keys.size or end > counts.size or row.name in found:
            raise ValueError(f"the buckets of tensor {row.name!r} do not fit the file")
        histogram = Histogram(
            extrema=_extrema(row),
            keys=keys[start:end].astype(np.uint16),
            counts=counts[start:end].astype(np.int64),
        )
        found[row.name] = _state(row, _consistent(row.name, histogram))
        if row.address != header.address(row.kind, row.name):
            raise ValueError(f"the statistic of {row.name!r} belongs to another graph or data")
        start = end
    if start != keys.size or start != counts.size:
        raise ValueError("the file holds more buckets than its tensors")
    return found


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
    if not (ordered and counted):
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
