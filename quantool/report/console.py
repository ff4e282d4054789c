"""What commands print: rich text that fits 80 columns, plain where the stream is no terminal.

Every text goes through `visible` and into rich as Text or cell without markup, so no name can colour, move the
cursor or break a line.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from quantool.report.changes import CHANGE_HEADER, change_rows, changed_nodes
from quantool.report.model import Failure, NodeRow, Report, Status
from quantool.report.sensitivity import SENSITIVITY_HEADER, Sensitivity, sensitivity_facts, sensitivity_rows
from quantool.report.statistics import StatsInspection, statistics_facts, statistics_lines
from quantool.report.summary import (
    GATE_HEADER,
    OUTPUT_HEADER,
    Fact,
    data_line,
    facts,
    gate_rows,
    headline,
    is_doubtful,
    kept_groups,
    output_rows,
)
from quantool.report.tensor import tensor_facts
from quantool.report.tune import CANDIDATE_HEADER, candidate_rows, responsible_lines
from quantool.report.wording import counts, listing, percent, plural, visible
from quantool.requests import Inspection, TensorInfo, TensorResult

COLUMNS: Final = 80
_NAMES_SHOWN: Final = 3
_NOTES_SHOWN: Final = 5


class Screen:
    """A page that is filled and then written in one go: colour for terminals only, and not under NO_COLOR."""

    def __init__(self, *, terminal: bool) -> None:
        self._page = io.StringIO()
        self._console = Console(
            file=self._page,
            width=None if terminal else COLUMNS,
            force_terminal=terminal and "NO_COLOR" not in os.environ,
            markup=False,
            highlight=False,
            emoji=False,
        )

    def text(self) -> str:
        """What was put on the page, without the blanks that rich fills lines up with."""
        return re.sub(r" +$", "", self._page.getvalue(), flags=re.MULTILINE)

    def summary(self, report: Report, *, verbose: bool = False) -> None:
        """The whole of a run: data, verdict, figures, gates, and what stayed in float."""
        first = data_line(report)
        if first is not None:
            self._say(first)
        self._say(headline(report), style=_headline_style(report))
        self._console.print()
        self._facts(facts(report))
        self._changes(report)
        self._table(OUTPUT_HEADER, output_rows(report))
        self._table(GATE_HEADER, gate_rows(report))
        self._candidates(report)
        self._kept(report, verbose=verbose)
        self._warnings(report, verbose=verbose)

    def explanation(self, report: Report) -> None:
        """Every node with done or the reason against it, then what would change each reason."""
        self._facts(facts(report))
        self._console.print()
        for line in _node_lines(report.nodes):
            self._console.print(Text(line), soft_wrap=True)
        self._kept(report, verbose=False)
        self._warnings(report, verbose=True)

    def inspection(self, found: Inspection) -> None:
        """What a model is."""
        report = Report(command="inspect", model=found.model)
        nodes = plural(found.quantizable_nodes, "node")
        share = f"{nodes} with weights, {percent(found.quantizable_share)} of all; those around them often follow"
        self._facts(
            (
                *facts(report),
                *(Fact("input", _tensor(tensor)) for tensor in found.inputs),
                *(Fact("output", _tensor(tensor)) for tensor in found.outputs),
                Fact("parameters", f"{found.parameters:,}"),
                Fact("operators", counts(found.operators)),
                Fact("quantizable", share),
                Fact("data beside it", visible(found.data_beside) if found.data_beside else "none"),
            )
        )

    def statistics(self, found: StatsInspection) -> None:
        """What a file of statistics holds."""
        self._facts(statistics_facts(found))
        self._console.print()
        for line in statistics_lines(found):
            self._console.print(Text(line), soft_wrap=True)

    def sensitivity(self, found: Sensitivity, *, top: int) -> None:
        """What rounding costs, the worst groups first, and what to leave in float."""
        self._say(found.verdict, style="bold yellow" if found.exclude else "bold green")
        self._console.print()
        self._facts(sensitivity_facts(found))
        self._table(SENSITIVITY_HEADER, sensitivity_rows(found.groups[:top]))
        if len(found.groups) > top:
            self._say(f"and {plural(len(found.groups) - top, 'group')} more: see --top or --json")
        if found.exclude:
            self._console.print()
            self._console.print(Text(visible(found.recipe.rstrip())), soft_wrap=True)
        for note in found.warnings:
            self._say(f"warning: {visible(note.what)}", style="bold yellow")

    def tensor(self, found: TensorResult) -> None:
        """What a formula made of an array."""
        self._facts(tensor_facts(found))
        for note in found.warnings:
            self._say(f"warning: {visible(note.what)}", style="bold yellow")

    def verbatim(self, text: str) -> None:
        """A text as it is, unbroken."""
        for line in text.splitlines():
            self._console.print(Text(visible(line)), soft_wrap=True)

    def rows(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table of texts."""
        self._table(header, rows)

    def failures(self, errors: Iterable[Failure]) -> None:
        """Errors with their four texts, unbroken so that they can be searched for."""
        for error in errors:
            self._console.print(Text(f"error: {visible(error.what)}", style="bold red"), soft_wrap=True)
            for label, text in (("where", error.where), ("fix", error.fix), ("code", error.code)):
                self._console.print(Text(f"  {label}: {visible(text)}"), soft_wrap=True)

    def _say(self, text: str, *, style: str = "") -> None:
        self._console.print(Text(text, style=style, overflow="fold"))

    def _facts(self, found: Iterable[Fact]) -> None:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for fact in found:
            table.add_row(Text(fact.label, style="dim"), Text(fact.value))
        self._console.print(table)

    def _table(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for position, title in enumerate(header):
            table.add_column(title, overflow="fold", min_width=None if position else 10)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        if table.row_count:
            self._console.print()
            self._console.print(table)

    def _changes(self, report: Report) -> None:
        """What a check compared, and the nodes that it is about."""
        self._table(CHANGE_HEADER, change_rows(report))
        for heading, lines in changed_nodes(report).items():
            self._console.print()
            self._say(heading, style="bold")
            self._indented(*lines)

    def _candidates(self, report: Report) -> None:
        """What a search tried, and the layers that it had to spare."""
        self._table(CANDIDATE_HEADER, candidate_rows(report))
        if report.chosen is not None:
            self._console.print()
            self._say(f"Chosen: {visible(report.chosen)}", style="bold")
        for line in responsible_lines(report):
            self._say(line)
        if report.recipe_file is not None:
            self._say(f"Recipe: {visible(report.recipe_file)}")

    def _kept(self, report: Report, *, verbose: bool) -> None:
        groups = kept_groups(report)
        if not groups:
            return
        kept = sum(len(group.nodes) for group in groups)
        self._console.print()
        self._say(f"Kept in float: {plural(kept, 'node')}", style="bold")
        for group in groups:
            most = len(group.nodes) if verbose else _NAMES_SHOWN
            self._say(f"{group.code}: {group.operators}")
            names = listing((node.name for node in group.nodes), most=most)
            self._indented(names, group.text, group.fix)

    def _warnings(self, report: Report, *, verbose: bool) -> None:
        if not report.warnings:
            return
        self._console.print()
        self._say(plural(len(report.warnings), "warning"), style="bold yellow")
        most = len(report.warnings) if verbose else _NOTES_SHOWN
        for note in report.warnings[:most]:
            self._say(f"{note.code}: {visible(note.what)}")
            self._indented(visible(note.where), visible(note.fix))
        if len(report.warnings) > most:
            self._say(f"and {len(report.warnings) - most} more: see -v or --report")

    def _indented(self, *texts: str) -> None:
        for text in texts:
            self._console.print(Padding(Text(text, overflow="fold"), (0, 0, 0, 2)))


def _node_lines(nodes: Sequence[NodeRow]) -> list[str]:
    width = max((len(visible(node.op_type)) for node in nodes), default=0)
    lines: list[str] = []
    for node in nodes:
        name = visible(f"{node.scope}/{node.name}" if node.scope else node.name)
        line = f"{node.decision:<9}  {visible(node.op_type):<{width}}  {name}"
        if node.into:
            line += f"  into {visible(node.into)}"
        if node.reason is not None:
            line += f"  {node.reason.code}: {visible(node.reason.text)}"
        lines.append(line)
    return lines


def _headline_style(report: Report) -> str:
    if report.status != Status.DONE:
        return "bold red"
    return "bold yellow" if is_doubtful(report) else "bold green"


def _tensor(tensor: TensorInfo) -> str:
    shape = "unknown shape"
    if tensor.shape is not None:
        shape = "[" + ", ".join("?" if size is None else str(size) for size in tensor.shape) + "]"
    return visible(f"{tensor.name}: {tensor.dtype or 'no tensor'} {shape}")
