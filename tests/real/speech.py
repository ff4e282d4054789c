"""Noisy speech with a known truth: espeak-ng speaks, silence and noise are added, the clean track says where."""

from __future__ import annotations

import functools
import io
import itertools
import subprocess
import wave
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.real import text

RATE, CHUNK = 16000, 512
VOICES = ("en-us", "en-us+f2", "en-gb", "en-gb+f4", "en-us+m3", "en-gb-scotland", "en-gb-x-rp+f3", "en-us+m7")
# A frame is speech within 35 dB of the loud frames of its clip; gaps of up to 3 frames (0.1 s) belong to it.
SPEECH_FLOOR_DB, LONGEST_GAP = -35.0, 3

Samples = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Noisy samples, for each chunk of 512 whether someone speaks, and by how many dB speech is above the noise."""

    samples: Samples
    truth: NDArray[np.bool_]
    snr_db: float


def say(words: str, voice: str, *, words_per_minute: int, pitch: int) -> Samples:
    """Return the words as speech at 16 kHz, largest value 1."""
    command = ["espeak-ng", "-v", voice, "-s", str(words_per_minute), "-p", str(pitch), "--stdin", "--stdout"]
    # By standard input, since a phrase may begin with a dash.
    spoken = subprocess.run(command, check=True, capture_output=True, input=words.encode()).stdout
    with wave.open(io.BytesIO(spoken)) as stream:
        rate = stream.getframerate()
        # espeak-ng writes to a pipe, so its header claims a length that it did not know.
        samples = np.frombuffer(stream.readframes(len(spoken) // 2), np.int16).astype(np.float64)
    spectrum = np.fft.rfft(samples)[: len(samples) * RATE // rate // 2 + 1]
    resampled = np.fft.irfft(spectrum, len(samples) * RATE // rate)
    loudest = float(np.abs(resampled).max())
    return np.asarray(resampled / loudest, np.float32)


def _noise(rng: np.random.Generator, length: int) -> NDArray[np.float64]:
    """Return noise of unit power between white and brown, with a mains hum."""
    spectrum = np.fft.rfft(rng.normal(size=length))
    spectrum /= np.maximum(np.arange(len(spectrum)), 20.0) ** rng.uniform(0.0, 1.0)
    noise = np.fft.irfft(spectrum, length)
    hum = np.sin(2 * np.pi * 50.0 * np.arange(length) / RATE) * rng.uniform(0.0, 0.5)
    return np.asarray(noise / noise.std() + hum, np.float64)


def truth(clean: Samples) -> NDArray[np.bool_]:
    """Return for each chunk of the clean track whether it is speech."""
    power = np.mean(clean.reshape(-1, CHUNK).astype(np.float64) ** 2, axis=1)
    speech: NDArray[np.bool_] = 10 * np.log10(power + 1e-20) > 10 * np.log10(np.quantile(power, 0.95)) + SPEECH_FLOOR_DB
    edges = np.flatnonzero(np.diff(speech.astype(np.int8)))
    for end, start in itertools.pairwise(edges):
        if speech[end] and start - end <= LONGEST_GAP:
            speech[end + 1 : start + 1] = True
    return speech


@functools.cache
def clips(
    seed: int, count: int, *, documents: tuple[str, ...], seconds: float, snr_db: tuple[float, float] = (3.0, 20.0)
) -> tuple[Clip, ...]:
    """Return clips of one length: phrases with silence between them, this far over the noise."""
    rng = np.random.default_rng(seed)
    length = int(seconds * RATE / CHUNK) * CHUNK
    found = []
    for index in range(count):
        clean = np.zeros(length, np.float32)
        position = int(rng.uniform(0.2, 1.0) * RATE)
        while position < length - RATE:
            words = text.phrase(rng, documents, count=int(rng.integers(2, 8)))
            speed, pitch = int(rng.integers(130, 190)), int(rng.integers(30, 70))
            voice = VOICES[index % len(VOICES)]
            spoken = say(words, voice, words_per_minute=speed, pitch=pitch)[: length - position]
            clean[position : position + len(spoken)] = spoken * rng.uniform(0.2, 0.6)
            position += len(spoken) + int(rng.uniform(0.4, 1.6) * RATE)
        loud = float(np.sqrt(np.mean(clean[clean != 0].astype(np.float64) ** 2)))
        above = float(rng.uniform(*snr_db))
        level = loud * 10 ** (-above / 20)
        noisy = np.clip(clean + level * _noise(rng, length), -1.0, 1.0).astype(np.float32)
        found.append(Clip(samples=noisy, truth=truth(clean), snr_db=above))
    return tuple(found)


def windows(samples: Samples, *, context: int) -> Samples:
    """Return [T, context + 512]: each chunk behind the last `context` samples before it."""
    padded = np.concatenate((np.zeros(context, np.float32), samples))
    return np.lib.stride_tricks.sliding_window_view(padded, context + CHUNK)[::CHUNK].copy()
