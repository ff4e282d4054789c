"""Fold a stream of activations into statistics, keeping no activation.

Extrema are always exact. The histogram of a large tensor takes a fixed eighth of each row's positions, so that
no order of the feeds and no way to cut rows into batches changes the result.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from calibrators import STATISTICS, Extrema, Histogram, MovingAverage, Statistic
from calibrators.extrema import CHUNK, as_float32
from calibrators.histogram import summarize
from quantool.errors import DataError
from quantool.schema import AnyArray
from quantool.stats import Stats

Float32 = npt.NDArray[np.float32]

# Rows with more elements than this are sampled.
SAMPLED_ABOVE = 64 * 1024
# Of every PERIOD positions the first RUN count. Runs are read at memory speed, and the period is a prime, so that
# it drifts across channels and image rows instead of meeting the same ones again.
PERIOD, RUN = 487, 61
# All tensors together buffer about this much, so that small observations share the cost of counting.
_BUFFER_BYTES = 32 * 1024 * 1024
_LEAST_BUFFER = 4 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectRequest:
    """What to collect.

    Attributes:
        kinds: tensor name -> kind of statistic, a key of calibrators.STATISTICS; producers before consumers,
            so that an error names the first tensor that shows it.
        batched: tensors whose axis 0 follows the input's batch, a row a sample. Only these are sampled.
        full: count every element, also of large tensors.
        allow_nonfinite: skip and count NaN and infinite elements.
        model_sha256: the model that the stream comes from.
    """

    kinds: Mapping[str, str]
    batched: frozenset[str] = field(default_factory=frozenset)
    full: bool = False
    allow_nonfinite: bool = False
    model_sha256: str = ""


def collect(stream: Iterable[tuple[int, Mapping[str, AnyArray]]], request: CollectRequest) -> Stats:
    """Statistics of the requested tensors over a stream of (sample index, tensor name -> array).

    Tensors that a sample lacks (a branch that did not run) and tensors nobody asked for are passed over.
    Memory: the statistics, about 32 MiB of buffers, and one sample's arrays.

    Raises:
        DataError: NaN or infinity in a requested tensor, unless allowed.
    """
    collector = Collector(request)
    for sample, tensors in stream:
        collector.add(sample, tensors)
    return collector.stats()


class Collector:
    """The running statistics; :func:`collect` drives it."""

    def __init__(self, request: CollectRequest) -> None:
        self._request = request
        buffer = _BUFFER_BYTES // 4 // max(len(request.kinds), 1)
        self._folds = {
            name: _Fold(
                STATISTICS[kind](),
                capacity=min(max(buffer, _LEAST_BUFFER), CHUNK),
                sampled=name in request.batched and not request.full and kind != Extrema.kind,
            )
            for name, kind in request.kinds.items()
        }
        self._samples = 0

    def add(self, sample: int, tensors: Mapping[str, AnyArray]) -> None:
        """Fold one sample's tensors in; `sample` is the number that errors state."""
        for name, fold in self._folds.items():
            array = tensors.get(name)
            if array is not None:
                fold.add(sample, array)
                self._check(fold)
        self._samples += 1
        if self._samples == 1:
            # What is wrong with all of the data shows at once, not when a buffer is full.
            self._flush()

    def stats(self) -> Stats:
        """The statistics of everything added so far."""
        self._flush()
        return Stats(
            tensors={name: fold.state for name, fold in self._folds.items()},
            model_sha256=self._request.model_sha256,
            samples=self._samples,
            full=self._request.full,
        )

    def _flush(self) -> None:
        for fold in self._folds.values():
            fold.flush()
            self._check(fold)

    def _check(self, fold: _Fold) -> None:
        if fold.first_nonfinite is None or self._request.allow_nonfinite:
            return
        # Other buffers may hold the same trouble from an earlier sample, or nearer to its source.
        for other in self._folds.values():
            other.flush()
        found = [(f.first_nonfinite, name) for name, f in self._folds.items() if f.first_nonfinite is not None]
        sample, name = min(found, key=lambda entry: entry[0])
        raise DataError(
            "nonfinite",
            f"sample {sample} makes NaN or infinity in tensor '{name}'",
            where=f"tensor '{name}', sample {sample}",
            fix="Remove or repair the sample, or skip such elements with --allow-nonfinite; they are counted.",
        )


