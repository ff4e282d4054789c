"""A calibration over several processes: shards go out, statistics come back in any order and merge exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from quantool.errors import QuantoolError
from quantool.pipeline.calibration.shards import Job, Shard
from quantool.report.wording import plural
from quantool.stats import Stats

#: runs shards somewhere and yields the ``.qcal`` content of each as it ends
Runner = Callable[[Job, Sequence[Shard]], Iterator[tuple[Shard, bytes]]]

#: how often shards are given out again after processes died
RESTARTS: Final = 3


class ProcessesLostError(Exception):
    """Processes died with shards that have to run again."""


def spread(job: Job, shards: Sequence[Shard], run: Runner) -> Iterator[tuple[int, Stats]]:
    """The number and the statistics of each shard as it ends, each once, whatever dies in between.

    Raises:
        QuantoolError: a shard fails, or processes die again and again.
    """
    left = set(shards)
    restarts = 0
    while left:
        try:
            for shard, content in run(job, sorted(left)):
                left.discard(shard)
                yield shard[0], Stats.from_bytes(content, where=f"shard {shard[0]}")
        except ProcessesLostError as error:
            restarts += 1
            if restarts > RESTARTS:
                raise lost(restarts, len(left)) from error


def lost(deaths: int, left: int) -> QuantoolError:
    """The error where processes die again and again."""
    return QuantoolError(
        "workers-died",
        f"worker processes died {plural(deaths, 'time')}, and {plural(left, 'shard')} could not be counted",
        where="--workers, --scheduler",
        fix="Where memory is short, use fewer workers. A Python script that calibrates with workers needs "
        "`if __name__ == '__main__':` around its calls.",
    )
