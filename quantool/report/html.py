"""The report as one self-contained HTML page: no network, readable without scripts, light and dark.

A small script sorts and filters tables where scripts may run; the page's own policy allows that one alone, by its hash,
and no request to anywhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import PurePath
from typing import Final, TypeVar

import jinja2
from markupsafe import Markup

from quantool.report.advice import (
    FIX_HEADER,
    LAYER_HEADER,
    fix_rows,
    largest_losses,
    layer_cells,
    loss_rows,
    worst_tensors,
)
from quantool.report.changes import CHANGE_HEADER, change_rows, changed_nodes
from quantool.report.charts import Columns, columns, layer_plot
from quantool.report.model import NodeRow, Report, TensorRow
from quantool.report.repeat import origin, recipe_text
from quantool.report.summary import (
    GATE_HEADER,
    OUTPUT_HEADER,
    data_line,
    facts,
    gate_rows,
    headline,
    is_doubtful,
    kept_groups,
    output_rows,
)
from quantool.report.tiles import tiles
from quantool.report.tune import CANDIDATE_HEADER, candidate_rows, responsible_lines
from quantool.report.wording import decibel, number, percent, plural, shortened, visible

NODE_HEADER = ("node", "operator", "scope", "decision", "runs as", "part of", "reason")
TENSOR_HEADER = (
    "tensor", "type", "distribution", "range", "observed", "clipped", "SQNR", "calibrator", "scale", "zero point",
)  # fmt: skip
TENSOR_NUMBERS = (3, 4, 5, 6, 8, 9)
#: a table with more rows than this is folded, and the worst of it stand before it
FEW: Final = 60
WORST: Final = 20
#: what a page holds of long tables at most: rows, and signs of their texts and pictures; JSON holds everything
MOST_ROWS: Final = 10_000
MOST_SIGNS: Final = 4_000_000
MOST_NAMES: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of texts. numbers, names: the columns that are set as such."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    numbers: tuple[int, ...] = ()
    names: tuple[int, ...] = ()
    sortable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLine:
    """A row of the table of tensors. told: what the picture shows, in words."""

    name: str
    dtype: str
    cells: tuple[str, ...]
    picture: Columns | None
    told: str

    @property
    def signs(self) -> int:
        """About what it takes in the page."""
        return (
            400 + len(self.name) + sum(map(len, self.cells)) + (0 if self.picture is None else len(self.picture.path))
        )


Row = TypeVar("Row", tuple[str, ...], TensorLine)


def render(report: Report) -> str:
    """The HTML page; every text in it is escaped by the template engine."""
    script, style = _part("page.js"), _part("page.css")
    tensor_rows = list(_bounded(_tensor(row) for row in report.tensors))
    return _template().render(
        report=report,
        headline=headline(report),
        tone="trouble" if report.exit_code else "doubt" if is_doubtful(report) else "done",
        subject=_subject(report),
        data_line=data_line(report),
        facts=facts(report),
        tiles=tiles(report),
        changed=changed_nodes(report),
        responsible=responsible_lines(report),
        kept=kept_groups(report),
        most_names=MOST_NAMES,
        plot=None if report.layers is None or not report.layers.rows else _plot(report),
        tensor_header=TENSOR_HEADER,
        tensor_numbers=TENSOR_NUMBERS,
        tensor_rows=tensor_rows,
        tensor_count=len(report.tensors),
        worst=[_tensor(row) for row in worst_tensors(report.tensors, WORST)] or tensor_rows[:WORST],
        few=FEW,
        recipe=recipe_text(report),
        origin=origin(report),
        style=Markup(style),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **_tables(report),
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"visible": visible, "plural": plural, "decibel": decibel, "short": shortened}
    environment.globals["left_out"] = _left_out
    return environment.from_string(_part("template.html.j2"))


def _part(name: str) -> str:
    return resources.files("quantool.report").joinpath(name).read_text(encoding="utf-8")


def _tables(report: Report) -> dict[str, Table]:
    """The plain tables by their name in the template."""
    samples = 0 if report.verification is None else report.verification.samples
    layers = () if report.layers is None else report.layers.rows
    layer_rows = (layer_cells(row, place) for place, row in enumerate(layers, 1))
    return {
        "gates": Table(
            header=GATE_HEADER, rows=gate_rows(report), caption="Limits set for this run", numbers=(1, 2), names=(0,)
        ),
        "changes": Table(
            header=CHANGE_HEADER, rows=change_rows(report), caption="This run against the baseline", numbers=(1, 2, 3)
        ),
        "outputs": Table(
            header=OUTPUT_HEADER,
            rows=output_rows(report),
            caption=f"Float against quantized, over {plural(samples, 'sample')}",
            numbers=tuple(range(1, len(OUTPUT_HEADER))),
            names=(0,),
        ),
        "losses": Table(
            header=LAYER_HEADER,
            rows=loss_rows(report),
            caption="The layers that add most noise",
            numbers=(0, 4, 5),
            names=(1,),
        ),
        "layers": Table(
            header=LAYER_HEADER,
            rows=list(_bounded(layer_rows)),
            caption="SQNR of what each layer reads and of what it writes",
            numbers=(0, 4, 5),
            names=(1,),
            sortable=True,
        ),
        "fixes": Table(
            header=FIX_HEADER,
            rows=fix_rows(report),
            caption="Most decibels for the multiply-adds first",
            numbers=(2, 3),
            names=(0, 4),
        ),
        "candidates": Table(
            header=CANDIDATE_HEADER,
            rows=candidate_rows(report),
            caption="Recipes that were tried; * where none is smaller, faster and better",
            numbers=(1, 2, 3, 4),
        ),
        "nodes": Table(
            header=NODE_HEADER,
            rows=list(_bounded(_node(row) for row in report.nodes)),
            caption=f"{plural(len(report.nodes), 'node')} of the model as given",
            names=(0, 5),
            sortable=True,
        ),
    }


def _bounded(rows: Iterable[Row]) -> Iterator[Row]:
    """Rows as long as they fit into the page."""
    left = MOST_SIGNS
    for position, row in enumerate(rows):
        left -= row.signs if isinstance(row, TensorLine) else 100 + sum(map(len, row))
        if left < 0 or position == MOST_ROWS:
            return
        yield row


def _left_out(whole: int, shown: int) -> Markup:
    if whole == shown:
        return Markup("")
    return Markup('<p class="faint">{} more are left out here: see the JSON report</p>').format(f"{whole - shown:,}")


def _subject(report: Report) -> str:
    """The model's file name."""
    path = None if report.model is None else report.model.path
    return "" if path is None else visible(PurePath(path).name)


