"""Random feeds, only where a user asks for them."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes  # noqa: F401  # registers bfloat16 and its kin as NumPy type names
import numpy as np

from quantool.data.decoder_inputs import fillable, is_decoder
from quantool.data.spec import DataOptions, InputSpec, RawFeed, RawFeeds, in_memory
from quantool.errors import DataError
from quantool.schema import AnyArray

FEEDS = 8


def read_random(inputs: tuple[InputSpec, ...], options: DataOptions) -> RawFeeds:
    """Normal numbers for float inputs, 0 and 1 for integers and flags; a symbolic size is 1, or the batch size.

    The same seed gives the same feeds. Of a decoder's inputs those that follow from its token ids are not drawn: a
    mask, positions and a cache of unlike lengths would not run.
    """
    derived = fillable(inputs) if is_decoder(inputs) else frozenset()
    drawn = [spec for spec in inputs if spec.name not in derived]
    count = FEEDS if options.samples is None else options.samples

    def read() -> Iterator[RawFeed]:
        generator = np.random.default_rng(options.seed)
        for _ in range(count):
            # Drawn whether wanted or not, so that a shard's feeds are those of the whole.
            yield in_memory({spec.name: _drawn(spec, generator, options) for spec in drawn})

    return RawFeeds(
        description=f"random data (seed {options.seed})",
        read=read,
        random=True,
        length=count,
        names=lambda: frozenset(spec.name for spec in drawn),
    )


def _drawn(spec: InputSpec, generator: np.random.Generator, options: DataOptions) -> AnyArray:
    if spec.shape is None or spec.dtype in ("", "string"):
        raise DataError(
            "not-random",
            f"random data cannot stand for input '{spec.name}', {spec.takes or 'no tensor'}",
            where=f"input '{spec.name}'",
            fix="Give real samples with --data.",
        )
    batch = options.batch_size or 1
    shape = tuple(
        size if isinstance(size, int) else (batch if axis == 0 else 1) for axis, size in enumerate(spec.shape)
    )
    dtype = np.dtype(spec.dtype)
    if "float" in spec.dtype:
        return generator.standard_normal(shape, np.float32).astype(dtype)
    # Valid wherever an integer is an index, a mask or a flag.
    return generator.integers(0, 2, shape).astype(dtype)
