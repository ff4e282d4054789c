"""Losses and divergences of next-token logits: the same in any pieces, and what plain NumPy computes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantool.kernels.language import token_divergences, token_losses


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True).astype(np.float64))
    return powers / powers.sum(-1, keepdims=True)


def some(
    seed: int, tokens: int, vocabulary: int, dtype: type = np.float32
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    reference = generator.normal(0, 3, (tokens, vocabulary)).astype(dtype)
    test = (reference + generator.normal(0, 0.3, reference.shape)).astype(dtype)
    return reference, test, generator.integers(-1, vocabulary, tokens)


@given(seed=st.integers(0, 99), tokens=st.integers(0, 12), vocabulary=st.integers(1, 40), piece=st.integers(1, 100))
def test_pieces_change_nothing(seed: int, tokens: int, vocabulary: int, piece: int) -> None:
    reference, test, targets = some(seed, tokens, vocabulary)
    np.testing.assert_allclose(token_losses(test, targets, piece=piece), token_losses(test, targets), rtol=1e-12)
    np.testing.assert_allclose(
        token_divergences(reference, test, piece=piece), token_divergences(reference, test), rtol=1e-9, atol=1e-15
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_values_are_those_of_the_definition(dtype: type) -> None:
    reference, test, targets = some(1, 50, 30, dtype)
    p, q = softmax(reference), softmax(test)
    np.testing.assert_allclose(token_divergences(reference, test), (p * np.log(p / q)).sum(1), rtol=1e-9)
    wanted = np.where(targets < 0, 0.0, -np.log(q[np.arange(50), targets]))
    np.testing.assert_allclose(token_losses(test, targets), wanted, rtol=1e-9)


def test_equal_logits_diverge_by_nothing_and_a_shift_changes_nothing() -> None:
    reference, _, _ = some(2, 5, 7)
    assert token_divergences(reference, reference).tolist() == [0.0] * 5
    np.testing.assert_allclose(token_divergences(reference, reference + 4), 0.0, atol=1e-6)


def test_large_logits_do_not_overflow() -> None:
    logits = np.array([[60000.0, 0.0, -60000.0]], np.float32)
    assert token_losses(logits, np.array([0])).tolist() == [0.0]
    assert token_losses(logits, np.array([2])).tolist() == [120000.0]


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_logits_that_say_nothing_are_the_worst(odd: float) -> None:
    reference, test = np.zeros((1, 3), np.float32), np.array([[0.0, odd, 1.0]], np.float32)
    assert token_divergences(reference, test).tolist() == [np.inf]
    assert token_losses(test, np.array([0])).tolist() == [np.inf]


def test_tokens_that_both_exclude_count_nothing_and_one_side_alone_is_the_worst() -> None:
    masked = np.array([[0.0, 1.0, -np.inf]], np.float32)
    assert token_divergences(masked, masked).tolist() == [0.0]
    assert token_divergences(np.zeros_like(masked), masked).tolist() == [np.inf]
    assert np.isfinite(token_divergences(masked, np.zeros_like(masked))).all()


def test_a_target_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond the vocabulary of 3"):
        token_losses(np.zeros((1, 3), np.float32), np.array([3]))
    with pytest.raises(ValueError, match="must be the reference's"):
        token_divergences(np.zeros((1, 3)), np.zeros((1, 4)))


def test_memory_does_not_grow_with_the_sequence() -> None:
    logits = np.zeros((256, 20_000), np.float32)  # 20 MB
    tracemalloc.start()
    try:
        token_divergences(logits, logits)
        token_losses(logits, np.zeros(256, np.int64))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40e6 / 2  # float64 copies of both would take 82 MB
