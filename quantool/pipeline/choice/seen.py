"""What a few feeds show of tensors' channels, feed by feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from calibrators import Channels
from quantool.algorithms.equalization import Float64, unseen_growth
from quantool.graph.outputs import with_outputs
from quantool.pipeline.choice.channels import Layout
from quantool.pipeline.choice.rescale import Origin, by_channel
from quantool.pipeline.source import FloatModel
from quantool.runtime import tap
from quantool.schema import AnyArray, Feed


@dataclass(slots=True, kw_only=True)
class Seen:
    """The channels of a tensor. lows, highs: float64[C] of each feed; squares: float64[C], sums over rows."""

    layout: Layout
    lows: list[Float64] = field(default_factory=list)
    highs: list[Float64] = field(default_factory=list)
    squares: Float64 = field(default_factory=lambda: np.zeros(1))
    rows: int = 0

    def add(self, array: AnyArray) -> None:
        """Count one feed's array; what is not finite counts as zero."""
        count = self.layout.count
        wide = np.where(np.isfinite(array), array, 0).astype(np.float64)
        others = tuple(axis for axis in range(wide.ndim) if axis != self.layout.axis % wide.ndim)
        self.lows.append(-by_channel(-wide.min(axis=others, initial=0.0), self.layout))
        self.highs.append(by_channel(wide.max(axis=others, initial=0.0), self.layout))
        self.squares = self.squares + np.square(wide).sum(axis=others).reshape(count, -1).sum(axis=1)
        self.rows += wide.size // max(count, 1)

    @property
    def power(self) -> Float64:
        """The mean square of each channel."""
        return self.squares / max(self.rows, 1)

    @property
    def peaks(self) -> list[Float64]:
        """The largest magnitudes of each feed."""
        return [np.maximum(-low, high) for low, high in zip(self.lows, self.highs, strict=True)]

    @property
    def growth(self) -> list[Float64]:
        """For each feed, how much its channels would grow if it had not been measured."""
        return unseen_growth(self.peaks)

    def ends(self, known: Channels | None, origin: Origin | None) -> tuple[Float64, Float64]:
        """The lowest and the highest of each channel: in these feeds, grown as if unseen, and in calibration.

        known: of the tensor that was calibrated, whose origin tells how it was rescaled since.
        """
        growth = self.growth
        low = np.min([a * g for a, g in zip(self.lows, growth, strict=True)], axis=0)
        high = np.max([a * g for a, g in zip(self.highs, growth, strict=True)], axis=0)
        if known is None or known.lows.size != self.layout.count * self.layout.repeats:
            return low, high
        scale = np.ones(known.lows.size) if origin is None else origin.factors
        lows, highs = (np.where(np.isfinite(end), end, 0.0) * scale for end in (known.lows, known.highs))
        return np.minimum(low, -by_channel(-lows, self.layout)), np.maximum(high, by_channel(highs, self.layout))


def seen_channels(source: FloatModel, layouts: Mapping[str, Layout], feeds: Sequence[Feed]) -> Mapping[str, Seen]:
    """The channels of tensors, in one run over the feeds; one feed's arrays are in memory at a time."""
    seen = {name: Seen(layout=layout) for name, layout in layouts.items()}
    for _, arrays in tap(source.normalized, feeds, groups=[sorted(layouts)], with_outputs=with_outputs):
        for name, each in seen.items():
            each.add(arrays[name])
    return seen
