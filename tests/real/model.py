"""What the bed knows about one real model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pathlib import Path

Array = NDArray[Any]
Feed = Mapping[str, Array]
Run = Callable[[Feed], dict[str, Array]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RealModel:
    """A trained model, the data it is calibrated on, and a task whose truth is known.

    `calib` and `eval_feeds` never share a sample. `eval_feeds` is a small share of the evaluation data, for SQNR and
    latency; `evaluate` runs the whole of it. Differences of the metric below `resolution` are noise.
    """

    name: str
    path: Path
    calib: Callable[[], Sequence[Feed]]
    eval_feeds: Callable[[], Sequence[Feed]]
    evaluate: Callable[[Run], float]
    metric: str
    higher_is_better: bool
    resolution: float

    def __post_init__(self) -> None:
        if self.resolution <= 0:
            raise ValueError(f"resolution of {self.name} is {self.resolution}; it must be positive")

    def gain(self, value: float, reference: float) -> float:
        """Return by how much `value` is better than `reference`; negative where it is worse."""
        return value - reference if self.higher_is_better else reference - value


def chance_of_shares(count: int) -> float:
    """Return the resolution of a share of `count` samples: four samples that all flip the same way.

    By the sign test that happens by chance in one of sixteen cases; five would be one of thirty-two.
    """
    return 4.0 / count


def top1_accuracy(run: Run, feeds: Sequence[Feed], labels: Sequence[int], *, output: str) -> float:
    """Return the share of feeds of one row whose largest score stands at their label."""
    guesses = [int(np.argmax(run(feed)[output][0])) for feed in feeds]
    return float(np.mean(np.asarray(guesses) == np.asarray(labels)))
