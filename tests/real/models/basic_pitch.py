"""basic-pitch: which notes sound in each frame of this audio? The notes are synthesized, so the truth is exact."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from tests.real import wheels
from tests.real.model import Feed, RealModel, Run

RATE, WINDOW, HOP, FRAMES = 22050, 43844, 256, 172
LOWEST_KEY, KEYS = 21, 88
CALIBRATION, EVALUATION = 24, 40
INPUT, NOTES = "serving_default_input_2:0", "StatefulPartitionedCall:1"
THRESHOLD = 0.3


def _tone(rng: np.random.Generator, key: int, length: int) -> NDArray[np.float64]:
    """Return a note with falling harmonics, a soft attack, a decay and a short release."""
    frequency = 440.0 * 2.0 ** ((key - 69) / 12)
    time = np.arange(length) / RATE
    tone = np.zeros(length)
    slope = rng.uniform(0.8, 1.8)
    for harmonic in range(1, 11):
        if harmonic * frequency < RATE / 2:
            phase = rng.uniform(0.0, 2 * np.pi)
            tone += np.sin(2 * np.pi * harmonic * frequency * time + phase) / harmonic**slope
    release = np.minimum(1.0, (length - np.arange(length)) / (0.02 * RATE))
    return tone * np.minimum(1.0, time / 0.01) * np.exp(-time * rng.uniform(0.2, 1.2)) * release


@functools.cache
def _clips(seed: int, count: int) -> tuple[tuple[Feed, NDArray[np.bool_]], ...]:
    rng = np.random.default_rng(seed)
    clips = []
    for _ in range(count):
        audio = rng.normal(0.0, rng.uniform(0.0, 0.01), WINDOW)
        truth = np.zeros((FRAMES, KEYS), bool)
        for _ in range(int(rng.integers(3, 10))):
            key = int(rng.integers(36, 85))
            start = int(rng.integers(0, WINDOW - RATE // 4))
            length = min(int(rng.uniform(0.25, 1.2) * RATE), WINDOW - start)
            audio[start : start + length] += rng.uniform(0.1, 0.3) * _tone(rng, key, length)
            truth[round(start / HOP) : round((start + length) / HOP), key - LOWEST_KEY] = True
        audio /= max(1.0, float(np.abs(audio).max()))
        clips.append(({INPUT: audio.astype(np.float32)[None, :, None]}, truth))
    return tuple(clips)


def _frame_f1(run: Run) -> float:
    hits = total = 0
    for feed, truth in _clips(32, EVALUATION):
        found = run(feed)[NOTES][0] > THRESHOLD
        hits += int(np.sum(found & truth))
        total += int(np.sum(found)) + int(np.sum(truth))
    return 2 * hits / total


def build() -> RealModel:
    return RealModel(
        name="basic_pitch",
        path=wheels.fetch(wheels.BASIC_PITCH),
        calib=lambda: [feed for feed, _ in _clips(31, CALIBRATION)],
        eval_feeds=lambda: [feed for feed, _ in _clips(32, EVALUATION)[:16]],
        evaluate=_frame_f1,
        metric="frame F1",
        higher_is_better=True,
        # About 240 notes: a frame more or less at both ends of 1 in 10 of them.
        resolution=0.002,
    )
