"""The report as Markdown, for a job summary or a pull request: the same content, of a bounded size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from quantool.report.advice import FIX_HEADER, LAYER_HEADER, fix_rows, loss_rows, worst_tensors
from quantool.report.changes import CHANGE_HEADER, change_rows, changed_nodes
from quantool.report.model import NodeRow, Report, TensorRow
from quantool.report.repeat import origin, recipe_text
from quantool.report.summary import (
    GATE_HEADER,
    OUTPUT_HEADER,
    data_line,
    facts,
    gate_rows,
    headline,
    kept_groups,
    output_rows,
)
from quantool.report.tune import CANDIDATE_HEADER, candidate_rows, responsible_lines
from quantool.report.wording import decibel, listing, number, percent, shortened, visible

TENSOR_HEADER: Final = ("tensor", "type", "range", "observed", "clipped", "SQNR", "calibrator")
#: a pull request takes 65,536 signs: rows of a table, signs of a cell, and what all of it may take in bytes
MOST_ROWS: Final = 30
MOST_SIGNS: Final = 400
MOST_BYTES: Final = 60_000
_NAMES_SHOWN: Final = 10
_WORST: Final = 10


def render(report: Report) -> str:
    """Markdown: the data line, the verdict, the figures, then what stayed in float and why, and the detail."""
    text = ""
    for part in filter(None, _parts(report)):
        piece = part if not text else f"\n\n{part}"
        if len((text + piece).encode()) > MOST_BYTES:
            return f"{text}\n\nThe rest is left out here: see the JSON or HTML report.\n"
        text += piece
    return text + "\n"


def _parts(report: Report) -> Iterator[str]:
    """The parts in their order, empty ones included."""
    first = data_line(report)
    yield "" if first is None else _escaped(first)
    yield f"## {_escaped(headline(report))}"
    yield _section("Errors", _notes(report.errors))
    yield _table(("figure", "value"), [(fact.label, fact.value) for fact in facts(report)])
    yield _section("Comparisons", _table(CHANGE_HEADER, change_rows(report)))
    for heading, lines in changed_nodes(report).items():
        yield _section(_escaped(heading), _bullets(lines))
    yield _section("Gates", _table(GATE_HEADER, gate_rows(report)))
    yield _section("Outputs", _table(OUTPUT_HEADER, output_rows(report)))
    yield _section("Candidates", _table(CANDIDATE_HEADER, candidate_rows(report)))
    yield from (_escaped(line) for line in responsible_lines(report))
    yield _section("Where the loss starts", _table(LAYER_HEADER, loss_rows(report)))
    yield _section("Cheapest fixes", _table(FIX_HEADER, fix_rows(report)))
    yield _section("Kept in float", _kept(report))
    yield _section("Warnings", _notes(report.warnings))
    worst = worst_tensors(report.tensors, _WORST)
    yield _section("Tensors whose rounding loses most", _table(TENSOR_HEADER, map(_tensor, worst)))
    yield _section("Where it ran", _table(("what", "value"), [(fact.label, fact.value) for fact in origin(report)]))
    yield _section("Command line", _block(visible(report.command_line or "")))
    yield _section("Recipe", _block(recipe_text(report)))


def _kept(report: Report) -> str:
    rows = [
        (group.code, str(len(group.nodes)), group.operators, group.text, group.fix, _names(group.nodes))
        for group in kept_groups(report)
    ]
    return _table(("reason", "nodes", "operators", "why", "what would change it", "names"), rows)


def _names(nodes: Iterable[NodeRow]) -> str:
    return listing((node.name for node in nodes), most=_NAMES_SHOWN)


def _notes(notes: Iterable[object]) -> str:
    fields = ("code", "what", "where", "fix")
    return _table(fields, [tuple(str(getattr(note, name)) for name in fields) for note in notes])


def _tensor(row: TensorRow) -> tuple[str, ...]:
    chosen = "-" if row.range is None else f"{number(row.range[0])} to {number(row.range[1])}"
    observed = "-" if row.observed_min is None else f"{number(row.observed_min)} to {number(row.observed_max)}"
    clipped = "-" if row.clipped_share is None else percent(row.clipped_share)
    return (shortened(row.name), row.dtype, chosen, observed, clipped, decibel(row.sqnr_db), row.calibrator or "-")


def _bullets(lines: Sequence[str]) -> str:
    shown = [f"- {_escaped(_cut(line))}" for line in lines[:MOST_ROWS]]
    more = [f"- and {len(lines) - MOST_ROWS} more"] if len(lines) > MOST_ROWS else []
    return "\n".join((*shown, *more))


def _section(title: str, body: str) -> str:
    return f"### {title}\n\n{body}" if body else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(row) for row in rows]
    if len(lines) > MOST_ROWS:
        lines[MOST_ROWS:] = [_row((f"and {len(lines) - MOST_ROWS} more", *[""] * (len(header) - 1)))]
    return "\n".join([_row(header), "|" + " --- |" * len(header), *lines]) if lines else ""


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escaped(_cut(cell)) for cell in cells) + " |"


def _cut(text: str) -> str:
    shown = visible(text)
    return shown if len(shown) <= MOST_SIGNS else f"{shown[: MOST_SIGNS - 3]}..."


def _block(text: str) -> str:
    """Text as it stands: a fence longer than any run of backticks in it."""
    if not text:
        return ""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, no break out of a table cell."""
    return re.sub(r"([\\`*_\[\]<>|~&#!])", r"\\\1", visible(text))
