"""DNSMOS: how good does this recording sound, from 1 to 5? There is no outer truth: the float model is the judge."""

from __future__ import annotations

import functools

import numpy as np

from tests.real import measure, speech, text, wheels
from tests.real.model import Array, Feed, RealModel, Run

SAMPLES = 144160
SECONDS = 9.1
NOISE_DB = (0.0, 30.0)
CALIBRATION, EVALUATION = 24, 32
OUTPUT = "Identity:0"
# Listeners tell recordings apart that are some 0.1 points of opinion apart.
RESOLUTION = 0.02


def _feeds(seed: int, count: int, documents: tuple[str, ...]) -> list[Feed]:
    clips = speech.clips(seed, count, documents=documents, seconds=SECONDS, snr_db=NOISE_DB)
    return [{"input_1": clip.samples[None, :SAMPLES]} for clip in clips]


def _evaluation() -> list[Feed]:
    return _feeds(52, EVALUATION, text.EVALUATION)


def _opinions(run: Run) -> Array:
    """Return speech, background and overall quality of each recording, float32[N,3]."""
    return np.concatenate([run(feed)[OUTPUT] for feed in _evaluation()])


@functools.cache
def _float_opinions() -> Array:
    return _opinions(measure.runner(wheels.fetch(wheels.DNSMOS)))


def _difference(run: Run) -> float:
    return float(np.mean(np.abs(_opinions(run) - _float_opinions())))


def build() -> RealModel:
    return RealModel(
        name="dnsmos",
        path=wheels.fetch(wheels.DNSMOS),
        calib=lambda: _feeds(51, CALIBRATION, text.CALIBRATION),
        eval_feeds=_evaluation,
        evaluate=_difference,
        metric="points of opinion off",
        higher_is_better=False,
        resolution=RESOLUTION,
    )
