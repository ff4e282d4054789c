"""What the pipeline is asked, and what it answers: the contract between commands, Python API and pipeline.

A model is a path or an ``onnx.ModelProto`` (never changed). Data is a path or name (``random``,
``package.module:callable``), a tuple of them, an iterable of feeds, or None: then what stands beside the model
is used. Failures are QuantoolErrors whose `report` holds what the run knew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from quantool.recipe import Recipe
from quantool.report.model import ModelInfo, Report, plain
from quantool.schema import Feed

if TYPE_CHECKING:
    from onnx import ModelProto

    from quantool.stats import Stats

ModelSource: TypeAlias = "str | Path | ModelProto"
DataSource: TypeAlias = "str | Path | tuple[str | Path, ...] | Iterable[Feed]"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeRequest:
    """Quantize a model.

    write: publish at `output`, or beside the model under the default name where `output` is None. force: an
    existing output may be replaced. stats: statistics in memory, in place of ``recipe.ranges``. reads: files
    that the caller read for the run, as the recipe, which the output may not replace. reports: files that the caller
    will write after the run.
    """

    model: ModelSource
    recipe: Recipe
    data: DataSource | None = None
    verify_data: DataSource | None = None
    stats: Stats | None = None
    output: Path | None = None
    write: bool = False
    force: bool = False
    reads: tuple[Path, ...] = ()
    reports: tuple[Path, ...] = ()
    progress: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeResult:
    """A quantized model, where it was written (None: nowhere), and the report."""

    model: ModelProto
    output: Path | None
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateRequest:
    """Gather statistics over data; `output` None writes nothing, and may not replace what is in `reads`."""

    model: ModelSource
    recipe: Recipe
    data: DataSource | None = None
    output: Path | None = None
    force: bool = False
    reads: tuple[Path, ...] = ()
    progress: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateResult:
    """The statistics and the report."""

    stats: Stats
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """Run a float model and a quantized one on the same data."""

    float_model: ModelSource
    quantized_model: ModelSource
    recipe: Recipe
    data: DataSource | None = None
    progress: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest:
    """Plan without touching data: what would be done with each node, and why not."""

    model: ModelSource
    recipe: Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectRequest:
    """Describe a model."""

    model: ModelSource


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """A graph input or output; a dimension is a number, a name, or None where unknown."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a model is. operators: nodes by type over all scopes; data_beside: what quantize would use.

    parameters: elements of constants; quantizable_nodes: nodes with an integer kernel on the default target, and
    the share of all nodes that they are.
    """

    model: ModelInfo
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    operators: Mapping[str, int]
    parameters: int
    parameter_bytes: int
    quantizable_nodes: int
    quantizable_share: float
    data_beside: str | None

    def to_dict(self) -> dict[str, object]:
        """The fields as strict JSON holds them."""
        return dict(plain(self))
