"""How long two sessions take, measured so that a busy machine slows both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from quantool.runtime.session import Session
from quantool.schema import Feed, Latency

LEAST_ROUNDS = 5
MOST_ROUNDS = 200


def interleaved(
    float_session: Session, quantized_session: Session, *, feeds: Sequence[Feed], budget_s: float = 1.5
) -> Latency:
    """Medians of runs in turn, in milliseconds, and the quartiles of each round's ratio.

    One warm-up of each, then rounds of one run each on the same feed, the first side alternating; at least 5
    and at most 200, and no new round after budget_s seconds once there are 5.

    Raises:
        ValueError: there is no feed.
        DataError: a feed does not run.
    """
    if not feeds:
        raise ValueError("feeds is empty; a latency needs at least one feed.")
    sides = (float_session, quantized_session)
    for session in sides:
        session.run(feeds[0])
    milliseconds: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + budget_s
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and time.perf_counter() >= end:
            break
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            milliseconds[side].append(_run_ms(sides[side], feeds[number % len(feeds)]))
    ratios = [a / max(b, 1e-9) for a, b in zip(*milliseconds, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return Latency(
        float_ms=statistics.median(milliseconds[0]),
        quantized_ms=statistics.median(milliseconds[1]),
        quartiles=(low, high),
    )


def _run_ms(session: Session, feed: Feed) -> float:
    start = time.perf_counter()
    session.run(feed)
    return (time.perf_counter() - start) * 1e3
