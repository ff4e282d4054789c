"""A progress bar on a terminal, and nothing anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def watched(
    items: Iterable[T],
    what: str,
    *,
    progress: bool,
    total: int | None = None,
    done: int = 0,
    unit: str = "samples",
) -> Iterator[T]:
    """Pass items through; on a terminal, and where `progress`, show count, rate and time left on stderr.

    total: how many there are, which the time left needs. done: how many of them were dealt with before.
    """
    if not (progress and sys.stderr.isatty()):
        yield from items
        return
    from tqdm import tqdm  # costs time that a run without a terminal need not spend

    yield from tqdm(items, desc=what, total=total, initial=done, unit=f" {unit}", file=sys.stderr, leave=False)
