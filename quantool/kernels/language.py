"""Figures of next-token logits, in bounded pieces: the vocabulary times a sequence does not fit in memory twice.

log softmax(x)_i = x_i - m - log sum_j exp(x_j - m), m = max_j x_j. Everything in float64, a piece at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quantool.kernels.dtypes import Array

#: elements of a piece, one row at least: 1 MB in float64
PIECE = 1 << 17


def token_losses(logits: Array, targets: Array, *, piece: int = PIECE) -> Array:
    """Cross entropy of each token, -log softmax(logits)[target], in nats.

    logits: float [tokens, vocabulary]; targets: integers [tokens] within the vocabulary, or negative where a token does
    not count. Returns float64 [tokens]: 0 where it does not count, inf where the logits say nothing (NaN or +inf among
    them).

    Raises:
        ValueError: the lengths differ, or a target is beyond the vocabulary.
    """
    tokens, vocabulary = logits.shape
    if targets.shape != (tokens,):
        raise ValueError(f"targets have shape {list(targets.shape)}; {tokens} are needed.")
    if int(targets.max(initial=-1)) >= vocabulary:
        raise ValueError(f"the target {int(targets.max())} is beyond the vocabulary of {vocabulary}.")
    losses = np.zeros(tokens)
    for rows in _pieces(tokens, vocabulary, piece):
        counted = targets[rows] >= 0
        if counted.any():
            wanted = np.where(counted, targets[rows], 0).astype(np.int64)
            chances = np.take_along_axis(_log_softmax(logits[rows]), wanted[:, None], 1)[:, 0]
            losses[rows] = np.where(counted, -chances, 0.0)
    return np.where(np.isnan(losses), np.inf, losses)


def token_divergences(reference: Array, test: Array, *, piece: int = PIECE) -> Array:
    """Kullback-Leibler divergence sum_i p_i log(p_i / q_i) of each token, in nats, p and q the softmax of each side.

    reference, test: float [tokens, vocabulary]. Returns float64 [tokens], 0 at least; inf where a token that the
    reference may give is impossible in the test, or where one side's logits say nothing. Entries of -inf in both count
    nothing.

    Raises:
        ValueError: the shapes differ.
    """
    if reference.shape != test.shape:
        raise ValueError(f"test has shape {list(test.shape)}; it must be the reference's, {list(reference.shape)}.")
    tokens, vocabulary = reference.shape
    found = np.empty(tokens)
    for rows in _pieces(tokens, vocabulary, piece):
        p, q = _log_softmax(reference[rows]), _log_softmax(test[rows])
        with np.errstate(invalid="ignore"):
            terms = np.where(np.isneginf(p), 0.0, np.exp(p) * (p - q))
        found[rows] = terms.sum(1)
    return np.where(np.isnan(found), np.inf, np.maximum(found, 0.0))


def _pieces(tokens: int, vocabulary: int, piece: int) -> Iterator[slice]:
    step = max(1, piece // max(1, vocabulary))
    return (slice(start, start + step) for start in range(0, tokens, step))


def _log_softmax(logits: Array) -> Array:
    """Of rows, in float64; NaN all along a row that holds NaN or +inf, or nothing but -inf."""
    with np.errstate(invalid="ignore"):
        shifted = logits.astype(np.float64)
        shifted -= shifted.max(1, keepdims=True)
        logs: Array = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return logs