def _plot(report: Report) -> object:
    assert report.layers is not None
    return layer_plot(report.layers.rows, largest_losses(report))


def _node(row: NodeRow) -> tuple[str, ...]:
    reason = "" if row.reason is None else f"{row.reason.code}: {row.reason.text}"
    names = (shortened(row.name), row.op_type, row.scope, row.decision, row.runs_as or "")
    return (*map(visible, names), "" if row.into is None else shortened(row.into), visible(reason))


def _tensor(row: TensorRow) -> TensorLine:
    chosen = _interval(row.range)
    observed = _interval(None if row.observed_min is None else (row.observed_min, row.observed_max))
    found = row.histogram
    beyond = 0 if found is None else found.below + found.above
    outside = f", {beyond} beyond the picture" if beyond else ""
    return TensorLine(
        name=shortened(row.name),
        dtype=row.dtype,
        cells=(
            chosen,
            observed,
            "-" if row.clipped_share is None else percent(row.clipped_share),
            decibel(row.sqnr_db),
            row.calibrator or "-",
            _spread(row.scale),
            _spread(row.zero_point),
        ),
        picture=None if found is None else columns(found, row.range),
        told=f"Distribution of {observed}, range {chosen}{outside}" if row.range else f"Distribution of {observed}",
    )


def _interval(ends: tuple[float, float | None] | None) -> str:
    return "-" if ends is None else f"{number(ends[0])} to {number(ends[1])}"


def _spread(value: float | tuple[float, ...] | None) -> str:
    """One number, or the extremes of many."""
    if not isinstance(value, tuple):
        return number(value)
    if not value or min(value) == max(value):
        return number(value[0]) if value else "-"
    return f"{number(min(value))} to {number(max(value))} ({len(value)} values)"
