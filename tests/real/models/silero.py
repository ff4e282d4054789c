"""silero VAD: does someone speak in this chunk? Once over whole clips, twice chunk by chunk through If nodes."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.real import measure, speech, text, wheels
from tests.real.model import Feed, RealModel, Run

CONTEXT, STATE = 64, 128
THRESHOLD = 0.5
CALIBRATION, EVALUATION, SECONDS = 24, 32, 8.0
# One chunk more or less at one edge in 10 of about 100 stretches of speech, of 8,000 chunks.
RESOLUTION = 0.002
STEPS_BETWEEN_FEEDS = 8


def _calibration() -> tuple[speech.Clip, ...]:
    return speech.clips(41, CALIBRATION, documents=text.CALIBRATION, seconds=SECONDS)


def _evaluation() -> tuple[speech.Clip, ...]:
    return speech.clips(42, EVALUATION, documents=text.EVALUATION, seconds=SECONDS)


def _f1(found: NDArray[np.bool_], truth: NDArray[np.bool_]) -> float:
    return float(2 * np.sum(found & truth) / (np.sum(found) + np.sum(truth)))


def _sequence_feed(clip: speech.Clip) -> Feed:
    zero = np.zeros((1, 1, STATE), np.float32)
    return {"input": speech.windows(clip.samples, context=CONTEXT), "h": zero, "c": zero}


def _sequence_f1(run: Run) -> float:
    found = [run(_sequence_feed(clip))["speech_probs"] > THRESHOLD for clip in _evaluation()]
    return _f1(np.concatenate(found), np.concatenate([clip.truth for clip in _evaluation()]))


def _stream(run: Run, clips: tuple[speech.Clip, ...]) -> tuple[list[Feed], NDArray[np.float32]]:
    """Run all clips side by side, chunk after chunk; return each step's feed and the probabilities [clips, T]."""
    windows = np.stack([speech.windows(clip.samples, context=CONTEXT) for clip in clips], axis=1)
    state = np.zeros((2, len(clips), STATE), np.float32)
    feeds: list[Feed] = []
    scores = []
    for chunk in windows:
        feed = {"input": chunk, "state": state, "sr": np.array(speech.RATE, np.int64)}
        outputs = run(feed)
        feeds.append(feed)
        scores.append(outputs["output"][:, 0])
        state = outputs["stateN"]
    return feeds, np.stack(scores, axis=1)


def _stream_f1(run: Run) -> float:
    _, scores = _stream(run, _evaluation())
    return _f1(scores > THRESHOLD, np.stack([clip.truth for clip in _evaluation()]))


@functools.cache
def _steps(path: Path, share: str) -> tuple[Feed, ...]:
    """Return some steps of a stream with the states that the float model has there."""
    clips = _calibration() if share == "calibration" else _evaluation()
    feeds, _ = _stream(measure.runner(path), clips)
    return tuple(feeds[::STEPS_BETWEEN_FEEDS])


def build_sequence() -> RealModel:
    return RealModel(
        name="silero_seq",
        path=wheels.fetch(wheels.SILERO_SEQUENCE),
        calib=lambda: [_sequence_feed(clip) for clip in _calibration()],
        eval_feeds=lambda: [_sequence_feed(clip) for clip in _evaluation()[:16]],
        evaluate=_sequence_f1,
        metric="chunk F1",
        higher_is_better=True,
        resolution=RESOLUTION,
    )


def _build_stream(name: str, file: wheels.WheelFile) -> RealModel:
    path = wheels.fetch(file)
    return RealModel(
        name=name,
        path=path,
        calib=lambda: _steps(path, "calibration"),
        eval_feeds=lambda: _steps(path, "evaluation"),
        evaluate=_stream_f1,
        metric="chunk F1",
        higher_is_better=True,
        resolution=RESOLUTION,
    )


def build_if() -> RealModel:
    """Convolutions outside, the recurrent part inside three If nodes."""
    return _build_stream("silero_if", wheels.SILERO_IF)


def build_nested() -> RealModel:
    """The whole network inside one If: whether anything can be quantized is for the report to say."""
    return _build_stream("silero_nested", wheels.SILERO_NESTED)
