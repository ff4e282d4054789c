"""Cross-layer equalization: give the channels between layers one range, by factors that the layers take up.

Nagel, van Baalen, Blankevoort, Welling, "Data-Free Quantization Through Weight Equalization and Bias Correction",
ICCV 2019, arXiv:1906.04721, section 4.1. Where f(s x) = s f(x) for s > 0, the model computes the same with
W1' = S W1, b1' = S b1 and W2' = W2 S^-1. With r1, r2 the channels' ranges in two layers, equation 11 has
s_i = sqrt(r2_i / r1_i), which makes both alike, and the appendix the like for a depthwise layer between two others.

Here everything counts whose channels share one scale. With weights per channel these are the activation between the
layers and the columns of the layer that reads it; with weights per tensor the rows of the layer that writes it too.
For each channel, log s_i is the mean over these of log(mean range / range_i), negated for columns, which shrink by s_i:
equation 11 where they are a row and a column. Depthwise layers tie the factors before and after them together, so that
the groups take turns until nothing moves, as the paper does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

#: rounds over all groups, and the change of a logarithm that counts as none
MOST_ROUNDS, SETTLED = 50, 1e-3
#: factors beyond these say that a channel is silent, not that it is large
LARGEST_LOG = float(np.log(1e6))
#: a channel that one sample alone stirs counts as this much larger without it
MOST_GROWTH = 2.0
#: a Clip's bound stays this far above what the samples showed
HEADROOM = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """A tensor between layers. sizes: float64[C], how large |x_i| gets; grows: index of the factors that multiply it.

    limits: float64[C], how far each channel may grow below the bound of a Clip, None without one; at 1 or less it
    keeps its scale, because the Clip cuts it off.
    """

    sizes: Float64
    grows: int
    limits: Float64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A layer. magnitudes: float64[G, O / G, I / G], max|W| of each output and input channel in each of G groups.

    grows: index of the factors that multiply its output channels; shrinks: of those that divide its input channels;
    per_tensor: whether all output channels share a scale.
    """

    magnitudes: Float64
    grows: int | None
    shrinks: int | None
    per_tensor: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Term:
    """Logarithms of ranges that share a scale, -inf where silent.

    sign: -1 where they shrink by the factors; target: what they should be, None for their mean.
    """

    logs: Float64
    sign: int = 1
    target: float | None = None

    def pull(self) -> tuple[Float64, NDArray[np.bool_]]:
        """How far each channel's log factor is from its target, and which channels have a say."""
        heard = np.isfinite(self.logs)
        logs = np.where(heard, self.logs, 0.0)
        target = logs.sum() / max(heard.sum(), 1) if self.target is None else self.target
        return np.where(heard, self.sign * (target - logs), 0.0), heard

    @property
    def spread(self) -> float:
        """Standard deviation over the channels that are heard."""
        heard = self.logs[np.isfinite(self.logs)]
        return float(heard.std()) if heard.size else 0.0


def sizes_of(peaks: Sequence[Float64]) -> Float64:
    """How large each channel gets: the root mean square of its largest values in each sample.

    The largest of all would make every channel's end the tensor's, which other samples pass: with it digits_depthwise,
    rescaled, came to 38.9 dB instead of 40.4. peaks: float64[C] of each sample. Returns float64[C].
    """
    stacked = np.asarray(peaks)
    largest = stacked.max(axis=0)
    shares = stacked / np.where(largest > 0, largest, 1.0)
    sizes: Float64 = largest * np.sqrt(np.square(shares).mean(axis=0))
    return sizes


def unseen_growth(peaks: Sequence[Float64]) -> list[Float64]:
    """For each sample, how much larger its channels would be with factors that the other samples alone had given.

    Factors from a few samples fit those, so that what they make of them says too little of what other samples reach.
    peaks: float64[C] of each sample. Returns as many float64[C] between 1 and MOST_GROWTH.
    """
    sizes = sizes_of(peaks)
    if len(peaks) < 2:
        return [np.ones_like(sizes) for _ in peaks]
    grown = []
    for index in range(len(peaks)):
        others = sizes_of([*peaks[:index], *peaks[index + 1 :]])
        ratio = np.divide(sizes, others, out=np.full_like(sizes, MOST_GROWTH), where=others > 0)
        grown.append(np.clip(ratio, 1.0, MOST_GROWTH))
    return grown


