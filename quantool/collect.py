"""Fold a stream of activations into statistics, keeping no activation.

Extrema are always exact. The histogram of a large tensor takes a fixed eighth of each row's positions, so that
no order of the feeds and no way to cut rows into batches changes the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from calibrators import Channels, Extrema, Gram, Histogram, MovingAverage, Statistic
from calibrators.channels import channels_of
from calibrators.extrema import CHUNK, as_float32, finite_part, measure
from calibrators.histogram import count
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
        batched: tensors whose axis 0 follows the input's batch, a row a sample. Only rows are sampled: of other
            tensors those arrays whose axis 0 has one entry.
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
    """The running statistics; :func:`collect` drives it. before: those of earlier samples, which it goes on from."""

    def __init__(self, request: CollectRequest, before: Stats | None = None) -> None:
        self._request = request
        known = Stats() if before is None else before
        buffer = _BUFFER_BYTES // 4 // max(len(request.kinds), 1)
        capacity = min(max(buffer, _LEAST_BUFFER), CHUNK)
        self._folds = {
            name: _FOLDS[kind](capacity, _Share(request.full, name in request.batched), known.tensors.get(name))
            for name, kind in request.kinds.items()
        }
        self._channels = {
            name: known.channels.get(name, Channels(axis=axis)) for name, axis in request.channels.items()
        }
        self._grams = {key: known.grams.get(key, Gram()) for key in request.grams}
        self._samples = known.samples
        self._last: int | None = None

    def add(self, sample: int, tensors: Mapping[str, AnyArray]) -> None:
        """Fold a sample's tensors in, all or some of them; `sample` is the number that errors state."""
        # A sample whose tensors come in groups counts once.
        self._samples += sample != self._last
        self._last = sample
        with np.errstate(invalid="ignore", over="ignore"):
            bounds = self._add_channels(tensors)
            for name, fold in self._folds.items():
                array = tensors.get(name)
                if array is None or not array.size:
                    continue
                if not fold.add(array, bounds.get(name)) and not self._request.allow_nonfinite:
                    raise _nonfinite(sample, name)
            self._add_grams(tensors)

    def _add_channels(self, tensors: Mapping[str, AnyArray]) -> Mapping[str, tuple[float, float]]:
        """Fold channels in; the extrema of the tensors that turned out finite on the way."""
        bounds = {}
        for name, channels in self._channels.items():
            if name in tensors and tensors[name].size:
                part, finite = channels_of(tensors[name], channels.axis)
                self._channels[name] = channels.merge(part)
                if finite:
                    bounds[name] = float(np.minimum.reduce(part.lows)), float(np.maximum.reduce(part.highs))
        return bounds

    def _add_grams(self, tensors: Mapping[str, AnyArray]) -> None:
        for key, layer in self._request.grams.items():
            if layer.tensor in tensors and tensors[layer.tensor].size:
                most = max(_LEAST_GRAM_ROWS, layer.size // _GRAM_SHARE)
                self._grams[key] = self._grams[key].observe(layer.rows(tensors[layer.tensor], most=most))

    def stats(self) -> Stats:
        """The statistics of everything added so far."""
        return Stats(
            tensors={name: fold.state() for name, fold in self._folds.items()},
            channels=dict(self._channels),
            grams=dict(self._grams),
            model_sha256=self._request.model_sha256,
            graph_sha256=self._request.graph_sha256,
            samples=self._samples,
            full=self._request.full,
        )


def _nonfinite(sample: int, name: str) -> DataError:
    return DataError(
        "nonfinite",
        f"sample {sample} makes NaN or infinity in tensor '{name}'",
        where=f"tensor '{name}', sample {sample}",
        fix="Remove or repair the sample, or skip such elements with --allow-nonfinite; they are counted.",
    )


@dataclass(frozen=True, slots=True)
class _Share:
    """Which elements of an array are counted. full: all of them; batched: each entry of axis 0 is a row of its own."""

    full: bool
    batched: bool

    def of(self, values: Float32, array: AnyArray) -> list[Float32]:
        """The positions p of each large row with p % PERIOD < RUN, as views; small rows whole.

        values: the same elements as the array's, float32[n].
        """
        rows = array.shape[0] if array.ndim else 1
        if self.full or (rows != 1 and not self.batched) or values.size <= SAMPLED_ABOVE * max(rows, 1):
            return [values]
        table = values.reshape(rows, -1)
        whole = table.shape[1] // PERIOD * PERIOD
        runs = table[:, :whole].reshape(rows, -1, PERIOD)[:, :, :RUN]
        return [runs, table[:, whole : whole + RUN]]


class _Fold:
    """One tensor's extrema, of every element.

    capacity: elements that may wait to be counted; share: which of them count; before: the statistic so far.
    """

    def __init__(self, capacity: int, share: _Share, before: Statistic | None) -> None:
        del capacity
        seen = Extrema() if before is None else before.extrema
        self._share = share
        self._count, self._nonfinite = seen.count, seen.nonfinite
        self._low, self._high = seen.minimum, seen.maximum

    def add(self, array: AnyArray, bounds: tuple[float, float] | None = None) -> bool:
        """Fold a sample's array in; whether all of it is finite. bounds: its extrema, where it is known to be."""
        values = as_float32(array)
        # Both reductions together prove that everything between is finite.
        low, high = bounds or (float(np.minimum.reduce(values)), float(np.maximum.reduce(values)))
        finite = math.isfinite(low) and math.isfinite(high)
        part = Extrema(count=values.size, minimum=low, maximum=high) if finite else measure(values)
        self._count += part.count
        self._nonfinite += part.nonfinite
        self._low, self._high = min(self._low, part.minimum), max(self._high, part.maximum)
        self._observe(array, values, part)
        return finite

    def _observe(self, array: AnyArray, values: Float32, part: Extrema) -> None:
        """What else the statistic holds. part: the extrema of this array."""

    def extrema(self) -> Extrema:
        """Of everything added so far."""
        # Adding +0.0 turns -0.0 into 0.0: which of them a reduction finds depends on the order.
        low, high = self._low + 0.0, self._high + 0.0
        return Extrema(count=self._count, nonfinite=self._nonfinite, minimum=low, maximum=high)

    def state(self) -> Statistic:
        """The statistic of everything added so far."""
        return self.extrema()


class _HistogramFold(_Fold):
    """Extrema, and the histogram of a share of large rows and of all of small ones.

    Small arrays wait in one buffer for good to be counted together: fresh copies cost more in page faults than in
    copying, and counting costs as much for few elements as for many.
    """

    def __init__(self, capacity: int, share: _Share, before: Statistic | None) -> None:
        super().__init__(capacity, share, before)
        # Filled, so that memory is taken now and does not grow with the samples.
        self._buffer = np.full(capacity, 0.0, np.float32)
        self._size = 0
        self._counted = before if isinstance(before, Histogram) else Histogram()

    def _observe(self, array: AnyArray, values: Float32, part: Extrema) -> None:
        chosen = self._share.of(values, array)
        if part.nonfinite:
            chosen = [finite_part(piece) for piece in chosen]
        for piece in chosen:
            if self._size + piece.size > self._buffer.size:
                self._flush()
            if piece.size > self._buffer.size:
                self._counted = self._counted.merge(count(piece))
            else:
                self._buffer[self._size : self._size + piece.size].reshape(piece.shape)[...] = piece
                self._size += piece.size

    def _flush(self) -> None:
        if self._size:
            self._counted = self._counted.merge(count(self._buffer[: self._size]))
            self._size = 0

    def state(self) -> Statistic:
        """The statistic of everything added so far."""
        self._flush()
        return replace(self._counted, extrema=self.extrema())


class _OrderedFold(_Fold):
    """Moving averages: their unit is the sample, so that nothing can wait."""

    def __init__(self, capacity: int, share: _Share, before: Statistic | None) -> None:
        super().__init__(capacity, share, before)
        self._averages = before if isinstance(before, MovingAverage) else MovingAverage()

    def _observe(self, array: AnyArray, values: Float32, part: Extrema) -> None:
        chosen = self._share.of(values, array)
        counted = count(finite_part(np.concatenate([piece.reshape(-1) for piece in chosen])))
        self._averages = self._averages.follow(replace(counted, extrema=part))

    def state(self) -> Statistic:
        """The statistic of everything added so far."""
        return replace(self._averages, histogram=replace(self._averages.histogram, extrema=self.extrema()))


_FOLDS = {Extrema.kind: _Fold, Histogram.kind: _HistogramFold, MovingAverage.kind: _OrderedFold}
