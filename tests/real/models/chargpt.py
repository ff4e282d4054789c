"""A small character GPT with a causal mask of -1e9: how well does it foresee the next character?"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from tests.real import wheels
from tests.real.model import Array, Feed, RealModel, Run

FOLDER = wheels.REPOSITORY / "sample_models"
CALIBRATION, EVALUATION = 64, 192


@functools.cache
def _rows(file: Path) -> dict[str, Array]:
    with np.load(file) as arrays:
        return dict(arrays)


def _feeds(kind: str, count: int) -> list[Feed]:
    ids = _rows(FOLDER / f"chargpt.{kind}.npz")["ids"][:count]
    return [{"ids": row[None]} for row in ids]


def _perplexity(run: Run) -> float:
    labels = _rows(FOLDER / "chargpt.eval.npz")["labels"][:EVALUATION]
    surprise = []
    for feed, truth in zip(_feeds("eval", EVALUATION), labels, strict=True):
        (logits,) = run(feed).values()
        wide = logits[0].astype(np.float64)
        peak = wide.max(axis=1, keepdims=True)
        total = peak[:, 0] + np.log(np.exp(wide - peak).sum(axis=1))
        surprise.append(total - wide[np.arange(len(truth)), truth])
    return float(np.exp(np.mean(surprise)))


def build() -> RealModel:
    return RealModel(
        name="chargpt",
        path=FOLDER / "chargpt.onnx",
        calib=lambda: _feeds("calib", CALIBRATION),
        eval_feeds=lambda: _feeds("eval", EVALUATION),
        evaluate=_perplexity,
        metric="perplexity",
        higher_is_better=False,
        resolution=0.01,
    )
