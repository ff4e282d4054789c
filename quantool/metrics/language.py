"""Metrics of language models: perplexity on a text, and how far next-token chances are from the float model's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantool.data.next_tokens import LOGITS, next_tokens, shown_tokens
from quantool.errors import DataError
from quantool.kernels.language import token_divergences, token_losses
from quantool.metrics.parts import Parts, Sample, chosen_output, mean, output_of
from quantool.schema import AnyArray

#: labels below 0 (usually -100) are left out
_FIX = (
    "Give token ids as the input 'input_ids', which are the text, or an array 'labels' beside the inputs: the id that "
    "follows each token, -100 where none counts."
)


def losses(sample: Sample) -> Parts:
    """Rows x (cross entropy of the tokens in nats, tokens); labels, else the token ids that follow."""
    for key, labels in sample.labels.items():
        _, name = chosen_output(sample.outputs, output_of(key) or LOGITS)
        scores = sample.outputs[name]
        if scores.ndim < 2 or labels.size != scores[..., 0].size:
            raise _no_text(f"the labels have shape {list(labels.shape)} and '{name}' {list(scores.shape)}")
        return _sums(scores, labels.reshape(scores.shape[:-1]).astype(np.int64))
    _, name = chosen_output(sample.outputs, LOGITS)
    logits = sample.outputs[name]
    targets = next_tokens(sample.feed, logits)
    if targets is None:
        raise _no_text(f"the text behind the output '{name}' of shape {list(logits.shape)} is not known")
    return _sums(logits, targets)


def perplexity(sums: Parts) -> Parts:
    """exp(cross entropy a token); NaN without tokens."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        found: Parts = np.exp(sums[..., 0] / sums[..., 1])
    return found


def divergences(sample: Sample) -> Parts:
    """Rows x (divergence from the float model's chances in nats, tokens)."""
    _, name = chosen_output(sample.outputs, LOGITS)
    test, exact = sample.outputs[name], sample.reference[name]
    if test.ndim < 2:
        raise _no_text(f"the output '{name}' has shape {list(test.shape)}", code="metric-output")
    shown = shown_tokens(sample.feed, test)
    found = token_divergences(exact.reshape(-1, exact.shape[-1]), test.reshape(-1, test.shape[-1]))
    counted = np.ones(found.shape, bool) if shown is None else shown.reshape(-1)
    rows = len(test)
    sums = np.where(counted, found, 0.0).reshape(rows, -1).sum(1)
    return np.stack([sums, counted.reshape(rows, -1).sum(1)], axis=-1)


divergence = mean


def _sums(logits: AnyArray, targets: NDArray[np.int64]) -> Parts:
    try:
        found = token_losses(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
    except ValueError as error:
        raise _no_text(str(error)) from error
    rows = len(targets)
    return np.stack([found.reshape(rows, -1).sum(1), (targets >= 0).reshape(rows, -1).sum(1)], axis=-1)


def _no_text(what: str, *, code: str = "labels-missing") -> DataError:
    return DataError(code, what, where="--metric, --verify-data", fix=_FIX)
