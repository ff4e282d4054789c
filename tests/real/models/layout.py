"""PicoDet page layout: where on the page are titles, paragraphs and figures? A detector with many box heads."""

from __future__ import annotations

import functools

import numpy as np

from tests.real import boxes, drawing, text, wheels
from tests.real.boxes import Box
from tests.real.model import Array, Feed, RealModel, Run, chance_of_shares

WIDTH, HEIGHT = 608, 800
CLASSES = ("text", "title", "figure")  # the first of ten
SCORE_THRESHOLD = 0.4
CALIBRATION, EVALUATION, FOR_SQNR = 24, 24, 8
#: stride in pixels -> the outputs with class scores [1,cells,10] and with box sides [1,cells,4*8]
HEADS = {
    8: ("transpose_0.tmp_0", "transpose_1.tmp_0"),
    16: ("transpose_2.tmp_0", "transpose_3.tmp_0"),
    32: ("transpose_4.tmp_0", "transpose_5.tmp_0"),
    64: ("transpose_6.tmp_0", "transpose_7.tmp_0"),
}

Parts = tuple[tuple[str, Box], ...]


@functools.cache
def _pages(seed: int, count: int, documents: tuple[str, ...]) -> tuple[tuple[Feed, Parts], ...]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        image, parts = drawing.layout(rng, documents, width=WIDTH, height=HEIGHT)
        found.append(({"image": drawing.planes(image, drawing.IMAGENET_MEAN, drawing.IMAGENET_STD)}, parts))
    return tuple(found)


def detect(outputs: dict[str, Array]) -> list[tuple[float, str, Box]]:
    """Return (score, class, box), best first, without doubles.

    A side's distance is the mean of a distribution over 0 to 7 strides (generalized focal loss, arXiv 2006.04388).
    """
    found: list[tuple[float, str, Box]] = []
    for stride, (scores_name, sides_name) in HEADS.items():
        scores, sides = outputs[scores_name][0], outputs[sides_name][0].reshape(-1, 4, 8).astype(np.float64)
        weights = np.exp(sides - sides.max(axis=-1, keepdims=True))
        distances = weights @ np.arange(8) / weights.sum(axis=-1) * stride
        rows, columns = np.indices((-(-HEIGHT // stride), -(-WIDTH // stride))).reshape(2, -1)
        centers = (np.stack([columns, rows], axis=1) + 0.5) * stride
        corners = np.concatenate([centers - distances[:, :2], centers + distances[:, 2:]], axis=1)
        for cell, kind in np.argwhere(scores[:, : len(CLASSES)] > SCORE_THRESHOLD):
            left, top, right, bottom = corners[cell].tolist()
            found.append((float(scores[cell, kind]), CLASSES[kind], (left, top, right, bottom)))
    return _without_doubles(sorted(found, reverse=True))


def _without_doubles(found: list[tuple[float, str, Box]]) -> list[tuple[float, str, Box]]:
    kept: list[tuple[float, str, Box]] = []
    for score, kind, box in found:
        if all(boxes.iou(box, other) < boxes.MATCH_IOU for _, same, other in kept if same == kind):
            kept.append((score, kind, box))
    return kept


def _f1(run: Run) -> float:
    hits = predicted = expected = 0
    for feed, parts in _pages(62, EVALUATION, text.EVALUATION):
        found = detect(run(feed))
        for kind in CLASSES:
            ours, truth = ([box for same, box in pairs if same == kind] for pairs in ([f[1:] for f in found], parts))
            hits += boxes.matches(ours, truth)
            predicted += len(ours)
            expected += len(truth)
    return 2 * hits / (predicted + expected)


def build() -> RealModel:
    parts = sum(len(parts) for _, parts in _pages(62, EVALUATION, text.EVALUATION))
    return RealModel(
        name="layout",
        path=wheels.fetch(wheels.LAYOUT),
        calib=lambda: [feed for feed, _ in _pages(61, CALIBRATION, text.CALIBRATION)],
        eval_feeds=lambda: [feed for feed, _ in _pages(62, EVALUATION, text.EVALUATION)[:FOR_SQNR]],
        evaluate=_f1,
        metric="F1 of parts",
        higher_is_better=True,
        resolution=chance_of_shares(parts),
    )
