"""Report: everything a run found and decided. Its `to_dict` is the JSON document ``quantool/1``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import numpy as np

from quantool.errors import GateError, NothingQuantizedError, QuantoolError
from quantool.measured import Latency, OutputComparison, RunsAs
from quantool.metrics import Measured
from quantool.report.detail import Environment, FixRow, Histogram, LayersInfo
from quantool.report.environment import environment
from quantool.schema import Note, Reason

SCHEMA: Final = "quantool/1"
#: how the source of given ranges begins
OF_RANGES: Final = "ranges "


class Status(StrEnum):
    """How a run ended."""

    DONE = "done"
    GATE_FAILED = "gate-failed"
    REFUSED = "refused"
    NOTHING_QUANTIZED = "nothing-quantized"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model as given; None where the run did not come to know it."""

    path: str | None
    sha256: str | None = None
    opset: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputInfo:
    """What was written. size_bytes: the model file and its external data."""

    path: str | None
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataInfo:
    """The feeds behind the ranges. source: in words; held_out: verified on other feeds, None where unknown."""

    source: str
    samples: int
    held_out: bool | None

    @property
    def of_ranges(self) -> bool:
        """Whether ranges were given instead of feeds."""
        return self.source.startswith(OF_RANGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node of the model as given. decision: quantized or kept; runs_as: integer or float."""

    name: str
    op_type: str
    scope: str
    decision: str
    into: str | None = None
    runs_as: str | None = None
    reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow:
    """One quantized tensor. scale, zero_point: one number, or one a channel; range: (lo, hi) that was chosen.

    sqnr_db: of rounding it to that grid alone; calibrator: what chose the range: its name, ``fixed`` by the operator,
    or ``recipe``; histogram: of the float values. All three are known only where a report was asked for.
    """

    name: str
    dtype: str
    scale: float | tuple[float, ...] | None = None
    zero_point: int | tuple[int, ...] | None = None
    range: tuple[float, float] | None = None
    observed_min: float | None = None
    observed_max: float | None = None
    clipped_share: float | None = None
    sqnr_db: float | None = None
    calibrator: str | None = None
    histogram: Histogram | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Fractions of the model that became integers; None where unknown."""

    nodes: float | None
    macs: float | None
    weight_bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Float against quantized, over `samples` feeds."""

    samples: int
    outputs: Mapping[str, OutputComparison]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeInfo:
    """The optimized model.

    fused: integer operators by type; left: remaining Q and DQ by type; accuracy_levels: those of MatMulNBits (4: it
    rounds activations to 8 bits).
    """

    fused: Mapping[str, int]
    left: Mapping[str, int]
    accuracy_levels: tuple[int, ...] = ()

    @classmethod
    def of(cls, found: RunsAs) -> RuntimeInfo:
        """What the optimized model showed."""
        return cls(fused=found.fused, left=found.left, accuracy_levels=found.accuracy_levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyInfo:
    """Median times of one run, and how many times faster the result is: the median ratio of paired runs.

    interval: 95 % of that ratio; rounds: how many pairs. None where times were not measured in pairs.
    """

    float_ms: float
    quantized_ms: float
    speedup: float
    interval: tuple[float, float] | None = None
    rounds: int | None = None

    @classmethod
    def of(cls, latency: Latency) -> LatencyInfo:
        """The measured medians with their ratio."""
        return cls(
            float_ms=latency.float_ms,
            quantized_ms=latency.quantized_ms,
            speedup=latency.speedup,
            interval=latency.interval,
            rounds=latency.rounds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A limit that the user set, by its option's name in a recipe. value: None where unknown, which does not pass."""

    name: str
    limit: float
    value: float | None
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One way that was tried on the kept samples.

    score_db: mean noise over signal of the samples, in dB, of the worst output.
    """

    name: str
    score_db: float
    chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInfo:
    """Private memory under --memory: what no file backs, so that mapped weights do not count.

    groups: how many the tensors were tapped in; passes: how often the data was read; measured_peak_bytes: the most
    that was seen, looking every few milliseconds. None where the run did not come to know it.
    """

    bound_bytes: int
    groups: int | None
    passes: int | None
    estimated_peak_bytes: int | None
    measured_peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricInfo:
    """A metric of both models on the same samples.

    drop: how much worse the quantized one is, None where the float model has no finite value; interval: 95 % of the
    drop, or of the quantized value without one; resolved: the samples tell the drop from none.
    """

    name: str
    float_value: float | None
    quantized_value: float | None
    drop: float | None
    interval: tuple[float, float] | None
    resolved: bool
    rows: int

    @classmethod
    def of(cls, found: Measured) -> MetricInfo:
        """What was measured."""
        return cls(
            name=found.name,
            float_value=_finite(found.float_value),
            quantized_value=_finite(found.value),
            drop=found.drop,
            interval=found.interval if found.interval is not None and all(map(math.isfinite, found.interval)) else None,
            resolved=found.resolved,
            rows=found.rows,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRow:
    """One recipe that was tried, and what it came to; where it failed, `error` says why.

    name: the recipe in words; rung: the step of the ladder; speed: quartiles of the ratio of float to quantized time;
    sqnr_db: of the worst output; meets: every target holds; pareto: none is smaller, faster and better.
    """

    name: str
    rung: str
    recipe: Mapping[str, object]
    size_bytes: int | None = None
    latency: LatencyInfo | None = None
    speed: tuple[float, float] | None = None
    metric: MetricInfo | None = None
    sqnr_db: float | None = None
    meets: bool = False
    pareto: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsibleRow:
    """Nodes that had to be spared, and what quantizing them alone costs. kept_in: float, or a type of 16 bits."""

    nodes: tuple[str, ...]
    kept_in: str
    drop: float | None
    sqnr_db: float | None


class Outcome(StrEnum):
    """What became of a quantity since the baseline, the worst first."""

    REGRESSED = "regressed"
    UNKNOWN = "unknown"
    IMPROVED = "improved"
    WITHIN = "within"
    NOT_JUDGED = "not-judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One quantity of two runs.

    subject: the output, or the metric, or "" for the whole model. baseline, current: None where unknown, infinite for
    the SQNR of equal outputs. allowed: how much worse it may be, in its unit; None where it is not judged.
    nodes: those that lost the property, as they are now, or where none did, those that gained it.
    """

    quantity: str
    subject: str = ""
    unit: str
    baseline: float | None
    current: float | None
    allowed: float | None
    outcome: Outcome
    passed: bool
    nodes: tuple[NodeRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckInfo:
    """A run held against an earlier one. of: the command of both; report, baseline: the files of the two reports."""

    of: str
    report: str
    baseline: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error as data: the four texts of a QuantoolError."""

    code: str
    what: str
    where: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run. Fields stand in the order of the JSON document; new ones go to the end."""

    command: str
    status: Status = Status.DONE
    exit_code: int = 0
    model: ModelInfo | None = None
    output: OutputInfo | None = None
    recipe: Mapping[str, object] | None = None
    data: DataInfo | None = None
    nodes: tuple[NodeRow, ...] = ()
    tensors: tuple[TensorRow, ...] = ()
    coverage: Coverage | None = None
    verification: Verification | None = None
    runtime: RuntimeInfo | None = None
    latency: LatencyInfo | None = None
    gates: tuple[Gate, ...] = ()
    verdict: str | None = None
    warnings: tuple[Note, ...] = ()
    errors: tuple[Failure, ...] = field(default=())
    trials: tuple[Trial, ...] = ()
    memory: MemoryInfo | None = None
    metric: MetricInfo | None = None
    candidates: tuple[CandidateRow, ...] = ()
    chosen: str | None = None
    responsible: tuple[ResponsibleRow, ...] = ()
    recipe_file: str | None = None
    check: CheckInfo | None = None
    layers: LayersInfo | None = None
    fixes: tuple[FixRow, ...] = ()
    environment: Environment | None = None
    command_line: str | None = None

    @classmethod
    def failed(cls, command: str, error: QuantoolError, *, model: str | None = None) -> Report:
        """The report of a run that an error ended: what the error carries so far, else the model's path alone."""
        base = error.report
        if base is None:
            named = None if model is None else ModelInfo(path=model)
            base = cls(command=command, model=named, environment=environment())
        return replace(base, status=status_of(error), exit_code=error.exit_code, errors=(Failure(**error.to_dict()),))

    def to_dict(self) -> dict[str, Any]:
        """The strict JSON document: every key present, null where unknown, no NaN or infinity."""
        return {"schema": SCHEMA, **plain(self)}


def _finite(value: float) -> float | None:
    """The value, None where JSON could not hold it."""
    return value if math.isfinite(value) else None


def status_of(error: QuantoolError) -> Status:
    """The status that an error leaves a run in."""
    if isinstance(error, GateError):
        return Status.GATE_FAILED
    if isinstance(error, NothingQuantizedError):
        return Status.NOTHING_QUANTIZED
    return Status.REFUSED if error.exit_code == 2 else Status.FAILED


def plain(value: object) -> Any:
    """Frozen data as what strict JSON holds; NaN and infinity become None, half surrogates escapes."""
    if is_dataclass(value) and not isinstance(value, type):
        return {spec.name: plain(getattr(value, spec.name)) for spec in fields(value)}
    if isinstance(value, Mapping):
        return {_text(str(key)): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | Path):
        return _text(str(value))
    return value


def _text(text: str) -> str:
    """Text that UTF-8 can hold: file names may carry undecodable bytes as lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
