"""What a model takes, how data is to be read, and what a reader gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from quantool.errors import DataError, OptionError
from quantool.schema import AnyArray

# As a reader finds it: where it came from ("" where the number of the sample says all), and what loads the feed. It
# is called at once or never, so that what is skipped is not loaded.
RawFeed = tuple[str, Callable[[], object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input of a model.

    Attributes:
        name: the input's name.
        dtype: ml_dtypes or NumPy name of its elements; "" where the input is no tensor.
        shape: a size, a symbol or None for each axis; None where the rank is unknown.
        required: a feed must hold it.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    required: bool = True

    @property
    def batch(self) -> int | None:
        """The size of axis 0 where it is fixed."""
        return self.shape[0] if self.shape and isinstance(self.shape[0], int) else None

    @property
    def takes(self) -> str:
        """The type and shape as errors state them, such as ``float32 (N,3,224,224)``."""
        if self.shape is None:
            return f"{self.dtype} of any shape"
        return f"{self.dtype} ({','.join('?' if d is None else str(d) for d in self.shape)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """How data is read.

    Attributes:
        samples: at most this many feeds, the first ones.
        shard: (I, N), from 1: of these feeds, only I-1, I-1+N, I-1+2N ...
        batch_size: rows a feed where the model's batch is symbolic.
        seed: of random data.
        preprocess: key of PRESETS, for images.
        allow_nonfinite: NaN and infinity may stand in float inputs.
        labels: feeds know the labels that stand beside them.
        decode_tensor: reads a serialized TensorProto; ValueError where it is none.
    """

    samples: int | None = None
    shard: tuple[int, int] | None = None
    batch_size: int | None = None
    seed: int = 0
    preprocess: str | None = None
    allow_nonfinite: bool = False
    labels: bool = False
    decode_tensor: Callable[[bytes], AnyArray] | None = None

    def __post_init__(self) -> None:
        for option, value in (("--samples", self.samples), ("--batch-size", self.batch_size)):
            if value is not None and value < 1:
                raise OptionError("bad-value", f"{option} is {value}", where=option, fix="Give a number from 1 up.")
        if self.shard is not None and not 1 <= self.shard[0] <= self.shard[1]:
            index, count = self.shard
            raise OptionError(
                "bad-value",
                f"--shard is {index}/{count}",
                where="--shard",
                fix="Give I/N with I from 1 to N: with 4 shards 1/4, 2/4, 3/4 and 4/4.",
            )


def in_memory(feed: object) -> RawFeed:
    """A feed that is there already, because what it comes from cannot skip."""
    return "", lambda: feed


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFeeds:
    """What a reader found at a source; nothing is loaded before `read` is iterated.

    Attributes:
        description: the source in words, for the report.
        read: starts from the first feed at each call.
        names: the names of the arrays that each feed holds; None where only reading tells.
        length: how many feeds there are; None where only reading tells.
        random: the feeds are made up.
        prepared: --preprocess made the values, at least of one source.
    """

    description: str
    read: Callable[[], Iterator[RawFeed]]
    names: Callable[[], frozenset[str]] | None = None
    length: int | None = None
    random: bool = False
    prepared: bool = False


def one_input(inputs: tuple[InputSpec, ...], *, named: str, where: str, kind: str) -> InputSpec:
    """The only required input, else the one that a source of one array is named after.

    Raises:
        DataError: there are several, or none.
    """
    needed = [spec for spec in inputs if spec.required] or list(inputs)
    if len(needed) == 1:
        return needed[0]
    for spec in inputs:
        if spec.name == named:
            return spec
    names = ", ".join(f"'{spec.name}'" for spec in needed) or "none"
    raise DataError(
        "input-unnamed",
        f"{kind} holds data for one input, and the model takes {len(needed)}: {names}",
        where=where,
        fix="Name it after its input and give one for each, or give an .npz file with an array for each input.",
    )