def clip_limits(peaks: Sequence[Float64], bound: float) -> Float64:
    """How far each channel may grow so that a Clip still cuts nothing off, some way below its bound."""
    largest: Float64 = np.max(peaks, axis=0)
    return bound / HEADROOM / np.where(largest > 0, largest, bound)


def imbalance(sizes: Sequence[int], activations: Sequence[Activation], weights: Iterable[Weight]) -> tuple[float, ...]:
    """For each group of factors, the largest standard deviation of log ranges that share a scale, as they are now.

    Activations count, and weights per tensor. One weight is in memory at a time.
    """
    still = [np.zeros(size) for size in sizes]
    found = [0.0] * len(sizes)
    for activation in activations:
        found[activation.grows] = max(found[activation.grows], _Term(logs=_log(activation.sizes)).spread)
    for weight in weights:
        for index in {weight.grows, weight.shrinks} - {None} if weight.per_tensor else ():
            assert index is not None
            found[index] = max(found[index], *(term.spread for term in _weight_terms(index, still, weight)))
    return tuple(found)


def equalizing_factors(
    sizes: Sequence[int], activations: Sequence[Activation], weights: Sequence[Weight]
) -> tuple[Float64, ...]:
    """The factors of each group, float64[size], positive and finite; 1 for a channel that is silent everywhere.

    sizes: the number of channels of each group.
    """
    logs: list[Float64] = [np.zeros(size) for size in sizes]
    for _ in range(MOST_ROUNDS):
        before = list(logs)
        for index in range(len(sizes)):
            logs[index] = _moved(index, logs, activations, weights)
        if all(np.abs(new - old).max(initial=0.0) < SETTLED for new, old in zip(logs, before, strict=True)):
            break
    return tuple(np.exp(found) for found in logs)


def _moved(
    index: int, logs: Sequence[Float64], activations: Sequence[Activation], weights: Sequence[Weight]
) -> Float64:
    """The log factors of one group while the others stand still."""
    pulls = np.zeros_like(logs[index])
    votes = np.zeros_like(logs[index])
    for term in _terms(index, logs, activations, weights):
        pull, heard = term.pull()
        pulls += pull
        votes += heard
    moved = np.clip(logs[index] + pulls / np.maximum(votes, 1.0), -LARGEST_LOG, LARGEST_LOG)
    for activation in activations:
        if activation.grows == index and activation.limits is not None:
            room = _log(activation.limits)
            moved = np.where(room > 0, np.minimum(moved, room), 0.0)
    return moved


def _terms(
    index: int, logs: Sequence[Float64], activations: Sequence[Activation], weights: Sequence[Weight]
) -> Iterator[_Term]:
    """Everything that the factors of one group stretch or shrink and whose channels share a scale."""
    for activation in activations:
        if activation.grows == index:
            if activation.limits is None:
                yield _Term(logs=_log(activation.sizes) + logs[index])
            else:
                yield _Term(logs=logs[index] - _log(activation.limits), target=0.0)
    for weight in weights:
        if index in (weight.grows, weight.shrinks):
            yield from _weight_terms(index, logs, weight)


def _weight_terms(index: int, logs: Sequence[Float64], weight: Weight) -> Iterator[_Term]:
    """The rows and columns of a layer; with a scale for each row, the columns' share of it, where there are several."""
    scaled = _scaled(weight, logs)
    if weight.grows == index and weight.per_tensor:
        yield _Term(logs=_log(scaled.max(axis=2).reshape(-1)))
    if weight.shrinks == index and weight.per_tensor:
        yield _Term(logs=_log(scaled.max(axis=1).reshape(-1)), sign=-1)
    elif weight.shrinks == index and scaled.shape[2] > 1:
        rows = scaled.max(axis=2, keepdims=True)
        shares = scaled / np.where(rows > 0, rows, 1.0)
        yield _Term(logs=_log(shares.max(axis=1).reshape(-1)), sign=-1)


def _scaled(weight: Weight, logs: Sequence[Float64]) -> Float64:
    """A layer's magnitudes with the factors as they are."""
    groups, outputs, inputs = weight.magnitudes.shape
    found = weight.magnitudes
    if weight.grows is not None:
        found = found * np.exp(logs[weight.grows]).reshape(groups, outputs, 1)
    if weight.shrinks is not None:
        found = found / np.exp(logs[weight.shrinks]).reshape(groups, 1, inputs)
    return found


def _log(values: Float64) -> Float64:
    with np.errstate(divide="ignore"):
        found: Float64 = np.log(values)
    return found
