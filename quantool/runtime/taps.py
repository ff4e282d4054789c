"""A stream of activations: the model runs fully optimized with the wanted tensors as further outputs.

Full optimization and plain runs are the cheapest form measured (1.02 to 1.38 of plain inference; lower levels
lose the blocked layout and cost up to 2.2), and ranges agree with the unoptimized ones to 8e-5 of the range. Memory
patterns double the peak where large tensors are outputs, and make runs slower.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from quantool.runtime.session import Loadable, Optimization, Session, Thrift
from quantool.schema import AnyArray, Feed


class WithOutputs(Protocol):
    """Makes tensors of a serialized model its outputs; alone: and leaves out all that they do not need."""

    def __call__(self, model_bytes: bytes, names: Sequence[str], *, alone: bool = False) -> bytes:
        """The other model."""


def tap(
    source: Loadable,
    feeds: Iterable[Feed],
    *,
    groups: Sequence[Sequence[str]],
    with_outputs: WithOutputs,
    number: Callable[[int], int] = int,
) -> Iterator[tuple[int, dict[str, AnyArray]]]:
    """Run every feed and yield (sample, {tensor: array}), once for each group of tensors.

    One sample of one group is in memory at a time, and nothing is kept after it was yielded: drop it before
    asking for the next. Every further group costs a session and a run of each sample, up to its last tensor; it is
    the only way to hold fewer activations at once, since outputs that nobody fetches stay alive until a run ends.
    What is yielded does not depend on how tensors are grouped, bit for bit.
    number: what errors call the feed at a position.

    Raises:
        ModelError: a tensor does not stand in the main graph, or the model does not load.
        DataError: a sample does not run.
    """
    if source.thrift is Thrift.NONE:
        source = replace(source, thrift=Thrift.ACTIVATIONS)
    filled = [tuple(group) for group in groups if group]
    if len(filled) > 1:
        whole = _settled(source, [name for group in filled for name in group], with_outputs)
        # An arena each would hold all groups at once.
        parts = (replace(whole, model=with_outputs(_bytes(whole), group, alone=True), arena=False) for group in filled)
        sessions = [(Session(part), group) for part, group in zip(parts, filled, strict=True)]
        del whole
    else:
        sessions = [(Session(_tapped(source, group, with_outputs)), group) for group in filled]
    for sample, feed in ((number(position), feed) for position, feed in enumerate(feeds)):
        for session, group in sessions:
            yield sample, session.run(feed, group, sample=sample)


def tensor_types(
    source: Loadable, names: Sequence[str], *, with_outputs: WithOutputs
) -> dict[str, tuple[str, tuple[int | str | None, ...] | None]]:
    """The types and shapes that ONNX Runtime infers for tensors of the main graph, contrib ones included.

    A shape is None where the rank is unknown, or 0: the runtime does not tell them apart.
    """
    unoptimized = replace(source, optimization=Optimization.DISABLED)
    session = Session(_tapped(unoptimized, names, with_outputs))
    return {name: (session.outputs[name].dtype, session.outputs[name].shape or None) for name in names}


def _settled(source: Loadable, names: Sequence[str], with_outputs: WithOutputs) -> Loadable:
    """The model with tensors as further outputs, as the optimizer leaves it, to be loaded as it stands.

    The optimizer would find other fusions in each part. External weights stay where they are.
    """
    tapped = _tapped(source, names, with_outputs)
    with tempfile.TemporaryDirectory(prefix="quantool-") as folder:
        path = Path(folder) / "optimized.onnx"
        Session(replace(tapped, optimized_to=path, copied=False))
        return replace(tapped, model=path.read_bytes(), optimization=Optimization.DISABLED)


def _tapped(source: Loadable, names: Sequence[str], with_outputs: WithOutputs) -> Loadable:
    folder = source.folder
    if isinstance(source.model, Path):
        folder = folder or source.model.resolve().parent
    return replace(source, model=with_outputs(_bytes(source), names), folder=folder)


def _bytes(source: Loadable) -> bytes:
    return source.model if isinstance(source.model, bytes) else source.model.read_bytes()
