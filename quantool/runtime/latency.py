"""How long two sessions take, measured so that a busy machine slows both alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence

from quantool.measured import Latency
from quantool.runtime.session import Session
from quantool.schema import Feed

LEAST_ROUNDS = 5
MOST_ROUNDS = 200
#: of the interval of the median ratio
CONFIDENCE = 0.95


def interleaved(
    float_session: Session, quantized_session: Session, *, feeds: Sequence[Feed], budget_s: float = 1.5
) -> Latency:
    """Medians of runs in turn, in milliseconds, and the quartiles and the median's interval of each round's ratio.

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
    low, middle, high = statistics.quantiles(ratios, n=4)
    return Latency(
        float_ms=statistics.median(milliseconds[0]),
        quantized_ms=statistics.median(milliseconds[1]),
        ratio=middle,
        quartiles=(low, high),
        interval=median_interval(ratios),
        rounds=len(ratios),
    )


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of a median from n independent values, whatever their distribution; None below 6 of them.

    The k-th smallest and k-th largest, with the largest k for which 1 - 2 P(B < k) >= 0.95 and B ~ Binomial(n, 1/2):
    the sign test turned round (W. J. Conover, Practical Nonparametric Statistics, section 3.2).
    """
    count, tail, rank = len(values), 0.0, 0
    while rank < count // 2:
        tail += math.comb(count, rank) * 0.5**count
        if 2 * tail > 1 - CONFIDENCE:
            break
        rank += 1
    if rank == 0:
        return None
    ordered = sorted(values)
    return ordered[rank - 1], ordered[count - rank]


def _run_ms(session: Session, feed: Feed) -> float:
    start = time.perf_counter()
    session.run(feed)
    return (time.perf_counter() - start) * 1e3
