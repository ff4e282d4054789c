"""The report while the run goes on: every stage writes what it came to know, so that a failure can tell it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from quantool.errors import QuantoolError
from quantool.pipeline.memory import Meter
from quantool.report.detail import FixRow, LayersInfo
from quantool.report.environment import environment
from quantool.report.model import (
    CandidateRow,
    Coverage,
    DataInfo,
    Gate,
    LatencyInfo,
    MetricInfo,
    ModelInfo,
    NodeRow,
    OutputInfo,
    Report,
    ResponsibleRow,
    RuntimeInfo,
    TensorRow,
    Trial,
    Verification,
)
from quantool.schema import Note


@dataclass(slots=True, kw_only=True)
class Draft:
    """The fields of a Report, filled in as they become known."""

    command: str
    model: ModelInfo | None = None
    output: OutputInfo | None = None
    recipe: dict[str, object] | None = None
    data: DataInfo | None = None
    nodes: tuple[NodeRow, ...] = ()
    tensors: tuple[TensorRow, ...] = ()
    coverage: Coverage | None = None
    verification: Verification | None = None
    runtime: RuntimeInfo | None = None
    latency: LatencyInfo | None = None
    gates: tuple[Gate, ...] = ()
    verdict: str | None = None
    warnings: list[Note] = field(default_factory=list)
    trials: tuple[Trial, ...] = ()
    metric: MetricInfo | None = None
    candidates: tuple[CandidateRow, ...] = ()
    chosen: str | None = None
    responsible: tuple[ResponsibleRow, ...] = ()
    recipe_file: str | None = None
    layers: LayersInfo | None = None
    fixes: tuple[FixRow, ...] = ()
    memory: Meter = field(default_factory=Meter)

    def report(self) -> Report:
        """The report of a run that succeeded so far."""
        values = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        threads = (self.recipe or {}).get("threads")
        values |= {
            "warnings": tuple(dict.fromkeys(self.warnings)),
            "memory": self.memory.info(),
            "environment": environment(threads if isinstance(threads, int) else 0),
        }
        return Report(**values)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Hang what is known on every QuantoolError that passes."""
        try:
            yield
        except QuantoolError as error:
            if error.report is None:
                error.report = Report.failed(self.command, _with_report(error, self.report()))
            raise


def _with_report(error: QuantoolError, report: Report) -> QuantoolError:
    error.report = report
    return error
