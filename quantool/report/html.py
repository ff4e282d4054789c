"""The report as one self-contained HTML page: no network, no scripts, light and dark."""

from __future__ import annotations

from importlib import resources

import jinja2

from quantool.report.changes import CHANGE_HEADER, change_rows, changed_nodes
from quantool.report.model import NodeRow, Report, TensorRow
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
from quantool.report.tune import CANDIDATE_HEADER, candidate_rows, responsible_lines
from quantool.report.wording import decibel, number, percent, plural, size, visible

NODE_HEADER = ("node", "operator", "scope", "decision", "runs as", "part of", "reason")
TENSOR_HEADER = ("tensor", "type", "scale", "zero point", "range", "observed", "clipped", "SQNR")


def render(report: Report) -> str:
    """The HTML page; every text in it is escaped by the template engine."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"visible": visible, "plural": plural}
    source = resources.files("quantool.report").joinpath("template.html.j2").read_text(encoding="utf-8")
    recipe = {key: value for key, value in (report.recipe or {}).items() if value not in (None, False, [])}
    return environment.from_string(source).render(
        report=report,
        headline=headline(report),
        tone="trouble" if report.exit_code else "doubt" if is_doubtful(report) else "done",
        data_line=data_line(report),
        facts=facts(report),
        bars=_bars(report),
        changes=(CHANGE_HEADER, change_rows(report)),
        changed=changed_nodes(report),
        gates=(GATE_HEADER, gate_rows(report)),
        outputs=(OUTPUT_HEADER, output_rows(report)),
        candidates=(CANDIDATE_HEADER, candidate_rows(report)),
        responsible=responsible_lines(report),
        kept=kept_groups(report),
        nodes=(NODE_HEADER, [_node(row) for row in report.nodes]),
        tensors=(TENSOR_HEADER, [_tensor(row) for row in report.tensors]),
        recipe=(("option", "value"), [(key, visible(str(value))) for key, value in recipe.items()]),
    )


def _bars(report: Report) -> list[tuple[str, str, float]]:
    """Label, value in words, and length as a fraction of the longest of its kind."""
    bars: list[tuple[str, str, float]] = []
    if report.model is not None and report.model.size_bytes and report.output is not None:
        before, after = report.model.size_bytes, report.output.size_bytes
        bars.append(("size, float", size(before), before / max(before, after)))
        bars.append(("size, quantized", size(after), after / max(before, after)))
    if report.latency is not None:
        slow = max(report.latency.float_ms, report.latency.quantized_ms)
        for kind, took in (("float", report.latency.float_ms), ("quantized", report.latency.quantized_ms)):
            bars.append((f"latency, {kind}", f"{number(took)} ms", took / slow))
    if report.coverage is not None:
        found = report.coverage
        shares = (("nodes", found.nodes), ("multiply-adds", found.macs), ("weight bytes", found.weight_bytes))
        bars += [(f"{kind} quantized", percent(share), share or 0.0) for kind, share in shares]
    return bars


def _node(row: NodeRow) -> tuple[str, ...]:
    reason = "" if row.reason is None else f"{row.reason.code}: {row.reason.text}"
    cells = (row.name, row.op_type, row.scope, row.decision, row.runs_as or "", row.into or "", reason)
    return tuple(visible(cell) for cell in cells)


def _tensor(row: TensorRow) -> tuple[str, ...]:
    return (
        visible(row.name),
        row.dtype,
        _spread(row.scale),
        _spread(row.zero_point),
        "-" if row.range is None else f"{number(row.range[0])} to {number(row.range[1])}",
        "-" if row.observed_min is None else f"{number(row.observed_min)} to {number(row.observed_max)}",
        "-" if row.clipped_share is None else percent(row.clipped_share),
        decibel(row.sqnr_db),
    )


def _spread(value: float | tuple[float, ...] | None) -> str:
    """One number, or the extremes of many."""
    if not isinstance(value, tuple):
        return number(value)
    if not value or min(value) == max(value):
        return number(value[0]) if value else "-"
    return f"{number(min(value))} to {number(max(value))} ({len(value)} values)"
