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

from calibrators import STATISTICS, Channels, Extrema, Gram, Histogram, MovingAverage
from calibrators.extrema import CHUNK, as_float32
from calibrators.histogram import summarize
from quantool.algorithms.layer_input import LayerInput
from quantool.errors import DataError
from quantool.schema import AnyArray
from quantool.stats import Stats

Float32 = npt.NDArray[np.float32]

# Rows with more elements than this are sampled.
SAMPLED_ABOVE = 64 * 1024
# Of every PERIOD positions the first RUN count. Runs are read at memory speed, and the period is a prime, so that
# it drifts across channels and image rows instead of meeting the same ones again.
PERIOD, RUN = 487, 61
# Rows of one sample that enter a Gram matrix of size d: an eighth of d, so that 16 samples fill it twice.
_GRAM_SHARE, _LEAST_GRAM_ROWS = 8, 64
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
        channels: tensor name -> axis of the channels whose statistics are wanted too.
        grams: key -> input of a layer whose Gram matrix is wanted too.
        full: count every element, also of large tensors.
        allow_nonfinite: skip and count NaN and infinite elements.
        model_sha256: the model that the stream comes from.
        graph_sha256: the normalized graph that made it.
    """

    kinds: Mapping[str, str]
    batched: frozenset[str] = field(default_factory=frozenset)
    channels: Mapping[str, int] = field(default_factory=dict)
    grams: Mapping[str, LayerInput] = field(default_factory=dict)
    full: bool = False
    allow_nonfinite: bool = False
    model_sha256: str = ""
    graph_sha256: str = ""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor that the stream should bring, each once."""
        layers = (layer.tensor for layer in self.grams.values())
        return tuple(dict.fromkeys((*self.kinds, *self.channels, *layers)))


