"""Weights and token ids by seed, distributed as those of trained decoders.

Trained decoders have weights with heavy tails, output channels of unequal scale, and a few channels of the residual
stream that are many times larger than the others (LLM.int8(), arXiv:2208.07339): here those channels have large gains
in every RMSNorm and larger columns where the layers write to the stream.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

from .config import EMBEDDING, DecoderConfig

CHUNK_VALUES = 1 << 22
OUTLIER_SHARE = 0.004  # of the channels of the residual stream
OUTLIER_GAIN = 12.0
# x + TAIL * x^3 of a standard normal x: excess kurtosis about 3.6, variance 1 + 6 * TAIL + 15 * TAIL^2
TAIL = np.float32(0.1)
TAIL_DEVIATION = float(np.sqrt(1 + 6 * TAIL + 15 * TAIL**2))


class RandomWeights:
    """Gives each weight in chunks of rows; a weight's values depend on the seed and its name alone."""

    def __init__(self, config: DecoderConfig, seed: int = 0) -> None:
        self.seed = seed
        self._depth, self._width = config.layers, config.hidden
        count = max(1, round(config.hidden * OUTLIER_SHARE))
        self._outliers = self._generator("outlier channels").choice(config.hidden, count, replace=False)

    def __call__(self, name: str, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        """Yield float32 chunks along axis 0 that together have `shape`."""
        if len(shape) == 1:
            yield self._gains(name, shape[0])
            return
        scales = self._column_scales(name, shape)
        generator = self._generator(name)
        rows = max(1, CHUNK_VALUES // shape[1])
        for start in range(0, shape[0], rows):
            values = generator.standard_normal((min(rows, shape[0] - start), shape[1]), np.float32)
            tails = np.square(values)
            tails *= TAIL
            tails += np.float32(1)
            values *= tails
            values *= scales
            yield values

    def _gains(self, name: str, width: int) -> np.ndarray:
        generator = self._generator(name)
        gains = generator.normal(1.0, 0.15, width).astype(np.float32)
        gains[self._outliers] *= OUTLIER_GAIN * generator.uniform(0.5, 1.5, len(self._outliers)).astype(np.float32)
        return gains

    def _column_scales(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return a scale for each column [shape[1]]: 1 / sqrt(fan in) over the tails' deviation, spread lognormally."""
        generator = self._generator(f"{name} scales")
        fan_in = self._width if name == EMBEDDING else shape[0]
        scales = np.exp(generator.normal(0.0, 0.3, shape[1])) / (np.sqrt(fan_in) * TAIL_DEVIATION)
        if name.endswith((".o_proj.weight", ".down_proj.weight")):  # these write to the residual stream
            scales /= np.sqrt(2.0 * self._depth)
            scales[self._outliers] *= 4.0
        return scales.astype(np.float32)

    def _generator(self, name: str) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64([self.seed, zlib.crc32(name.encode())]))


def random_ids(config: DecoderConfig, rows: int, tokens: int, seed: int = 0) -> np.ndarray:
    """Return int64 token ids [rows, tokens], frequent ones first as words are (Zipf's law)."""
    generator = np.random.default_rng(seed)
    chances = 1.0 / np.arange(1, config.vocabulary + 1)
    return generator.choice(config.vocabulary, (rows, tokens), p=chances / chances.sum())
