"""What running a model showed: outputs beside the float model's, times, and what ran as integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputComparison:
    """One output, float against quantized, over all samples. sqnr_db None with exact True when equal.

    Of the logits of a causal language model: kl, the mean divergence from the float model's chances in nats a token,
    and the perplexity of both models on the feeds' text; None elsewhere.
    """

    sqnr_db: float | None
    worst_channel_sqnr_db: float | None
    cosine: float | None
    max_abs_error: float | None
    top1_agreement: float | None
    exact: bool
    kl: float | None = None
    float_perplexity: float | None = None
    perplexity: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Medians of interleaved runs, in milliseconds.

    ratio: the median of float time over quantized time in each pair of runs, which a drifting machine blurs less than
    the ratio of both medians; quartiles: of that ratio; interval: 95 % of its median; rounds: how many pairs. None
    where it was not measured in pairs.
    """

    float_ms: float
    quantized_ms: float
    ratio: float | None = None
    quartiles: tuple[float, float] | None = None
    interval: tuple[float, float] | None = None
    rounds: int | None = None

    @property
    def speedup(self) -> float:
        """How many times faster the quantized model is."""
        return self.float_ms / self.quantized_ms if self.ratio is None else self.ratio

    @property
    def is_clear(self) -> bool:
        """Whether the pairs tell which side is faster: by the median's interval, else by the middle half of them."""
        ends = self.interval or self.quartiles
        return ends is None or (ends[0] > 1) == (ends[1] > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsAs:
    """How the runtime's optimized model executes nodes.

    integer: node name -> whether it runs as integers; fused: integer operators by type; left: counts
    of QuantizeLinear and DequantizeLinear that remain; accuracy_levels: those of MatMulNBits, each once, ascending.
    """

    integer: Mapping[str, bool]
    fused: Mapping[str, int]
    left: Mapping[str, int]
    accuracy_levels: tuple[int, ...] = ()