def collect(stream: Iterable[tuple[int, Mapping[str, AnyArray]]], request: CollectRequest) -> Stats:
    """Statistics of the requested tensors over a stream of (sample index, tensor name -> array).

    Tensors that a sample lacks (a branch that did not run) and tensors nobody asked for are passed over. A sample
    may come in several consecutive pieces, with other tensors in each.
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
        capacity = min(max(buffer, _LEAST_BUFFER), CHUNK)
        self._folds = {
            name: _fold(kind, capacity=capacity, sampled=name in request.batched and not request.full)
            for name, kind in request.kinds.items()
        }
        self._channels = {name: Channels(axis=axis) for name, axis in request.channels.items()}
        self._grams = dict.fromkeys(request.grams, Gram())
        self._samples = 0
        self._last: int | None = None

    def add(self, sample: int, tensors: Mapping[str, AnyArray]) -> None:
        """Fold a sample's tensors in, all or some of them; `sample` is the number that errors state."""
        for name, fold in self._folds.items():
            array = tensors.get(name)
            if array is not None:
                fold.add(sample, array)
                self._check(fold)
        for name, channels in self._channels.items():
            if name in tensors:
                self._channels[name] = channels.observe(tensors[name])
        for key, layer in self._request.grams.items():
            if layer.tensor in tensors and tensors[layer.tensor].size:
                most = max(_LEAST_GRAM_ROWS, layer.size // _GRAM_SHARE)
                self._grams[key] = self._grams[key].observe(layer.rows(tensors[layer.tensor], most=most))
        # A sample whose tensors come in groups counts once.
        self._samples += sample != self._last
        self._last = sample
        if self._samples == 1:
            # What is wrong with all of the data shows at once, not when a buffer is full.
            self._flush()

    def stats(self) -> Stats:
        """The statistics of everything added so far."""
        self._flush()
        return Stats(
            tensors={name: fold.state for name, fold in self._folds.items()},
            channels=dict(self._channels),
            grams=dict(self._grams),
            model_sha256=self._request.model_sha256,
            graph_sha256=self._request.graph_sha256,
            samples=self._samples,
            full=self._request.full,
        )

    def _flush(self) -> None:
        for fold in self._folds.values():
            fold.flush()
            self._check(fold)

    def _check(self, fold: _Fold | _OrderedFold) -> None:
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


def _fold(kind: str, *, capacity: int, sampled: bool) -> _Fold | _OrderedFold:
    state = STATISTICS[kind]()
    if isinstance(state, MovingAverage):
        return _OrderedFold(sampled=sampled)
    # Extrema are exact everywhere: there is nothing to sample.
    return _Fold(state, capacity=capacity, sampled=sampled and isinstance(state, Histogram))


class _Queue:
    """Small arrays that wait to be counted together, and the samples they came from."""

    __slots__ = ("_buffer", "_samples", "_starts", "size")

    def __init__(self, capacity: int) -> None:
        # One buffer for good: fresh copies cost more in page faults than in copying.
        self._buffer = np.empty(capacity, np.float32)
        self._samples: list[int] = []
        self._starts: list[int] = []
        self.size = 0

    def fits(self, values: Float32) -> bool:
        return self.size + values.size <= self._buffer.size

    def put(self, sample: int, values: Float32) -> None:
        self._buffer[self.size : self.size + values.size] = values
        self._samples.append(sample)
        self._starts.append(self.size)
        self.size += values.size

    def values(self) -> Float32:
        """Everything that waits, as one array that the next put overwrites."""
        return self._buffer[: self.size]

    def sample_at(self, position: int) -> int:
        """The sample that an element of the joined array belongs to."""
        return self._samples[bisect.bisect_right(self._starts, position) - 1]

    def clear(self) -> None:
        self._samples.clear()
        self._starts.clear()
        self.size = 0


class _OrderedFold:
    """One tensor's moving averages: their unit is the sample, so that nothing can wait."""

    __slots__ = ("_sampled", "first_nonfinite", "state")

    def __init__(self, *, sampled: bool) -> None:
        self.state = MovingAverage()
        self.first_nonfinite: int | None = None
        self._sampled = sampled

    def add(self, sample: int, array: AnyArray) -> None:
        values = as_float32(array)
        share = _share(values, array) if self._sampled else None
        part = replace(summarize(values if share is None else share), extrema=Extrema().observe(values))
        if part.extrema.nonfinite and self.first_nonfinite is None:
            self.first_nonfinite = sample
        self.state = self.state.follow(part)

    def flush(self) -> None:
        """Nothing waits."""


class _Fold:
    """One tensor's statistic so far, and what waits to enter it."""

    __slots__ = ("_sampled", "_shares", "_whole", "first_nonfinite", "state")

    def __init__(self, state: Extrema | Histogram, *, capacity: int, sampled: bool) -> None:
        self.state = state
        self.first_nonfinite: int | None = None
        self._sampled = sampled
        # Shares of large rows, whose extrema are in the state already, must not count twice.
        self._whole, self._shares = _Queue(capacity), _Queue(capacity)

    def add(self, sample: int, array: AnyArray) -> None:
        values = as_float32(array)
        share = _share(values, array) if self._sampled else None
        if share is None:
            self._enqueue(sample, values)
        else:
            self._absorb(Extrema().observe(values), sample=sample)
            self._enqueue_share(sample, share)

    def flush(self) -> None:
        """Let everything that waits enter the statistic."""
        if self._whole.size:
            values = self._whole.values()
            summary = self._summary(values)
            first = int(np.argmin(np.isfinite(values))) if summary.extrema.nonfinite else 0
            self._absorb(summary, sample=self._whole.sample_at(first))
            self._whole.clear()
        if self._shares.size:
            self._absorb_share(self._shares.values())
            self._shares.clear()

    def _enqueue(self, sample: int, values: Float32) -> None:
        if not self._whole.fits(values):
            self.flush()
        if self._whole.fits(values):
            self._whole.put(sample, values)
        else:
            self._absorb(self._summary(values), sample=sample)

    def _enqueue_share(self, sample: int, share: Float32) -> None:
        if not self._shares.fits(share):
            self.flush()
        if self._shares.fits(share):
            self._shares.put(sample, share)
        else:
            self._absorb_share(share)

    def _summary(self, values: Float32) -> Extrema | Histogram:
        return Extrema().observe(values) if isinstance(self.state, Extrema) else summarize(values)

    def _absorb_share(self, share: Float32) -> None:
        self.state = _joined(self.state, replace(summarize(share), extrema=Extrema()))

    def _absorb(self, summary: Extrema | Histogram, *, sample: int) -> None:
        if summary.extrema.nonfinite and (self.first_nonfinite is None or sample < self.first_nonfinite):
            self.first_nonfinite = sample
        self.state = _joined(self.state, summary)


def _joined(state: Extrema | Histogram, part: Extrema | Histogram) -> Extrema | Histogram:
    """A statistic and one more part of the same data: its elements, or of large rows the extrema alone."""
    if isinstance(state, Extrema):
        return state.merge(part.extrema)
    if isinstance(part, Extrema):
        return replace(state, extrema=state.extrema.merge(part))
    return state.merge(part)


def _share(values: Float32, array: AnyArray) -> Float32 | None:
    """The positions p of each large row of an array with p % PERIOD < RUN, as float32[m]; None of small rows."""
    rows = max(array.shape[0], 1) if array.ndim else 1
    if values.size <= SAMPLED_ABOVE * rows:
        return None
    table = values.reshape(rows, -1)
    whole = table.shape[1] // PERIOD * PERIOD
    runs = table[:, :whole].reshape(rows, -1, PERIOD)[:, :, :RUN]
    return np.concatenate((runs.reshape(-1), table[:, whole : whole + RUN].reshape(-1)))
