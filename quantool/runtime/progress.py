"""A progress bar on a terminal, and nothing anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def watched(samples: Iterable[T], what: str, *, progress: bool, total: int | None = None) -> Iterator[T]:
    """Pass samples through; on a terminal, and where `progress`, show their count and rate on stderr."""
    if not (progress and sys.stderr.isatty()):
        yield from samples
        return
    from tqdm import tqdm  # costs time that a run without a terminal need not spend

    yield from tqdm(samples, desc=what, total=total, unit=" samples", file=sys.stderr, leave=False)
