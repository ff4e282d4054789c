"""The logits of a causal language model, float against quantized, over the text of the feeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from quantool.data.decoder_inputs import PAST, PRESENT
from quantool.data.next_tokens import LOGITS, next_tokens, shown_tokens
from quantool.kernels.language import token_divergences, token_losses
from quantool.schema import AnyArray, Feed


@dataclass(slots=True)
class TextFigures:
    """Sums over the tokens that are no padding; losses over those that have a next token, in nats."""

    divergence: float = 0.0
    tokens: int = 0
    float_loss: float = 0.0
    loss: float = 0.0
    targets: int = 0

    def add(self, reference: AnyArray, test: AnyArray, feed: Feed) -> None:
        """Fold in the logits [batch, tokens, vocabulary] of one feed."""
        targets = next_tokens(feed, reference)
        if targets is None:
            return
        flat = [array.reshape(-1, array.shape[-1]) for array in (reference, test)]
        shown = shown_tokens(feed, reference)
        counted = np.ones(targets.size, bool) if shown is None else shown.reshape(-1)
        self.divergence += float(token_divergences(*flat)[counted].sum())
        self.tokens += int(counted.sum())
        self.float_loss += float(token_losses(flat[0], targets.reshape(-1)).sum())
        self.loss += float(token_losses(flat[1], targets.reshape(-1)).sum())
        self.targets += int((targets >= 0).sum())

    @property
    def kl(self) -> float | None:
        """Mean divergence a token, in nats."""
        return self.divergence / self.tokens if self.tokens else None

    @property
    def float_perplexity(self) -> float | None:
        """The float model's perplexity on the text."""
        return self._perplexity(self.float_loss)

    @property
    def perplexity(self) -> float | None:
        """The quantized model's perplexity on the text."""
        return self._perplexity(self.loss)

    def _perplexity(self, loss: float) -> float | None:
        if not self.targets:
            return None
        mean = loss / self.targets
        return math.exp(mean) if mean < math.log(1e300) else math.inf


def is_causal(feed: Feed, outputs: Mapping[str, AnyArray]) -> bool:
    """Whether the model has a KV cache, which only causal language models have: elsewhere ids are no next tokens."""
    return LOGITS in outputs and any(name.startswith((PAST, PRESENT)) for name in (*feed, *outputs))


def is_cache(name: str) -> bool:
    """Whether an output is a part of the KV cache: its largest entries are no answers."""
    return name.startswith(PRESENT)
