"""Run a slab kernel over a tensor, in one thread or several."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from quantool.kernels.granularity import SLAB_ELEMENTS, Layout, Slab, slabs

# Pieces a thread takes one after another: enough to even out a core that is busy with something else.
PIECES_PER_THREAD = 4


def run_over_slabs(
    layout: Layout, work: Callable[[Iterable[Slab]], None], *, threads: int, limit: int = SLAB_ELEMENTS
) -> None:
    """Call ``work`` with the slabs of a tensor, of about ``limit`` elements; with several threads, with runs of them.

    ``work`` writes disjoint parts of its output and takes its own scratch, so that threads share nothing.

    Raises:
        ValueError: threads is below 1.
    """
    if threads < 1:
        raise ValueError(f"threads is {threads}; it must be at least 1.")
    if threads == 1:
        work(slabs(layout, limit))
        return
    pieces = list(slabs(layout, limit))
    step = max(1, -(-len(pieces) // (threads * PIECES_PER_THREAD)))
    groups = [pieces[i : i + step] for i in range(0, len(pieces), step)]
    if len(groups) <= 1:
        work(pieces)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, groups):
            pass
