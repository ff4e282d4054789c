"""Statistics of each channel of a layer's input: what equalization, smoothing and bias correction read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from calibrators.fixed_point import Float64, GridSums, grid_exponent, on_grid
from quantool.errors import QuantoolError

Float32 = npt.NDArray[np.float32]

#: rows of one sample that enter the sums at most, at even distances; all enter the extrema
ROWS = 32
#: 2^30 times 32 rows leave room for 2^28 samples in 64 bits
BITS = 30


def _nothing() -> Float32:
    return np.empty(0, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Channels:
    """Exact extrema of each channel, and a sum over a share of the rows that no order of the samples changes.

    Attributes:
        axis: the channels: 1, or -1 for the last.
        lows: float32[C], smallest finite elements; +inf where a channel never had one; empty before any sample.
        highs: float32[C], largest ones, -inf likewise.
        rows: how many rows the sums count.
        sums: their sums, on grids of 30 bits.
    """

    axis: int
    lows: Float32 = field(default_factory=_nothing)
    highs: Float32 = field(default_factory=_nothing)
    rows: int = 0
    sums: GridSums = field(default_factory=GridSums)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Channels):
            return NotImplemented
        same = (self.axis, self.rows, self.sums) == (other.axis, other.rows, other.sums)
        return same and np.array_equal(self.lows, other.lows) and np.array_equal(self.highs, other.highs)

    def __hash__(self) -> int:
        return hash((self.axis, self.rows, self.sums, self.lows.tobytes(), self.highs.tobytes()))

    @property
    def peaks(self) -> Float64:
        """float64[C], largest magnitudes; 0 where a channel never had a finite element."""
        return np.maximum(np.maximum(self.highs, -self.lows), np.float32(0)).astype(np.float64)

    @property
    def means(self) -> Float64:
        """float64[C], means over the counted rows, each rounded by 2^-27 of its sample's largest magnitude at most."""
        total = self.sums.total(bits=BITS)
        return np.broadcast_to(total / max(self.rows, 1), self.lows.shape)

    def observe(self, sample: npt.NDArray[np.generic]) -> Channels:
        """The statistic of everything seen so far and one sample: float[*S] with the channels on the axis."""
        return self.merge(channels_of(sample, self.axis)[0]) if sample.size else self

    def merge(self, other: Channels) -> Channels:
        """The statistic of both together.

        Raises:
            QuantoolError: another axis or number of channels.
        """
        for a, b in ((self, other), (other, self)):
            if not a.lows.size and a.axis == b.axis:
                return b
        if self.axis != other.axis or self.lows.size != other.lows.size:
            raise QuantoolError(
                "channels-differ",
                f"{self.lows.size} channels on axis {self.axis} do not go with {other.lows.size} on {other.axis}",
                where="statistics",
                fix="Calibrate every part with the same model and options.",
            )
        return Channels(
            axis=self.axis,
            lows=np.minimum(self.lows, other.lows),
            highs=np.maximum(self.highs, other.highs),
            rows=self.rows + other.rows,
            sums=self.sums.merge(other.sums),
        )


def channels_of(sample: npt.NDArray[np.generic], axis: int) -> tuple[Channels, bool]:
    """The statistic of one sample, float[*S] and not empty, and whether all of it is finite."""
    values = np.asarray(sample, np.float32)
    at = axis % values.ndim
    table = values.reshape(math.prod(values.shape[:at]), values.shape[at], math.prod(values.shape[at + 1 :]))
    with np.errstate(invalid="ignore"):
        lows, highs = _reduced(np.minimum, table), _reduced(np.maximum, table)
        # Adding +0.0 turns -0.0 into 0.0: which of them a reduction finds depends on the order.
        lows, highs = lows + np.float32(0), highs + np.float32(0)
        known = bool(np.isfinite(lows - highs).all())
    rows = _some_rows(table)
    if not known:
        finite = np.isfinite(table)
        lows = table.min(axis=(0, 2), where=finite, initial=np.float32(np.inf)) + np.float32(0)
        highs = table.max(axis=(0, 2), where=finite, initial=np.float32(-np.inf)) + np.float32(0)
        rows = rows[np.isfinite(rows).all(axis=1)]
    return Channels(axis=axis, lows=lows, highs=highs, rows=len(rows), sums=_sums(rows)), known


def _reduced(extreme: np.ufunc, table: Float32) -> Float32:
    """The extreme of each channel of [outer, C, inner], along one axis at a time: twice as fast as along both."""
    found: Float32 = extreme.reduce(table, axis=2) if table.shape[2] > 1 else table[:, :, 0]
    folded: Float32 = extreme.reduce(found, axis=0) if len(found) > 1 else found[0]
    return folded


def _some_rows(table: Float32) -> Float32:
    """At most ROWS positions of [outer, C, inner] at even distances, as float32[n, C]."""
    outer, _, inner = table.shape
    step = max(1, -(-outer * inner // ROWS))
    if outer == 1:
        return table[0, :, ::step].T
    if inner == 1:
        return table[::step, :, 0]
    chosen = np.arange(0, outer * inner, step)
    return table[chosen // inner, :, chosen % inner]


def _sums(rows: Float32) -> GridSums:
    if not rows.size:
        return GridSums()
    peak = max(float(np.maximum.reduce(rows, axis=None)), -float(np.minimum.reduce(rows, axis=None)))
    if peak == 0.0:
        return GridSums()
    exponent = grid_exponent(peak)
    return GridSums({exponent: np.add.reduce(on_grid(rows, exponent, bits=BITS), axis=0).astype(np.int64)})
