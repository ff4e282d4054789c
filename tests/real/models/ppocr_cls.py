"""PP-OCR text line orientation: is this line upright or upside down?"""

from __future__ import annotations

import functools

import numpy as np
from PIL import Image

from tests.real import drawing, text, wheels
from tests.real.model import Feed, RealModel, chance_of_shares, top1_accuracy

HEIGHT, WIDTH = 48, 192
HALF = np.array([0.5, 0.5, 0.5], np.float32)
CALIBRATION, EVALUATION = 48, 800
OUTPUT = "save_infer_model/scale_0.tmp_1"


def _feed(image: Image.Image) -> Feed:
    """Scale to a height of 48, keep the ratio up to a width of 192, pad with grey on the right."""
    width = min(WIDTH, round(HEIGHT * image.width / image.height))
    x = np.zeros((1, 3, HEIGHT, WIDTH), np.float32)
    x[..., :width] = drawing.planes(image.resize((width, HEIGHT), Image.Resampling.BILINEAR), HALF, HALF)
    return {"x": x}


@functools.cache
def _samples(seed: int, count: int, documents: tuple[str, ...]) -> tuple[tuple[Feed, ...], tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    feeds, labels = [], []
    for index in range(count):
        image = drawing.line(rng, text.phrase(rng, documents, count=int(rng.integers(1, 5))))
        turned = index % 2
        feeds.append(_feed(image.rotate(180) if turned else image))
        labels.append(turned)
    return tuple(feeds), tuple(labels)


def build() -> RealModel:
    def evaluation() -> tuple[tuple[Feed, ...], tuple[int, ...]]:
        return _samples(2, EVALUATION, text.EVALUATION)

    return RealModel(
        name="ppocr_cls",
        path=wheels.fetch(wheels.PPOCR_CLS),
        calib=lambda: _samples(1, CALIBRATION, text.CALIBRATION)[0],
        eval_feeds=lambda: evaluation()[0][:128],
        evaluate=lambda run: top1_accuracy(run, *evaluation(), output=OUTPUT),
        metric="accuracy",
        higher_is_better=True,
        resolution=chance_of_shares(EVALUATION),
    )
