"""The report as Markdown, for a job summary or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from quantool.report.changes import CHANGE_HEADER, change_rows, changed_nodes
from quantool.report.model import NodeRow, Report
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
from quantool.report.wording import listing, visible

_NAMES_SHOWN = 10


def render(report: Report) -> str:
    """Markdown: the data line, the verdict, the figures, then what stayed in float and why."""
    first = data_line(report)
    parts = [] if first is None else [_escaped(first)]
    parts.append(f"## {_escaped(headline(report))}")
    parts.append(_table(("figure", "value"), [(fact.label, fact.value) for fact in facts(report)]))
    parts.append(_section("Comparisons", _table(CHANGE_HEADER, change_rows(report))))
    for heading, lines in changed_nodes(report).items():
        parts.append(_section(heading, "\n".join(f"- {_escaped(line)}" for line in lines)))
    parts.append(_section("Gates", _table(GATE_HEADER, gate_rows(report))))
    parts.append(_section("Outputs", _table(OUTPUT_HEADER, output_rows(report))))
    parts.append(_section("Candidates", _table(CANDIDATE_HEADER, candidate_rows(report))))
    parts += [_escaped(line) for line in responsible_lines(report)]
    parts.append(_section("Kept in float", _kept(report)))
    for title, notes in (("Warnings", report.warnings), ("Errors", report.errors)):
        rows = [(note.code, note.what, note.where, note.fix) for note in notes]
        parts.append(_section(title, _table(("code", "what", "where", "fix"), rows)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _kept(report: Report) -> str:
    rows = [
        (group.code, str(len(group.nodes)), group.operators, group.text, group.fix, _names(group.nodes))
        for group in kept_groups(report)
    ]
    return _table(("reason", "nodes", "operators", "why", "what would change it", "names"), rows)


def _names(nodes: Iterable[NodeRow]) -> str:
    return listing((node.name for node in nodes), most=_NAMES_SHOWN)


def _section(title: str, body: str) -> str:
    return f"### {title}\n\n{body}" if body else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(row) for row in rows]
    return "\n".join([_row(header), "|" + " --- |" * len(header), *lines]) if lines else ""


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, no break out of a table cell."""
    return re.sub(r"([\\`*_\[\]<>|~&#!])", r"\\\1", visible(text))
