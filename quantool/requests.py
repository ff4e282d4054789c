"""What the pipeline is asked, and what it answers: the contract between commands, Python API and pipeline.

A model is a path or an ``onnx.ModelProto`` (never changed). Data is a path or name (``random``,
``package.module:callable``), a tuple of them, an iterable of feeds, or None: then what stands beside the model
is used. Failures are QuantoolErrors whose `report` holds what the run knew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from quantool.errors import OptionError, RecipeError
from quantool.recipe import Recipe
from quantool.report.model import ModelInfo, OutputInfo, Report, plain
from quantool.report.wording import plural
from quantool.schema import Feed, Note
from quantool.values import parse_shard

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
    will write after the run. detailed: the report is wanted with what takes extra runs of the model: SQNR layer by
    layer, and what leaving operators in float would gain.
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
    detailed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeResult:
    """A quantized model, where it was written (None: nowhere), and the report."""

    model: ModelProto
    output: Path | None
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """Look for the recipe that meets a target: the gates of the recipe.

    eval_data: what candidates are judged on; None is what is held out of the data. budget: minutes after which no
    candidate is started. told: is called with each candidate's figures as they come. Others: see QuantizeRequest.
    """

    model: ModelSource
    recipe: Recipe
    data: DataSource | None = None
    eval_data: DataSource | None = None
    budget: float | None = None
    output: Path | None = None
    write: bool = False
    force: bool = False
    reads: tuple[Path, ...] = ()
    reports: tuple[Path, ...] = ()
    progress: bool = False
    detailed: bool = False
    told: Callable[[str], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """The best model, where it was written (None: nowhere), the recipe that makes it, and the report."""

    model: ModelProto
    output: Path | None
    recipe: Recipe
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateRequest:
    """Gather statistics over data; `output` None writes nothing, and may not replace what is in `reads`.

    shard: (I, N), from 1: only feeds I-1, I-1+N ... workers: processes on this machine; scheduler: address of a Dask
    cluster's; None runs in this process. resume: go on from the checkpoint beside the output.
    """

    model: ModelSource
    recipe: Recipe
    data: DataSource | None = None
    output: Path | None = None
    force: bool = False
    reads: tuple[Path, ...] = ()
    progress: bool = False
    shard: tuple[int, int] | None = None
    workers: int | None = None
    scheduler: str | None = None
    resume: bool = False


def shard_of(given: object) -> tuple[int, int] | None:
    """The shard that ``I/N`` or a pair names; whether I lies in 1 to N is for the reader of the data to judge.

    Raises:
        OptionError: it names none.
    """
    found = parse_shard(given) if isinstance(given, str) else given
    if found is None and given is None:
        return None
    if isinstance(found, tuple) and [type(part) for part in found] == [int, int]:
        return found
    raise OptionError(
        "bad-value",
        f"--shard is {given!r}" if not isinstance(given, str) else f"--shard is '{given}'",
        where="--shard",
        fix="Give I/N with I from 1 to N: with 4 shards 1/4, 2/4, 3/4 and 4/4.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateResult:
    """The statistics and the report."""

    stats: Stats
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRequest:
    """Merge statistics, from ``.qcal`` files or in memory; `output` None writes nothing."""

    parts: tuple[str | Path | Stats, ...]
    output: Path | None = None
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """Run a float model and a quantized one on the same data."""

    float_model: ModelSource
    quantized_model: ModelSource
    recipe: Recipe
    data: DataSource | None = None
    progress: bool = False
    detailed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest:
    """Plan without touching data: what would be done with each node, and why not."""

    model: ModelSource
    recipe: Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityRequest:
    """Measure what rounding each operator costs; `output`: where a recipe is written, None writes nothing."""

    model: ModelSource
    recipe: Recipe
    data: DataSource | None = None
    output: Path | None = None
    force: bool = False
    reads: tuple[Path, ...] = ()
    progress: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """Hold a run's report against that of an earlier run. tolerances: ``NAME=VALUE``, as the option takes them."""

    report: Path | Report
    baseline: Path | Report
    tolerances: tuple[str, ...] = ()


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


#: a number, or the .npy file that holds one for each channel, block or element
TensorParameter: TypeAlias = "float | Path"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRequest:
    """Apply one formula to one array, or with `dequantize` go back.

    bounds: the range lo, hi; None takes the array's own. scale, zero_point: given instead of computed. None for
    block_size is no blocks, for round_mode, feature_level and opset what the formula does. output: None writes nothing.
    """

    input: Path
    formula: str
    dtype: str
    output: Path | None = None
    force: bool = False
    bounds: tuple[TensorParameter, TensorParameter] | None = None
    scale: TensorParameter | None = None
    zero_point: TensorParameter | None = None
    axis: int | None = None
    block_size: int | None = None
    round_mode: str | None = None
    narrow_range: bool = False
    ensure_minimum_range: float = 0.0
    feature_level: str | None = None
    opset: int | None = None
    dequantize: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorResult:
    """What a formula made of an array; one number, or one for each scale where there are several.

    range: what the formula used, zero included; reach: the real values of the smallest and largest code.
    residual_shift: what the formula's own offset exceeds the zero point by, in codes. sqnr_db: None where
    `exact` or nothing is compared; clipped_share: values that saturation changed. stored_as: how the file holds
    the codes. expanded_bytes: memory of scales and zero points, one an element, which DirectML reads.
    """

    formula: str
    dtype: str
    input_path: str
    input_dtype: str
    shape: tuple[int, ...]
    output: OutputInfo | None
    stored_as: str
    scale: float | tuple[float, ...]
    scale_factor: float | tuple[float, ...]
    zero_point: int | tuple[int, ...]
    residual_shift: float
    range: tuple[float | tuple[float, ...], float | tuple[float, ...]]
    reach: tuple[float | tuple[float, ...], float | tuple[float, ...]]
    sqnr_db: float | None
    exact: bool
    clipped_share: float | None
    opset: int | None
    feature_level: str | None
    expanded_bytes: int | None
    warnings: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The fields as strict JSON holds them."""
        return dict(plain(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowRecipeRequest:
    """Say what a recipe comes to; model: and what its rules match there."""

    recipe: Recipe
    model: ModelSource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRecipeRequest:
    """Write a recipe as TOML. comments: by option name, written above the key; reads: files that it was read from."""

    recipe: Recipe
    output: Path
    comments: Mapping[str, str]
    force: bool = False
    reads: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRecipeRequest:
    """Find everything that is wrong with a recipe file, alone or on a model."""

    recipe: Path
    model: ModelSource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleReach:
    """How many nodes and tensors a rule matches."""

    nodes: int
    tensors: int

    @property
    def wording(self) -> str:
        """The same for people."""
        parts = [plural(count, what) for count, what in ((self.nodes, "node"), (self.tensors, "tensor")) if count]
        return f"matches {' and '.join(parts) or 'nothing'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeView:
    """A recipe (None where it cannot be used), what its rules match (None without a model), and its problems."""

    recipe: Recipe | None
    reach: tuple[RuleReach, ...] | None
    problems: tuple[RecipeError, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The recipe and the matches of each rule, as plain values."""
        return {"recipe": None if self.recipe is None else self.recipe.to_dict(), "rules": plain(self.reach)}
