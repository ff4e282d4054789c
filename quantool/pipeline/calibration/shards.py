"""One pass over feeds, and a calibration cut into shards that any process can run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from quantool.collect import Collector, CollectRequest
from quantool.data import DataOptions, InputSpec, open_data
from quantool.data.function import names_callable
from quantool.data.source import RANDOM
from quantool.errors import QuantoolError
from quantool.graph.outputs import with_outputs
from quantool.pipeline.calibration.statistics import Digests
from quantool.runtime import Loadable, Thrift, return_freed_blocks, runtime_version, tap
from quantool.schema import Feed
from quantool.stats import Stats
from quantool.version import __version__

Shard = tuple[int, int]


class Pass:
    """One pass of a model over feeds; what was counted can be read whenever the next feed is asked for.

    before: the statistics of earlier feeds, from which it goes on.
    """

    def __init__(self, request: CollectRequest, before: Stats | None = None) -> None:
        self._collector = Collector(request, before)
        self._before = () if before is None else before.feeds
        self._digests = Digests()

    def run(
        self,
        model: Loadable,
        feeds: Iterable[Feed],
        *,
        groups: Iterable[Iterable[str]],
        number: Callable[[int], int] = int,
    ) -> None:
        """Count the activations of all feeds. number: what errors call the sample at a position."""
        source = iter(feeds)
        first = next(source, None)
        if first is None:  # a session would be loaded for nothing
            return
        watched = self._digests.watch(chain((first,), source))
        named = [tuple(group) for group in groups]
        for sample, arrays in tap(model, watched, groups=named, with_outputs=with_outputs, number=number):
            self._collector.add(sample, arrays)
            arrays.clear()  # else they would stay until the next ones are made

    def stats(self) -> Stats:
        """The statistics so far, and the hashes of the feeds behind them."""
        return replace(self._collector.stats(), feeds=tuple(sorted((*self._before, *self._digests.found))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """All that a process needs to run any shard of a calibration; it pickles.

    Attributes:
        model: the normalized model.
        folder: where its external data lies.
        threads: of one shard's session, 0 leaves the number to ONNX Runtime.
        request: what to collect.
        groups: the tensors that are tapped together.
        thrift: what sessions give up for memory.
        data: what the feeds come from.
        inputs: what the model takes.
        options: how data is read; of a shard these feeds are cut further.
        versions: of the packages that decide the bytes.
    """

    model: bytes
    folder: Path | None
    threads: int
    request: CollectRequest
    groups: tuple[tuple[str, ...], ...]
    thrift: Thrift
    data: tuple[str, ...]
    inputs: tuple[InputSpec, ...]
    options: DataOptions
    versions: dict[str, str]


def run_shard(job: Job, shard: Shard) -> bytes:
    """The content of the shard's ``.qcal`` file.

    Raises:
        QuantoolError: the data or the model cannot be used here, or other versions would give other bytes.
    """
    here = versions()
    odd = [f"{name} {here[name]}, not {wanted}" for name, wanted in job.versions.items() if here[name] != wanted]
    if odd:
        raise QuantoolError(
            "versions-differ",
            f"the process that should run shard {shard[0]} of {shard[1]} has {'; '.join(odd)}",
            where="a worker",
            fix="Install the same versions of these packages for every worker: others give other bytes.",
        )
    if job.folder is not None and not job.folder.is_dir():
        raise QuantoolError(
            "folder-missing",
            f"a worker does not see '{job.folder}', where the model's external data lies",
            where=str(job.folder),
            fix="Put the model in a folder that every worker sees under the same path.",
        )
    if job.thrift is not Thrift.NONE:
        return_freed_blocks()
    model = Loadable(
        model=job.model, folder=job.folder, threads=job.threads, thrift=job.thrift, label="the normalized model"
    )
    work = Pass(job.request)
    number = numbering(cut(job.options.shard, shard))
    work.run(model, shard_feeds(job, shard), groups=job.groups, number=number)
    return work.stats().to_bytes()


def shard_feeds(job: Job, shard: Shard) -> Iterable[Feed]:
    """The feeds of a shard."""
    options = replace(job.options, shard=cut(job.options.shard, shard))
    return open_data(job.data if len(job.data) > 1 else job.data[0], job.inputs, options)


def cut(outer: Shard | None, inner: Shard) -> Shard:
    """One of the N parts of a shard, which is itself one of M: a shard of M * N."""
    first, count = outer or (1, 1)
    return first + count * (inner[0] - 1), count * inner[1]


def numbering(shard: Shard | None, *, done: int = 0) -> Callable[[int], int]:
    """From a position among the feeds of a shard that are left to the number in the whole source."""
    first, count = shard or (1, 1)
    return lambda position: first - 1 + count * (position + done)


def versions() -> dict[str, str]:
    """The versions of the packages that decide the bytes."""
    return {"quantool": __version__, "onnxruntime": runtime_version(), "numpy": np.__version__}


def portable(data: Iterable[str | Path]) -> Iterator[str]:
    """Sources as another process finds them: paths are made absolute."""
    for source in data:
        made = isinstance(source, str) and (source == RANDOM or is_callable(source))
        yield str(source) if made else str(Path(source).absolute())


def is_callable(source: str | Path) -> bool:
    """Whether a source is a Python callable, which makes every feed even where few are wanted."""
    return isinstance(source, str) and names_callable(source) and not Path(source).exists()