class _Queue:
    """Small arrays that wait to be counted together, and the samples they came from."""

    __slots__ = ("_arrays", "_samples", "_starts", "size")

    def __init__(self) -> None:
        self._arrays: list[Float32] = []
        self._samples: list[int] = []
        self._starts: list[int] = []
        self.size = 0

    def put(self, sample: int, values: Float32) -> None:
        self._arrays.append(values)
        self._samples.append(sample)
        self._starts.append(self.size)
        self.size += values.size

    def take(self) -> Float32:
        """Everything that waits, as one array."""
        return self._arrays[0] if len(self._arrays) == 1 else np.concatenate(self._arrays)

    def sample_at(self, position: int) -> int:
        """The sample that an element of the joined array belongs to."""
        return self._samples[bisect.bisect_right(self._starts, position) - 1]


class _Fold:
    """One tensor's statistic so far, and what waits to enter it."""

    __slots__ = ("_capacity", "_sampled", "_shares", "_whole", "first_nonfinite", "state")

    def __init__(self, state: Statistic, *, capacity: int, sampled: bool) -> None:
        self.state = state
        self.first_nonfinite: int | None = None
        self._capacity = capacity
        self._sampled = sampled
        # Shares of large rows, whose extrema are in the state already, must not count twice.
        self._whole, self._shares = _Queue(), _Queue()

    def add(self, sample: int, array: AnyArray) -> None:
        rows = max(array.shape[0], 1) if array.ndim else 1
        values = as_float32(array)
        share = _share_of_rows(values, rows) if self._sampled and values.size > SAMPLED_ABOVE * rows else None
        if isinstance(self.state, MovingAverage):
            # Its unit is the sample, so that nothing can wait.
            self.state = self.state.follow(self._summary(sample, values, share))
        elif share is None:
            self._put(self._whole, sample, values)
        else:
            extrema = Extrema().observe(values)
            self._note(sample, extrema)
            self._merge(extrema)
            self._put(self._shares, sample, share)

    def flush(self) -> None:
        """Let everything that waits enter the statistic."""
        if self._whole.size:
            values = self._whole.take()
            counts_elements = isinstance(self.state, Histogram)
            summary = summarize(values) if counts_elements else Extrema().observe(values)
            if summary.extrema.nonfinite:
                first = int(np.argmin(np.isfinite(values)))
                self._note(self._whole.sample_at(first), summary.extrema)
            self._merge(summary)
            self._whole = _Queue()
        if self._shares.size:
            self._merge(replace(summarize(self._shares.take()), extrema=Extrema()))
            self._shares = _Queue()

    def _put(self, queue: _Queue, sample: int, values: Float32) -> None:
        if values.size < self._capacity:
            # The stream may reuse its arrays.
            queue.put(sample, values.copy())
        else:
            # Joining it with what waits would double its memory.
            self.flush()
            queue.put(sample, values)
        if queue.size >= self._capacity:
            self.flush()

    def _summary(self, sample: int, values: Float32, share: Float32 | None) -> Histogram:
        summary = summarize(values if share is None else share)
        if share is not None:
            summary = replace(summary, extrema=Extrema().observe(values))
        self._note(sample, summary.extrema)
        return summary

    def _note(self, sample: int, extrema: Extrema) -> None:
        if extrema.nonfinite and (self.first_nonfinite is None or sample < self.first_nonfinite):
            self.first_nonfinite = sample

    def _merge(self, summary: Extrema | Histogram) -> None:
        match self.state, summary:
            case Histogram(), Histogram():
                self.state = self.state.merge(summary)
            case Histogram(), Extrema():
                self.state = replace(self.state, extrema=self.state.extrema.merge(summary))
            case Extrema(), _:
                self.state = self.state.merge(summary.extrema)


def _share_of_rows(values: Float32, rows: int) -> Float32:
    """The positions p of each row with p % PERIOD < RUN, as float32[m]."""
    table = values.reshape(rows, -1)
    whole = table.shape[1] // PERIOD * PERIOD
    runs = table[:, :whole].reshape(rows, -1, PERIOD)[:, :, :RUN]
    return np.concatenate((runs.reshape(-1), table[:, whole : whole + RUN].reshape(-1)))
