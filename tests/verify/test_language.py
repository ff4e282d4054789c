"""The logits of a causal language model get figures of their own; other outputs do not."""

from __future__ import annotations

import numpy as np
import pytest

from quantool.kernels.language import token_divergences
from quantool.measured import OutputComparison
from quantool.metrics import Sample, find
from quantool.schema import AnyArray, Feed
from quantool.verify import Comparator

RNG = np.random.default_rng(3)
KEY = RNG.normal(0, 1, (1, 2, 6, 4)).astype(np.float32)
FEEDS = [{"input_ids": RNG.integers(0, 9, (1, count)), "past_key_values.0.key": KEY[:, :, :0]} for count in (6, 4)]
EXACT = [RNG.normal(0, 2, (1, feed["input_ids"].shape[1], 9)).astype(np.float32) for feed in FEEDS]
FOUND = [array + RNG.normal(0, 0.3, array.shape).astype(np.float32) for array in EXACT]


def compared(feeds: list[Feed], *, name: str = "logits", cache: str = "present.0.key") -> dict[str, OutputComparison]:
    comparator = Comparator()
    for feed, exact, found in zip(feeds, EXACT, FOUND, strict=True):
        comparator.add({name: exact, cache: KEY}, {name: found, cache: KEY + 0.1}, feed)
    return comparator.result()


def metric(name: str, outputs: list[AnyArray]) -> float:
    chosen = find(name)
    parts = [
        chosen.parts(Sample(feed=feed, labels={}, outputs={"logits": found}, reference={"logits": exact}))
        for feed, exact, found in zip(FEEDS, EXACT, outputs, strict=True)
    ]
    return float(chosen.value(np.concatenate(parts).sum(0)))


def test_the_logits_have_divergence_and_both_perplexities() -> None:
    found = compared(FEEDS)["logits"]
    divergences = np.concatenate([token_divergences(a[0], b[0]) for a, b in zip(EXACT, FOUND, strict=True)])
    assert found.kl == pytest.approx(divergences.mean())
    assert found.float_perplexity == pytest.approx(metric("perplexity", EXACT))
    assert found.perplexity == pytest.approx(metric("perplexity", FOUND))
    assert found.kl == pytest.approx(metric("kl", FOUND))


def test_the_cache_has_no_top_1() -> None:
    found = compared(FEEDS)
    assert found["present.0.key"].top1_agreement is None
    assert found["present.0.key"].sqnr_db is not None
    assert found["logits"].top1_agreement is not None
    assert compared([{} for _ in FEEDS], cache="other")["other"].top1_agreement is not None


def test_models_without_a_cache_are_not_taken_for_causal_ones() -> None:
    plain = [{"input_ids": feed["input_ids"]} for feed in FEEDS]
    for found in (compared(plain, cache="other")["logits"], compared(FEEDS, name="scores")["scores"]):
        assert (found.kl, found.float_perplexity, found.perplexity) == (None, None, None)


def test_single_tokens_count_for_the_divergence_alone() -> None:
    comparator = Comparator()
    feed = {"input_ids": np.array([[3]]), "past_key_values.0.key": KEY}
    comparator.add({"logits": EXACT[0][:, :1]}, {"logits": FOUND[0][:, :1]}, feed)
    found = comparator.result()["logits"]
    assert found.kl is not None
    assert (found.float_perplexity, found.perplexity) == (None, None)


def test_logits_lost_to_nan_never_read_well() -> None:
    comparator = Comparator()
    lost = FOUND[0].copy()
    lost[0, 2, 3] = np.nan
    comparator.add({"logits": EXACT[0]}, {"logits": lost}, FEEDS[0])
    found = comparator.result()["logits"]
    assert (found.kl, found.perplexity) == (np.inf, np.inf)
    assert found.float_perplexity == pytest.approx(metric_of_one())


def metric_of_one() -> float:
    chosen = find("perplexity")
    parts = chosen.parts(Sample(feed=FEEDS[0], labels={}, outputs={"logits": EXACT[0]}, reference={}))
    return float(chosen.value(parts.sum(0)))
