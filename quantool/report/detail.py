"""What a report tells in detail where one was asked for: histograms, layers, fixes, and what the run ran on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How the elements of a tensor spread: counts in bins of equal width over low..high.

    below, above: elements beyond these ends, where outliers would squeeze everything else into one bin. counts are
    those of the calibration's statistic, which samples large tensors.
    """

    low: float
    high: float
    counts: tuple[int, ...]
    below: int
    above: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """One layer, in the order of the graph: what its node writes, quantized against float, on the same samples.

    tensor: its name in the float model. sqnr_db: None where `exact`. input_sqnr_db: the worst of what the node reads,
    None where all of that is exact, so that the difference of both is what is lost here. runs_as: integer or float,
    None where unknown.
    """

    node: str
    op_type: str
    tensor: str
    sqnr_db: float | None
    exact: bool
    input_sqnr_db: float | None
    runs_as: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersInfo:
    """SQNR along the graph. samples: how many were run; candidates: layers of the float model; measured: rows.

    A layer is not measured where no tensor of the quantized model answers to its own, or for its size.
    """

    samples: int
    candidates: int
    measured: int
    rows: tuple[LayerRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixRow:
    """What leaving nodes in float would gain, and cost: measured by rounding all but them.

    gain_db: of noise at the outputs, before a last Softmax or Sigmoid, on a few samples; macs_share: of the
    multiply-adds, that would be in float again.
    """

    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    gain_db: float
    macs_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What a run ran on. versions: of the tool and what it computes with; threads: as asked for, 0 for automatic."""

    versions: Mapping[str, str]
    python: str
    system: str
    machine: str
    cpu: str | None
    cpus: int | None
    threads: int | None = None
