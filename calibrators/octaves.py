"""Histograms of many tensors side by side, as sums that the bits of a number find.

The exponent of a number and the first 6 bits of its mantissa name a pair of logarithmic buckets, 64 an octave. Counted
from a tensor's largest magnitude downwards, these stand at the same places for all tensors. Every sum runs within one
tensor and in a fixed order, so that a tensor's results do not depend on the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrators.buckets import NEGATIVE_ZERO, POSITIVE_ZERO
from calibrators.distribution import EDGES, LEAST_GAP, MOST_ISOLATED
from calibrators.histogram import Histogram

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_PLACE_BITS = 6
PLACES = 1 << _PLACE_BITS
# Bits of a float64's mantissa after the first 6, and its bias less one: that of an exponent as frexp gives it.
_BELOW = 52 - _PLACE_BITS
_BIAS = 1022

# Tensors whose sums a processor's second cache holds while they are made.
_BLOCK = 32

# The ends of each bucket as distances from zero; the nearer one's exponent bits and its place in the octave.
_NEAR = np.minimum(np.abs(EDGES[:-1]), np.abs(EDGES[1:]))
_FAR = np.maximum(np.abs(EDGES[:-1]), np.abs(EDGES[1:]))
_OCTAVE = _NEAR.view(np.int64) >> 52
_PLACE = (_NEAR.view(np.int64) >> (_BELOW - 1)) & (2 * PLACES - 1)
# The mean of x and x^2 over each pair of the octave's buckets, float64[64, 1, 1, 1] each, in units of its lower end.
_AT = (1.0 + np.arange(PLACES + 1) / PLACES).reshape(-1, 1, 1, 1)
_MEANS = ((_AT[:-1] + _AT[1:]) / 2.0, (_AT[:-1] * _AT[:-1] + _AT[:-1] * _AT[1:] + _AT[1:] * _AT[1:]) / 3.0)


@dataclass(frozen=True, slots=True)
class Table:
    """Values of every pair of buckets of some rows: float64[64, m, rows * (octaves + 2)].

    A row has an octave more at each end: one for all that is smaller, and one above the data.

    Attributes:
        values: the values.
        octaves: how many octaves a row tells apart.
        lowest: int64[*rows, 1], the exponent and place bits of 2^-octaves below each row's top, less an octave.
    """

    values: Float64
    octaves: int
    lowest: Int64

    def find(self, points: Float64) -> Int64:
        """Where the values stand for points >= 0, float64[*rows, C]: of the pair of buckets that holds each."""
        bucket = points.view(np.int64) >> _BELOW
        bucket -= self.lowest
        np.clip(bucket, 0, (self.octaves + 2) * PLACES - 1, out=bucket)
        return self.at(bucket)

    def at(self, bucket: Int64) -> Int64:
        """Where the values of pairs of buckets stand, int64[*rows, C]; they count from the lowest octave's first."""
        found = bucket & (PLACES - 1)
        found *= self.values.shape[1] * self.values.shape[2]
        bucket >>= _PLACE_BITS
        bucket += np.arange(0, self.values.shape[2], self.octaves + 2).reshape(self.lowest.shape)
        found += bucket
        return found

    @staticmethod
    def floor(points: Float64) -> Float64:
        """The lower end of the pair of buckets that holds each point >= 0."""
        return (points.view(np.int64) >> _BELOW << _BELOW).view(np.float64)

    def read(self, found: Int64, which: int) -> Float64:
        """One of the m values."""
        return self.values.reshape(-1)[which * self.values.shape[2] :].take(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outermost:
    """What stands at the extreme of each side, float64[S, T]: the negative sides, mirrored, then the positive ones.

    Where each tensor has one sign alone, S is 1, and negative ones are mirrored. Of the outermost bucket as many
    elements are spread evenly as its neighbour's density suggests. The rest, and one at least, stands at the extreme:
    a Clip or a saturation piles elements up there. So does an extreme that sampling left out, with its expected weight.

    Attributes:
        extreme: the distance of the exact extreme; 0 where a side is empty.
        piled: number of elements at the extreme.
        inner: the end of the outermost bucket, or its pair, that is nearer to zero.
        even: number of elements between that and the extreme.
        held: bool[2, T], whether the histogram's first and last bucket is what stands at the extreme.
        paired: bool[2, T], whether the next one, of the same pair, is part of it.
        added: float64[T], weight of the extremes that sampling left out.
    """

    extreme: Float64
    piled: Float64
    inner: Float64
    even: Float64
    held: Bool
    paired: Bool
    added: Float64

    @classmethod
    def of(cls, states: Sequence[Histogram], *, sides: int) -> Outermost:
        """Those of histograms."""
        low = np.array([state.extrema.minimum for state in states])
        high = np.array([state.extrema.maximum for state in states])
        # The outermost two buckets of each side; without any, the extreme is too small for one.
        keys, counts = _outermost_buckets(states)
        extreme, least = np.maximum((-low, high), 0.0), np.maximum((-high, low), 0.0)
        filled = np.stack((keys[0, 0] < NEGATIVE_ZERO, keys[1, 0] > POSITIVE_ZERO))
        held = filled & (_FAR[keys[:, 0]] >= extreme)
        inner = np.where(held, np.maximum(_NEAR[keys[:, 0]], least), extreme)
        weight = np.where(held, counts[:, 0], 0.0)
        for side, index in zip(*np.nonzero(~held & (extreme > 0.0)), strict=True):
            weight[side, index] = states[index].counted / states[index].extrema.count
        width = _FAR[keys[:, 1]] - _NEAR[keys[:, 1]]
        density = np.where(np.abs(keys[:, 0] - keys[:, 1]) == 1, counts[:, 1] / width, 0.0)
        even = np.minimum(density * (extreme - inner), np.maximum(weight - 1.0, 0.0))
        piled = weight - even
        # The sums would spread the other bucket of the pair beyond the extreme.
        paired = held & (density > 0.0) & (_PLACE[keys[:, 0]] % 2 == 1)
        inner = np.where(paired, np.maximum(_NEAR[keys[:, 1]], least), inner)
        even = even + np.where(paired, counts[:, 1], 0)
        added = np.where(held, 0.0, weight).sum(axis=0)
        found = (extreme, piled, inner, even)
        if sides == 1:
            # Everything is 0 on the side that is not there.
            found = tuple(side.sum(axis=0, keepdims=True) for side in found)
        return cls(
            extreme=found[0], piled=found[1], inner=found[2], even=found[3], held=held, paired=paired, added=added
        )

    @property
    def left_out(self) -> Int64:
        """int64[2, T], how many of the histogram's first and last buckets are what stands at the extremes."""
        return self.held.astype(np.int64) + self.paired

    @property
    def density(self) -> Float64:
        """Elements an unit between the inner end and the extreme."""
        width = self.extreme - self.inner
        return self.even / np.where(width > 0.0, width, 1.0)


def _outermost_buckets(states: Sequence[Histogram]) -> tuple[Int64, Int64]:
    """The keys and counts, int64[2, 2, T], of each side's outermost bucket and the histogram's next one."""
    index = (0, -1, 1, -2)
    filled = [state.keys.size > 0 for state in states]
    nothing = (np.full(4, POSITIVE_ZERO), np.zeros(4, np.int64))
    pairs = [
        (state.keys.take(index, mode="wrap"), state.counts.take(index, mode="wrap")) if some else nothing
        for state, some in zip(states, filled, strict=True)
    ]
    keys, counts = (np.array(part, np.int64).T.reshape(2, 2, -1).swapaxes(0, 1) for part in zip(*pairs, strict=True))
    return keys, counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Octaves:
    """The non-zero elements of T tensors.

    Attributes:
        outermost: what stands at the extremes, which the sums leave out.
        total: float64[T], number of elements, zeros included.
        sides: rows [S, T]: sums of 1, x and x^2 over a pair of buckets and all beyond, and a third of its own density.
        both: rows [T]: sums of 1 and x^2 over both sides.
    """

    outermost: Outermost
    total: Float64
    sides: Table
    both: Table

    @classmethod
    def of(cls, states: Sequence[Histogram], *, sides: int, octaves: int, room: Float64) -> Octaves:
        """Lay out histograms, each with an element other than zero, so many octaves down.

        sides: 1 where each has elements of one sign alone, else 2. room: float64[640 * S T * (octaves + 2)] or more,
        which the result uses: memory that is used again costs no page faults.
        """
        outermost = Outermost.of(states, sides=sides)
        total = outermost.added.copy()
        lowest = np.frexp(outermost.extreme.max(axis=0))[1].astype(np.int64) + (_BIAS - octaves)
        shape = (sides, len(states), octaves + 2)
        size = PLACES * 4 * math.prod(shape)
        values, rest = room[:size].reshape(PLACES, 4, *shape), room[size:]
        both = np.empty((PLACES, 2, *shape[1:]))
        for start in range(0, len(states), _BLOCK):
            block = slice(start, start + _BLOCK)
            lower = np.ldexp(1.0, np.arange(octaves + 2) + lowest[block, None] - (_BIAS + 1))
            lower = np.broadcast_to(lower, (sides, *lower.shape))
            weights = rest[: 2 * PLACES * lower.size].reshape(2 * PLACES, *lower.shape)
            total[block] += _scatter(states[block], weights, lowest=lowest[block], held=outermost.left_out[:, block])
            part = rest[2 * PLACES * lower.size :][: 4 * PLACES * lower.size].reshape(PLACES, 4, *lower.shape)
            _accumulate(weights, part, lower)
            values[:, :, :, block] = part
            both[:, :, block] = part[:, 0:3:2, 0]
            if sides == 2:
                both[:, :, block] += part[:, 0:3:2, 1]
        row = lowest[:, None] * PLACES
        return cls(
            outermost=outermost,
            total=total,
            sides=Table(values.reshape(PLACES, 4, -1), octaves, np.broadcast_to(row, (sides, *row.shape))),
            both=Table(both.reshape(PLACES, 2, -1), octaves, row),
        )

    def weight_beyond(self, ends: Float64) -> Float64:
        """The weight of the elements beyond each end, float64[S, T]; an interval holds its elements evenly."""
        found = self.sides.find(ends[:, :, None])[:, :, 0]
        inside = ends - self.sides.floor(ends)
        within = self.sides.read(found, 0) - 3.0 * self.sides.read(found, 3) * inside
        outer = self.outermost
        even = outer.density * np.maximum(outer.extreme - np.maximum(ends, outer.inner), 0.0)
        result: Float64 = np.maximum(within, 0.0) + even + outer.piled * (ends < outer.extreme)
        return result

    def buckets_of_weight(self, needed: Float64) -> tuple[Int64, Int64]:
        """The outermost pair of buckets of each side that holds a weight, float64[S, T], together with all beyond.

        Returns where its values and those of the next one stand; of all smaller elements where a side has less.
        """
        weights = self.sides.values[:, 0].reshape(PLACES, -1, self.sides.octaves + 2)
        rows = np.arange(weights.shape[1])
        # Weights fall outwards, so that counting those that are enough finds the last.
        octave = np.maximum((weights[0] >= needed.reshape(-1, 1)).sum(axis=1) - 1, 0)
        place = np.maximum((weights[:, rows, octave] >= needed.reshape(-1)).sum(axis=0) - 1, 0)
        bucket = (octave * PLACES + place).reshape(*needed.shape, 1)
        last = (self.sides.octaves + 2) * PLACES - 1
        following = np.minimum(bucket + 1, last)
        return self.sides.at(bucket)[..., 0], self.sides.at(following)[..., 0]

    def may_be_isolated(self) -> Bool:
        """Whether few enough elements are as large as an eighth of the largest: else none of them is an outlier."""
        outer = self.outermost
        eighth = outer.extreme.max(axis=0) / LEAST_GAP
        weight = self.both.read(self.both.find(eighth[:, None])[:, 0], 0)
        weight += ((outer.piled + outer.even) * (outer.inner >= eighth)).sum(axis=0)
        result: Bool = weight <= MOST_ISOLATED * self.total
        return result


def _scatter(states: Sequence[Histogram], weights: Float64, *, lowest: Int64, held: Int64) -> list[float]:
    """Lay the counts of all buckets out as float64[128, S, T, octaves + 2].

    lowest: int64[T], the exponent bits of the octave for all that is smaller, which stays empty: what is smaller than
    all candidates' steps rounds to zero whatever the range. held: int64[2, T], how many outermost buckets to leave out.
    Returns how many elements each histogram holds.
    """
    weights[:] = 0.0
    sides, tensors, stride = weights.shape[1:]
    columns = sides * tensors * stride
    place = _PLACE * columns + _OCTAVE
    if sides == 2:
        place[POSITIVE_ZERO:] += columns // 2
    # From the last negative to the first positive bucket that is told apart; and the place for what is left out.
    first = _OCTAVE[POSITIVE_ZERO:].searchsorted(lowest, side="right") + POSITIVE_ZERO
    small = np.stack((NEGATIVE_ZERO + POSITIVE_ZERO + 1 - first, first), axis=1).astype(np.uint16)
    rest = np.arange(tensors) * stride
    flat, counted = weights.reshape(-1), []
    each = zip(states, rest.tolist(), (rest - lowest).tolist(), small, *held.tolist(), strict=True)
    for state, nowhere, start, ends, first_held, last_held in each:
        found = place.take(state.keys)
        found += start
        low, high = state.keys.searchsorted(ends)
        found[low:high] = nowhere
        found[:first_held] = nowhere
        found[found.size - last_held :] = nowhere
        counts = state.counts.astype(np.float64)
        counted.append(float(counts.sum()))
        flat[found] = counts
    weights[0, :, :, 0] = 0.0
    return counted


def _accumulate(weights: Float64, sides: Float64, lower: Float64) -> None:
    """Make what `Octaves.sides` holds, float64[64, 4, S, T, octaves + 2], of the weights of the single buckets.

    lower: float64[S, T, octaves + 2], the lower ends of the octaves.
    """
    np.add(weights[0::2], weights[1::2], out=sides[:, 0])
    for moment, means in enumerate(_MEANS, start=1):
        np.multiply(sides[:, 0], means, out=sides[:, moment])
    np.multiply(sides[:, 0], PLACES / (3.0 * lower), out=sides[:, 3])
    sums = sides[:, :3]
    for place in range(PLACES - 2, -1, -1):
        sums[place] += sums[place + 1]
    sums[:, 1] *= lower
    sums[:, 2] *= lower * lower
    above = np.zeros((3, *lower.shape))
    for octave in range(lower.shape[2] - 2, -1, -1):
        np.add(above[..., octave + 1], sums[0, ..., octave + 1], out=above[..., octave])
    sums += above
