"""What a ``.qcal`` file holds, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from calibrators import Channels, Gram, Statistic


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What one pass over the data found out about each tensor.

    Attributes:
        tensors: tensor name -> statistic.
        channels: tensor name -> statistic of its channels, for inputs of layers with weights.
        grams: key of a layer's input (see quantool.algorithms.layer_input) -> Gram matrix, where asked for.
        model_sha256: hash of the model that produced the tensors, its external data included.
        graph_sha256: hash of the normalized graph that was run, likewise; "" where unknown.
        samples: how many feeds went in.
        sources: descriptions of the data, sorted.
        feeds: the first 8 bytes of each feed's content hash as an integer, sorted; empty where unknown.
        full: every element was counted, also of large tensors.
    """

    tensors: Mapping[str, Statistic] = field(default_factory=dict)
    channels: Mapping[str, Channels] = field(default_factory=dict)
    grams: Mapping[str, Gram] = field(default_factory=dict)
    model_sha256: str = ""
    graph_sha256: str = ""
    samples: int = 0
    sources: tuple[str, ...] = ()
    feeds: tuple[int, ...] = ()
    full: bool = False
