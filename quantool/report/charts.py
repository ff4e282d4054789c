"""The pictures of a report as plain geometry: nothing here holds a name, so nothing here can break a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from quantool.report.detail import Histogram, LayerRow

#: a histogram's drawing: a column a bin, and so high
COLUMN_HEIGHT: Final = 24
#: the plot of layers, in units of its view box
PLOT_WIDTH: Final = 1000
PLOT_HEIGHT: Final = 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 14, 26
#: what the plot shows at least, in dB, and what counts as exact where it ends
LEAST_TOP_DB: Final = 60.0
_STEP_DB: Final = 10.0
#: what a layer's number takes
LABEL_WIDTH: Final = 34.0
#: with more layers than this, only the line and the marked ones are drawn
MOST_DOTS: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A histogram: heights are logarithmic, so that tails show. band: the chosen range, (left, width) in columns."""

    count: int
    path: str
    band: tuple[float, float] | None


def columns(found: Histogram, chosen: tuple[float, float] | None) -> Columns:
    """The outline of a histogram, and the part of it that the chosen range covers."""
    most = math.log1p(max((*found.counts, found.below, found.above, 1)))
    heights = [round(COLUMN_HEIGHT * math.log1p(count) / most) for count in found.counts]
    path, last = f"M0 {COLUMN_HEIGHT}", COLUMN_HEIGHT
    for position, height in enumerate(heights):
        top = COLUMN_HEIGHT - height
        if top != last:
            path += f"{f'H{position}' if position else ''}V{top}"
            last = top
    path += f"H{len(heights)}V{COLUMN_HEIGHT}Z"
    band = None
    if chosen is not None:
        scale = len(heights) / (found.high - found.low)
        left, right = (min(max((end - found.low) * scale, 0.0), float(len(heights))) for end in chosen)
        band = round(left, 1), round(max(right - left, 0.5), 1)
    return Columns(count=len(heights), path=path, band=band)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One layer. number: its place in the graph, from 1; marked: most is lost here; labelled: its number has room."""

    x: float
    y: float
    row: LayerRow
    number: int
    marked: bool
    labelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """SQNR along the graph. lines: (y, dB) of the grid; ticks: (x, number of the layer); path: through all layers."""

    path: str
    dots: tuple[Dot, ...]
    lines: tuple[tuple[float, int], ...]
    ticks: tuple[tuple[float, int], ...]


def layer_plot(rows: Sequence[LayerRow], marked: Sequence[LayerRow]) -> Plot:
    """The line through all layers in the order of the graph, those where most is lost marked."""
    known = [row.sqnr_db for row in rows if row.sqnr_db is not None]
    top = max(LEAST_TOP_DB, _STEP_DB * math.ceil(min(max(known, default=0.0), 100.0) / _STEP_DB))
    bottom = min(0.0, _STEP_DB * math.floor(max(min(known, default=0.0), -20.0) / _STEP_DB))
    height, width = PLOT_HEIGHT - _TOP - _BOTTOM, PLOT_WIDTH - _LEFT - _RIGHT

    def y_of(decibels: float) -> float:
        return round(_TOP + height * (top - min(max(decibels, bottom), top)) / (top - bottom), 1)

    def x_of(position: int) -> float:
        return round(_LEFT + width * (position + 0.5) / len(rows), 1)

    marks = {row.tensor for row in marked}
    dots = [
        Dot(x=x_of(i), y=y_of(_level(row, top, bottom)), row=row, number=i + 1, marked=row.tensor in marks)
        for i, row in enumerate(rows)
    ]
    dots = list(_labelled(dots))
    step = _round_step(len(rows))
    return Plot(
        path="M" + "L".join(f"{dot.x} {dot.y}" for dot in dots),
        dots=tuple(dot for dot in dots if dot.marked or len(dots) <= MOST_DOTS),
        lines=tuple((y_of(db), int(db)) for db in _grid(bottom, top)),
        ticks=tuple((x_of(i - 1), i) for i in range(step, len(rows) + 1, step)),
    )


def _labelled(dots: Sequence[Dot]) -> Iterator[Dot]:
    """The dots, those marked with their number where it does not cover that of one before."""
    last = -LABEL_WIDTH
    for dot in dots:
        if dot.marked and dot.x - last >= LABEL_WIDTH:
            last = dot.x
            yield replace(dot, labelled=True)
        else:
            yield dot


def _level(row: LayerRow, top: float, bottom: float) -> float:
    if row.sqnr_db is None:
        return top if row.exact else bottom
    return row.sqnr_db


def _grid(bottom: float, top: float) -> list[float]:
    step = _STEP_DB if top - bottom <= 80 else 2 * _STEP_DB
    return [bottom + step * i for i in range(int((top - bottom) / step) + 1)]


def _round_step(count: int) -> int:
    """A round number that goes into a count about ten times."""
    raw = max(count / 10, 1)
    power = 10 ** math.floor(math.log10(raw))
    return int(next(power * part for part in (1, 2, 5, 10) if power * part >= raw))
