"""Perplexity and divergence: against plain NumPy, on labels and on the text that the feed is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantool.errors import DataError
from quantool.metrics import Measured, Paired, Sample, find
from quantool.schema import AnyArray

RNG = np.random.default_rng(5)
LOGITS = RNG.normal(0, 2, (2, 6, 9)).astype(np.float32)
IDS = RNG.integers(0, 9, (2, 6))


def plain_perplexity(logits: AnyArray, targets: AnyArray) -> float:
    """Exp of the mean cross entropy, targets [batch, tokens]."""
    wide = logits.astype(np.float64)
    chances = np.exp(wide) / np.exp(wide).sum(-1, keepdims=True)
    return float(np.exp(-np.log(np.take_along_axis(chances, targets[..., None], -1)).mean()))


def sample(outputs: AnyArray, *, reference: AnyArray | None = None, **given: AnyArray) -> Sample:
    labels = {name: array for name, array in given.items() if name.startswith("label")}
    feed = {name: array for name, array in given.items() if name not in labels}
    exact = outputs if reference is None else reference
    cache = np.zeros((2, 1, 6, 4), np.float32)
    return Sample(
        feed=feed, labels=labels, outputs={"present.0.key": cache, "logits": outputs},
        reference={"present.0.key": cache, "logits": exact},
    )  # fmt: skip


def value(name: str, *samples: Sample) -> float:
    metric = find(name)
    return float(metric.value(np.concatenate([metric.parts(one) for one in samples]).sum(0)))


def test_perplexity_is_that_of_the_next_token_ids() -> None:
    found = value("perplexity", sample(LOGITS, input_ids=IDS))
    assert found == pytest.approx(plain_perplexity(LOGITS[:, :-1], IDS[:, 1:]), rel=1e-9)


def test_perplexity_over_feeds_of_unequal_length_weighs_tokens_not_feeds() -> None:
    short = sample(LOGITS[:1, :3], input_ids=IDS[:1, :3])
    found = value("perplexity", sample(LOGITS, input_ids=IDS), short)
    logits = np.concatenate([LOGITS[:, :-1].reshape(-1, 9), LOGITS[0, :2]])
    targets = np.concatenate([IDS[:, 1:].reshape(-1), IDS[0, 1:3]])
    assert found == pytest.approx(plain_perplexity(logits, targets), rel=1e-9)


def test_labels_come_before_the_text_and_negative_ones_do_not_count() -> None:
    labels = RNG.integers(0, 9, (2, 6))
    assert value("perplexity", sample(LOGITS, input_ids=IDS, labels=labels)) == pytest.approx(
        plain_perplexity(LOGITS, labels), rel=1e-9
    )
    ignored = labels.copy()
    ignored[0, :] = -100
    assert value("perplexity", sample(LOGITS, labels=ignored)) == pytest.approx(
        plain_perplexity(LOGITS[1], labels[1]), rel=1e-9
    )


def test_labels_of_one_sequence_need_no_batch_axis() -> None:
    labels = RNG.integers(0, 9, 6)
    found = value("perplexity", sample(LOGITS[:1], labels=labels))
    assert found == pytest.approx(plain_perplexity(LOGITS[0], labels), rel=1e-9)


def test_padding_counts_neither_as_context_nor_as_target() -> None:
    mask = np.array([[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]])
    found = value("perplexity", sample(LOGITS, input_ids=IDS, attention_mask=mask))
    logits = np.concatenate([LOGITS[0, :3], LOGITS[1, 2:5]])
    targets = np.concatenate([IDS[0, 1:4], IDS[1, 3:6]])
    assert found == pytest.approx(plain_perplexity(logits, targets), rel=1e-9)


def test_kl_is_the_mean_divergence_a_token() -> None:
    other = LOGITS + RNG.normal(0, 0.2, LOGITS.shape).astype(np.float32)
    p, q = (np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum(-1, keepdims=True) for x in (LOGITS, other))
    found = value("kl", sample(other, reference=LOGITS, input_ids=IDS))
    assert found == pytest.approx(float((p * np.log(p / q)).sum(-1).mean()), rel=1e-9)
    assert value("kl", sample(LOGITS)) == 0.0


def test_a_single_token_has_no_next_one_and_no_perplexity() -> None:
    assert math.isnan(value("perplexity", sample(LOGITS[:, :1], input_ids=IDS[:, :1])))


@pytest.mark.parametrize(
    "given", [{}, {"input_ids": IDS[:, :3]}, {"input_ids": IDS + 9}], ids=["none", "short", "beyond"]
)
def test_perplexity_without_a_text_says_what_is_missing(given: dict[str, AnyArray]) -> None:
    with pytest.raises(DataError, match=r"labels-missing: .*input_ids"):
        value("perplexity", sample(LOGITS, **given))


def measured(name: str, noise: float) -> Measured:
    paired = Paired(find(name))
    generator = np.random.default_rng(0)
    for _ in range(30):
        exact = generator.normal(0, 2, (1, 8, 9)).astype(np.float32)
        ids = exact.argmax(-1)
        ids[:, 1:] = ids[:, :-1].copy()  # the model knows its text
        changed = exact + generator.normal(0, noise, exact.shape).astype(np.float32)
        feed = {"input_ids": ids}
        first = Sample(feed=feed, labels={}, outputs={"logits": exact}, reference={"logits": exact})
        paired.add(first, Sample(feed=feed, labels={}, outputs={"logits": changed}, reference={"logits": exact}))
    found = paired.result()
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["perplexity", "kl"])
def test_a_worse_model_drops_with_an_interval_that_holds_the_drop(name: str) -> None:
    found = measured(name, 2.0)
    assert found.drop is not None
    assert found.interval is not None
    assert found.drop > 0
    assert found.interval[0] < found.drop < found.interval[1]
    assert found.resolved
    assert measured(name, 0.0).drop == 0.0
