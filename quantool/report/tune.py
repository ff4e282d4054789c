"""What `tune` tells of its candidates: a line as each is tried, and the table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from quantool.report.model import CandidateRow, MetricInfo, Report
from quantool.report.wording import decibel, listing, number, size, visible

CANDIDATE_HEADER: Final = ("recipe", "size", "speed-up", "quality", "drop (95 %)", "target")


def with_pareto(rows: Sequence[CandidateRow]) -> tuple[CandidateRow, ...]:
    """The candidates, those marked that no other one beats in size, speed and quality at once."""
    return tuple(
        replace(row, pareto=row.error is None and not any(_beats(other, row) for other in rows)) for row in rows
    )


def _beats(one: CandidateRow, other: CandidateRow) -> bool:
    if one.error is not None:
        return False
    pairs = list(zip(_figures(one), _figures(other), strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def _figures(row: CandidateRow) -> tuple[float, float, float]:
    """Smallness, speed and quality: more is better."""
    speed = 0.0 if row.latency is None else row.latency.speedup
    measured = row.metric
    quality = -measured.drop if measured is not None and measured.drop is not None else row.sqnr_db or 0.0
    return -(row.size_bytes or 0), speed, quality


def candidate_rows(report: Report) -> tuple[tuple[str, ...], ...]:
    """One row a candidate, under CANDIDATE_HEADER; * stands before those of the Pareto front."""
    return tuple((f"{'*' if row.pareto else ' '} {visible(row.name)}", *_cells(row)) for row in report.candidates)


def candidate_line(row: CandidateRow) -> str:
    """A candidate on one line, as it is tried."""
    if row.error is not None:
        return f"{row.rung}: {visible(row.name)}: {visible(row.error)}"
    cells = zip(("size", "speed-up", "quality", "drop", "target"), _cells(row), strict=True)
    return f"{row.rung}: {visible(row.name)}: " + ", ".join(f"{name} {cell}" for name, cell in cells if cell != "-")


def responsible_lines(report: Report) -> tuple[str, ...]:
    """The layers that had to be spared, and what each costs."""
    lines = []
    for row in report.responsible:
        costs = [] if row.drop is None else [f"costs {row.drop:.4g} of {_metric_name(report)}"]
        costs += [] if row.sqnr_db is None else [f"leaves {row.sqnr_db:.1f} dB"]
        names = listing(row.nodes, most=3)
        lines.append(f"{names} stays in {row.kept_in}: quantized alone it {' and '.join(costs) or 'costs little'}.")
    return tuple(lines)


def metric_words(found: MetricInfo) -> str:
    """A metric of both models with its interval."""
    return (
        f"{visible(found.name)} {number(found.float_value)} in float, {number(found.quantized_value)} quantized: "
        f"drop {drop_words(found)}, {found.rows} rows"
    )


def _metric_name(report: Report) -> str:
    found = next((row.metric for row in report.candidates if row.metric is not None), None)
    return "the metric" if found is None else visible(found.name)


def _cells(row: CandidateRow) -> tuple[str, ...]:
    if row.error is not None:
        return ("-", "-", "-", "-", "impossible")
    quality = decibel(row.sqnr_db) if row.metric is None else number(row.metric.quantized_value)
    drop = "-" if row.metric is None else drop_words(row.metric)
    return (size(row.size_bytes), _speed(row), quality, drop, "meets" if row.meets else "misses")


def _speed(row: CandidateRow) -> str:
    if row.latency is None or row.speed is None:
        return "-"
    return f"{row.latency.speedup:.2f} ({row.speed[0]:.2f} to {row.speed[1]:.2f})"


def drop_words(found: MetricInfo) -> str:
    """How much worse the quantized model is, with the interval."""
    if found.drop is None:
        return "-"
    interval = "" if found.interval is None else f" ({found.interval[0]:.4f} to {found.interval[1]:.4f})"
    return f"{found.drop:.4f}{interval}{'' if found.resolved else ', unresolved'}"
