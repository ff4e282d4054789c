"""The four figures that decide, each with its bars: size, speed, accuracy, coverage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from quantool.measured import OutputComparison
from quantool.report.model import Coverage, LatencyInfo, Report
from quantool.report.summary import size_ratio
from quantool.report.tune import drop_words
from quantool.report.wording import decibel, number, percent, plural, size, visible
from quantool.verify.verdict import EVEN

#: where a bar of SQNR is full, in dB
FULL_DB: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """length: a fraction of the track; before: it is the float model's."""

    label: str
    value: str
    length: float
    before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One figure in words, what it rests on, and its bars."""

    title: str
    figure: str
    note: str
    bars: tuple[Bar, ...]


def tiles(report: Report) -> tuple[Tile, ...]:
    """The tiles of what the run came to know."""
    found = (_size(report), _speed(report.latency), _accuracy(report), _coverage(report.coverage))
    return tuple(tile for tile in found if tile is not None)


def _size(report: Report) -> Tile | None:
    ratio = size_ratio(report)
    if ratio is None or report.model is None or report.output is None or report.command == "calibrate":
        return None
    before, after = report.model.size_bytes or 0, report.output.size_bytes
    words = f"{1 / ratio:.1f}x smaller" if ratio < 1 else f"{ratio:.1f}x larger"
    most = max(before, after)
    bars = (
        Bar(label="float", value=size(before), length=before / most, before=True),
        Bar(label="quantized", value=size(after), length=after / most),
    )
    return Tile(
        title="Size",
        figure="same size" if f"{ratio:.2f}" == "1.00" else words,
        note=f"{percent(ratio)} of the model",
        bars=bars,
    )


def _speed(found: LatencyInfo | None) -> Tile | None:
    if found is None:
        return None
    figure = f"{found.speedup:.2f}x faster" if found.speedup >= 1 else f"{1 / found.speedup:.2f}x slower"
    figure = "as fast as float" if abs(found.speedup - 1) <= EVEN else figure
    note = "median of interleaved runs"
    if found.interval is not None:
        low, high = found.interval
        note = f"95 %: {low:.2f}x to {high:.2f}x, {found.rounds} pairs"
        figure = "no significant difference" if low <= 1 < high else figure
    slow = max(found.float_ms, found.quantized_ms)
    bars = (
        Bar(label="float", value=f"{number(found.float_ms)} ms", length=found.float_ms / slow, before=True),
        Bar(label="quantized", value=f"{number(found.quantized_ms)} ms", length=found.quantized_ms / slow),
    )
    return Tile(title="Latency", figure=figure, note=note, bars=bars)


def _accuracy(report: Report) -> Tile | None:
    if report.verification is None or not report.verification.outputs:
        return None
    outputs = report.verification.outputs
    name, worst = min(outputs.items(), key=lambda item: _rank(item[1]))
    which = "" if len(outputs) == 1 else f"worst output {visible(name)}, "
    held = report.data is not None and report.data.held_out
    samples = plural(report.verification.samples, "held-out sample" if held else "sample")
    if worst.sqnr_db is not None or worst.exact:
        figure = decibel(worst.sqnr_db, exact=worst.exact)
    else:
        figure = percent(worst.top1_agreement)
    note = f"{which}{samples}"
    if worst.perplexity is not None and worst.float_perplexity is not None:
        note += f", perplexity {number(worst.float_perplexity)} to {number(worst.perplexity)}"
    return Tile(title="Accuracy", figure=figure, note=note, bars=tuple(_accuracy_bars(report, worst)))


def _rank(output: OutputComparison) -> float:
    """Less is worse; what has no SQNR counts only where nothing has one."""
    return output.sqnr_db if output.sqnr_db is not None else float("inf")


def _accuracy_bars(report: Report, worst: OutputComparison) -> Iterator[Bar]:
    rated = (("SQNR", worst.sqnr_db), ("worst channel", worst.worst_channel_sqnr_db))
    for label, decibels in rated:
        if decibels is not None:
            yield Bar(label=label, value=decibel(decibels), length=min(max(decibels / FULL_DB, 0.0), 1.0))
    if worst.top1_agreement is not None:
        yield Bar(label="top-1 agreement", value=percent(worst.top1_agreement), length=worst.top1_agreement)
    metric = report.metric
    if metric is not None and metric.quantized_value is not None and 0 <= metric.quantized_value <= 1:
        value = f"{number(metric.quantized_value)} (drop {drop_words(metric)})"
        yield Bar(label=visible(metric.name), value=value, length=metric.quantized_value)


def _coverage(found: Coverage | None) -> Tile | None:
    if found is None or found.nodes is None:
        return None
    shares = (("nodes", found.nodes), ("multiply-adds", found.macs), ("weight bytes", found.weight_bytes))
    bars = tuple(Bar(label=label, value=percent(share), length=share or 0.0) for label, share in shares)
    leading = found.nodes if found.macs is None else found.macs
    of = "nodes" if found.macs is None else "multiply-adds"
    return Tile(title="Coverage", figure=percent(leading), note=f"of {of} are quantized", bars=bars)
