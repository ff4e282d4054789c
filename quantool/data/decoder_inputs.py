"""What a causal language model takes beside its token ids, filled in where the data lacks it.

The rules are those of the exporters: the attention mask is 1 for each token, past ones included; positions count the
tokens that the mask shows; the cache of the first step has no tokens; `use_cache_branch` tells whether it has some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

import ml_dtypes  # noqa: F401  # registers bfloat16 and its kin as NumPy type names
import numpy as np

from quantool.data.spec import InputSpec
from quantool.errors import DataError
from quantool.schema import AnyArray

IDS: Final = "input_ids"
MASK: Final = "attention_mask"
POSITIONS: Final = "position_ids"
BRANCH: Final = "use_cache_branch"
#: how the names of a cache's inputs begin, and those of the outputs that become the next step's cache
PAST, PRESENT = "past", "present"

_Raw: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One run of the model. ids: [batch, tokens]; past: tokens in the cache; mask: [batch, past + tokens]."""

    ids: AnyArray
    past: int
    mask: AnyArray


def is_cache(spec: InputSpec) -> bool:
    """Whether an input is a part of the KV cache."""
    return spec.name.startswith(PAST) and "float" in spec.dtype


def cache_axis(spec: InputSpec, batch: int | str | None) -> int | None:
    """The axis of a cache's tokens: the only symbolic one but for the batch; None where that is not to tell.

    batch: the first dimension of `input_ids`. [batch, heads, tokens, head size], or [2, batch, heads, tokens, head
    size] where key and value are one tensor.
    """
    if spec.shape is None or len(spec.shape) not in (4, 5):
        return None
    symbolic = [axis for axis, size in enumerate(spec.shape) if not isinstance(size, int)]
    rows = len(spec.shape) - 4
    same = [axis for axis in symbolic if isinstance(batch, str) and spec.shape[axis] == batch]
    rest = [axis for axis in symbolic if axis != (same[0] if same else rows)]
    return rest[0] if len(rest) == 1 else None


def takes_tokens(inputs: Sequence[InputSpec]) -> bool:
    """Whether a model reads token ids [batch, tokens]."""
    return any(spec.name == IDS and "int" in spec.dtype and len(spec.shape or ()) == 2 for spec in inputs)


def is_decoder(inputs: Sequence[InputSpec]) -> bool:
    """Whether a model reads token ids and something that only language models do: positions or a cache."""
    return takes_tokens(inputs) and any(spec.name in (POSITIONS, BRANCH) or is_cache(spec) for spec in inputs)


def fillable(inputs: Sequence[InputSpec]) -> frozenset[str]:
    """The names of the inputs that `completed` may fill in."""
    if not takes_tokens(inputs):
        return frozenset()
    return frozenset(spec.name for spec in inputs if spec.name in _FILLED or is_cache(spec))


def completed(raw: object, inputs: Sequence[InputSpec], *, sample: str) -> object:
    """A feed with its mask, positions, branch and empty cache; as it is where the model or the feed has no token ids.

    raw: what a reader gave; flat ids, mask and positions get a batch axis of 1. sample: which feed, for errors. The
    rows of a model that is no decoder may be padded: its mask is filled in for flat ids alone.

    Raises:
        DataError: the sizes of the cache are not in the model.
    """
    names = fillable(inputs)
    if not names or not isinstance(raw, Mapping) or IDS not in raw:
        return raw
    if not is_decoder(inputs) and np.ndim(raw[IDS]) != 1:
        return raw
    feed = {name: _with_batch(value) if name in (IDS, MASK, POSITIONS) else value for name, value in raw.items()}
    ids = feed[IDS]
    if not isinstance(ids, np.ndarray) or ids.ndim != 2:
        return feed  # the check that follows tells what is wrong
    missing = [spec for spec in inputs if spec.name in names and spec.name not in feed]
    batch = next(spec.shape[0] for spec in inputs if spec.name == IDS and spec.shape)
    step = _step(feed, ids, inputs, batch)
    for spec in missing:
        made = _FILLED[spec.name](step) if spec.name in _FILLED else _empty_cache(spec, step, batch, sample)
        feed[spec.name] = made.astype(spec.dtype)
    return feed


def _with_batch(value: object) -> object:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        return value
    return array[None] if array.ndim == 1 else array


def _step(feed: _Raw, ids: AnyArray, inputs: Sequence[InputSpec], batch: int | str | None) -> _Step:
    past = 0
    for spec in inputs:
        given = feed.get(spec.name) if is_cache(spec) else None
        axis = cache_axis(spec, batch)
        if isinstance(given, np.ndarray) and axis is not None and given.ndim == len(spec.shape or ()):
            past = given.shape[axis]
            break
    mask = feed.get(MASK)
    if not isinstance(mask, np.ndarray) or mask.shape != (ids.shape[0], past + ids.shape[1]):
        mask = np.ones((ids.shape[0], past + ids.shape[1]), np.int64)
    return _Step(ids=ids, past=past, mask=mask)


def _positions(step: _Step) -> AnyArray:
    """How many tokens the mask shows before each one: padding does not count."""
    counted = np.maximum(np.cumsum(step.mask, axis=1, dtype=np.int64) - 1, 0)
    return counted[:, step.past :]


def _branch(step: _Step) -> AnyArray:
    return np.array([step.past > 0])


_FILLED: Final[Mapping[str, Callable[[_Step], AnyArray]]] = MappingProxyType(
    {MASK: lambda step: step.mask, POSITIONS: _positions, BRANCH: _branch}
)


def _empty_cache(spec: InputSpec, step: _Step, batch: int | str | None, sample: str) -> AnyArray:
    axis = cache_axis(spec, batch)
    if axis is None or spec.shape is None:
        raise DataError(
            "cache-unknown",
            f"the empty cache '{spec.name}' cannot be made: the model declares {spec.takes}",
            where=f"input '{spec.name}', {sample}",
            fix="Export the model with the numbers of key and value heads and the head size fixed, and one symbol for "
            "the tokens of the past; or give the cache in the data.",
        )
    sizes = [size if isinstance(size, int) else len(step.ids) for size in spec.shape]
    sizes[axis] = 0
    return np.zeros(sizes, spec.dtype)


def in_words(inputs: Sequence[InputSpec], held: frozenset[str]) -> str:
    """What is filled in where feeds hold some names, for the report: "" where nothing is."""
    if IDS not in held:
        return ""
    names = [spec.name for spec in inputs if spec.name in fillable(inputs) and spec.name not in held]
    caches = [spec.name for spec in inputs if spec.name in names and is_cache(spec)]
    words = [name for name in names if name not in caches]
    if caches:
        words.append(f"an empty cache ({caches[0]} and {len(caches) - 1} more)" if len(caches) > 1 else caches[0])
    return f"; filled in: {', '.join(words)}" if words else ""
