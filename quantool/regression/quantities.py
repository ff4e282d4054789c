"""What two runs are compared by: one row a quantity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from quantool.measured import OutputComparison
from quantool.report.model import NodeRow, Report

Nodes = Mapping[tuple[str, str], NodeRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A figure of a run.

    unit: dB, share, nats, bytes, times, ms, or "" where it is the metric's own. tolerance: how much worse is allowed
    when nothing else is asked for. read: a report's values by subject, an output or "" for the whole model; what the
    run did not measure is left out. rising: more is better. interval: how sure the value is, where that is known: runs
    whose intervals overlap do not differ.
    """

    name: str
    what: str
    unit: str
    tolerance: str
    rising: bool
    read: Callable[[Report], Mapping[str, float]]
    interval: Callable[[Report], tuple[float, float] | None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeQuantity:
    """A property of nodes that should not be lost. holds: whether a node has it; read as Quantity says."""

    name: str
    what: str
    tolerance: str
    holds: Callable[[NodeRow], bool]
    unit: str = "nodes"

    def read(self, report: Report) -> Nodes:
        """The nodes that have it, by scope and name."""
        return {(node.scope, node.name): node for node in report.nodes if self.holds(node)}


def _outputs(figure: Callable[[OutputComparison], float | None]) -> Callable[[Report], dict[str, float]]:
    """A figure of every output that has it."""

    def read(report: Report) -> dict[str, float]:
        compared = {} if report.verification is None else report.verification.outputs
        values = {name: figure(output) for name, output in compared.items()}
        return {name: value for name, value in values.items() if value is not None}

    return read


def _whole(figure: Callable[[Report], float | None]) -> Callable[[Report], dict[str, float]]:
    """A figure of the whole model, where the run came to know it."""

    def read(report: Report) -> dict[str, float]:
        value = figure(report)
        return {} if value is None else {"": value}

    return read


def _drop(report: Report) -> dict[str, float]:
    found = report.metric
    return {} if found is None or found.drop is None else {found.name: found.drop}


QUANTITIES: Final[tuple[Quantity | NodeQuantity, ...]] = (
    NodeQuantity(
        name="nodes", tolerance="0", what="nodes that were quantized and stay in float now, matched by name",
        holds=lambda node: node.decision == "quantized",
    ),
    NodeQuantity(
        name="integer-nodes", tolerance="0", what="nodes that ran as integers and run in float now, matched by name",
        holds=lambda node: node.runs_as == "integer",
    ),
    Quantity(
        name="sqnr", unit="dB", tolerance="0.5", rising=True, what="SQNR of each output",
        read=_outputs(lambda output: math.inf if output.exact else output.sqnr_db),
    ),
    Quantity(
        name="channel-sqnr", unit="dB", tolerance="1", rising=True, what="SQNR of the worst channel of each output",
        read=_outputs(lambda output: math.inf if output.exact else output.worst_channel_sqnr_db),
    ),
    Quantity(
        name="agreement", unit="share", tolerance="0.005", rising=True, what="top-1 agreement of each output",
        read=_outputs(lambda output: output.top1_agreement),
    ),
    Quantity(
        name="kl", unit="nats", tolerance="0.005", rising=False,
        what="mean divergence of a language model's chances from the float model's",
        read=_outputs(lambda output: output.kl),
    ),
    Quantity(
        name="metric", unit="", tolerance="0.005", rising=False, read=_drop,
        what="drop of the metric from the float model, in the metric's unit",
    ),
    Quantity(
        name="size", unit="bytes", tolerance="1%", rising=False, what="size of the result",
        read=_whole(lambda report: None if report.output is None else report.output.size_bytes),
    ),
    Quantity(
        name="speedup", unit="times", tolerance="10%", rising=True, what="float time over quantized time",
        read=_whole(lambda report: None if report.latency is None else report.latency.speedup),
        interval=lambda report: None if report.latency is None else report.latency.interval,
    ),
    Quantity(
        name="latency", unit="ms", tolerance="off", rising=False,
        what="time of one run in ms; told alone by default, since it is the machine's too",
        read=_whole(lambda report: None if report.latency is None else report.latency.quantized_ms),
    ),
    Quantity(
        name="coverage", unit="share", tolerance="0", rising=True, what="share of multiply-adds as integers",
        read=_whole(lambda report: None if report.coverage is None else report.coverage.macs),
    ),
    Quantity(
        name="weight-coverage", unit="share", tolerance="0", rising=True, what="share of weight bytes as integers",
        read=_whole(lambda report: None if report.coverage is None else report.coverage.weight_bytes),
    ),
)  # fmt: skip
