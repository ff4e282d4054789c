"""What `check` found, in the words that every rendering shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from quantool.report.model import Change, NodeRow, Outcome, Report
from quantool.report.wording import UNKNOWN, decibel, listing, number, percent, plural, size, visible

CHANGE_HEADER: Final = ("quantity", "baseline", "now", "allowed loss", "result")
_NAMES_SHOWN: Final = 10

_BY_UNIT: Final[Mapping[str, Callable[[float], str]]] = {
    "nodes": lambda value: f"{value:g}",
    "dB": lambda value: decibel(value, exact=value == float("inf")),
    "share": percent,
    "nats": lambda value: f"{number(value)} nats",
    "bytes": lambda value: size(round(value)),
    "times": lambda value: f"{value:.2f}x",
    "ms": lambda value: f"{number(value)} ms",
    "": number,
}


def changes_of(report: Report) -> tuple[Change, ...]:
    """What was compared, what got worse first."""
    return () if report.check is None else report.check.changes


def change_rows(report: Report) -> tuple[tuple[str, ...], ...]:
    """One row a comparison, under CHANGE_HEADER."""
    return tuple(
        (
            title(change),
            _value(change, change.baseline),
            _value(change, change.current),
            "not judged" if change.outcome is Outcome.NOT_JUDGED else _value(change, change.allowed),
            result(change),
        )
        for change in changes_of(report)
    )


def title(change: Change) -> str:
    """The quantity, and the output that it is of."""
    return f"{change.quantity} {visible(change.subject)}".rstrip()


def result(change: Change) -> str:
    """The outcome in a few words."""
    if change.outcome is Outcome.UNKNOWN:
        return "no baseline" if change.baseline is None else "unknown now"
    return str(change.outcome).replace("-", " ")


def sentence(change: Change) -> str:
    """One comparison in words, for an error or a test case."""
    was, now = (_value(change, value) for value in (change.baseline, change.current))
    limit = f" ({_value(change, change.allowed)} allowed)" if change.allowed else ""
    if change.unit != "nodes":
        return f"{title(change)} was {was} and is {now}{limit}"
    names = listing((node.name for node in change.nodes), most=_NAMES_SHOWN)
    return f"{plural(len(change.nodes), 'node')} {_turned(change)}: {names}{limit}"


def _turned(change: Change) -> str:
    first = change.nodes[0]
    if change.quantity == "nodes":
        return "newly in float" if first.decision == "kept" else "newly quantized"
    return "newly run as integers" if first.runs_as == "integer" else "newly run in float"


def changed_nodes(report: Report) -> dict[str, list[str]]:
    """The nodes that comparisons are about, by a heading, with the reason where they stay in float."""
    groups: dict[str, list[str]] = {}
    shown: list[tuple[NodeRow, ...]] = []
    for change in changes_of(report):
        if change.nodes and change.nodes not in shown:  # what stays in float runs in float, too
            shown.append(change.nodes)
            groups[f"{plural(len(change.nodes), 'node')} {_turned(change)}"] = [_line(node) for node in change.nodes]
    return groups


def _line(node: NodeRow) -> str:
    reason = "" if node.reason is None else f": {node.reason.code}: {visible(node.reason.text)}"
    return f"{visible(node.op_type)} {visible(node.name)}{reason}"


def _value(change: Change, value: float | None) -> str:
    return UNKNOWN if value is None else _BY_UNIT[change.unit](value)
