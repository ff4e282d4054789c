"""Page orientation: by how many quarter turns is this page rotated?"""

from __future__ import annotations

import functools

import numpy as np
from PIL import Image

from tests.real import drawing, text, wheels
from tests.real.model import Feed, RealModel, chance_of_shares, top1_accuracy

SHORT_SIDE, CROP = 256, 224
CALIBRATION, EVALUATION = 48, 160
OUTPUT = "fetch_name_0"


def _feed(image: Image.Image) -> Feed:
    """Scale the short side to 256 and cut 224 x 224 out of the middle."""
    scale = SHORT_SIDE / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)
    left, top = (image.width - CROP) // 2, (image.height - CROP) // 2
    image = image.crop((left, top, left + CROP, top + CROP))
    return {"x": drawing.planes(image, drawing.IMAGENET_MEAN, drawing.IMAGENET_STD)}


@functools.cache
def _samples(seed: int, count: int, documents: tuple[str, ...]) -> tuple[tuple[Feed, ...], tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    feeds, labels = [], []
    for index in range(count):
        width, height = (int(side) for side in rng.integers(280, 420, 2))
        page = drawing.page(rng, documents, width=width, height=height).image
        turns = index % 4
        feeds.append(_feed(page.rotate(-90 * turns, expand=True)))
        labels.append(turns)
    return tuple(feeds), tuple(labels)


def build() -> RealModel:
    def evaluation() -> tuple[tuple[Feed, ...], tuple[int, ...]]:
        return _samples(12, EVALUATION, text.EVALUATION)

    return RealModel(
        name="orientation",
        path=wheels.fetch(wheels.ORIENTATION),
        calib=lambda: _samples(11, CALIBRATION, text.CALIBRATION)[0],
        eval_feeds=lambda: evaluation()[0][:64],
        evaluate=lambda run: top1_accuracy(run, *evaluation(), output=OUTPUT),
        metric="accuracy",
        higher_is_better=True,
        resolution=chance_of_shares(EVALUATION),
    )
