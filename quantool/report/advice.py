"""Where the loss starts, and what would reduce it at the least cost, in the words that every rendering shares."""

from __future__ import annotations

import heapq
import shlex
from collections.abc import Sequence
from typing import Final

from quantool.report.detail import FixRow, LayerRow
from quantool.report.model import Report, TensorRow
from quantool.report.wording import decibel, listing, percent, shortened, visible

LAYER_HEADER: Final = ("layer", "node", "operator", "runs as", "arrives", "leaves")
FIX_HEADER: Final = ("leave in float", "operators", "gain", "multiply-adds back in float", "option")
#: layers that are pointed out
MOST_MARKED: Final = 5
_NAMES_SHOWN: Final = 2


def added_noise(row: LayerRow) -> float:
    """Noise over signal that a layer adds to what arrives, 0 where it adds none."""
    if row.exact or row.sqnr_db is None:
        return 0.0
    arriving = 0.0 if row.input_sqnr_db is None else 10 ** (-row.input_sqnr_db / 10)
    return max(10 ** (-row.sqnr_db / 10) - arriving, 0.0)


def largest_losses(report: Report, most: int = MOST_MARKED) -> tuple[LayerRow, ...]:
    """The layers that add most noise, in the order of the graph."""
    rows = () if report.layers is None else report.layers.rows
    worst = heapq.nlargest(most, range(len(rows)), key=lambda i: (added_noise(rows[i]), -i))
    return tuple(rows[i] for i in sorted(worst) if added_noise(rows[i]) > 0)


def layer_cells(row: LayerRow, number: int) -> tuple[str, ...]:
    """One row under LAYER_HEADER. number: the layer's place in the graph, from 1."""
    return (
        str(number),
        shortened(row.node),
        visible(row.op_type),
        row.runs_as or "-",
        decibel(row.input_sqnr_db, exact=row.input_sqnr_db is None),
        decibel(row.sqnr_db, exact=row.exact),
    )


def loss_rows(report: Report) -> tuple[tuple[str, ...], ...]:
    """The layers that add most noise, under LAYER_HEADER."""
    if report.layers is None:
        return ()
    places = {row.tensor: number for number, row in enumerate(report.layers.rows, 1)}
    return tuple(layer_cells(row, places[row.tensor]) for row in largest_losses(report))


def fix_rows(report: Report) -> tuple[tuple[str, ...], ...]:
    """What leaving groups in float would gain, under FIX_HEADER; the cheapest first."""
    return tuple(
        (
            listing(map(shortened, row.nodes), most=_NAMES_SHOWN),
            visible(", ".join(row.operators)),
            f"+{decibel(row.gain_db)}",
            percent(row.macs_share),
            visible(_option(row)),
        )
        for row in report.fixes
    )


def _option(row: FixRow) -> str:
    """The option that does it; signs that globs know stand for themselves in brackets."""
    escaped = "".join(f"[{sign}]" if sign in "*?[" else sign for sign in row.nodes[0])
    return f"--exclude {shlex.quote(escaped)}"


def worst_tensors(rows: Sequence[TensorRow], most: int) -> tuple[TensorRow, ...]:
    """The tensors whose own rounding leaves least, the worst first."""
    known = [row for row in rows if row.sqnr_db is not None]
    return tuple(heapq.nsmallest(most, known, key=lambda row: (row.sqnr_db, row.name)))
