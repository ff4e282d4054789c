"""The Python functions: the command line's options as keywords, models and feeds in memory welcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

from quantool.errors import OptionError, QuantoolError
from quantool.recipe import Recipe, from_options
from quantool.report.model import Report
from quantool.report.write import check_paths, write_reports
from quantool.requests import (
    CalibrateRequest,
    CheckRequest,
    CompareRequest,
    DataSource,
    ExplainRequest,
    MergeRequest,
    ModelSource,
    QuantizeRequest,
    QuantizeResult,
    SensitivityRequest,
    TuneRequest,
    TuneResult,
    shard_of,
)

if TYPE_CHECKING:
    from quantool.report.sensitivity import Sensitivity
    from quantool.stats import Stats

T = TypeVar("T")
RecipeSource: TypeAlias = str | Path | Recipe | Mapping[str, object] | None


def quantize(
    model: ModelSource,
    data: DataSource | None = None,
    *,
    output: str | Path | None = None,
    recipe: RecipeSource = None,
    **options: object,
) -> QuantizeResult:
    """Quantize a model and verify the result.

    Args:
        model: a path or an onnx.ModelProto, which is not changed.
        data: a path, several in a tuple, or an iterable of feeds (read lazily, once).
        output: where to write; None writes nothing.
        recipe: a TOML file, a Recipe or a mapping; options win over it.
        **options: the options of ``quantool quantize`` with underscores for dashes, `verify_data`, `report` (a path
            or a list of them) and `force` included; `ranges` takes a path or a Stats.

    Returns:
        The model, where it was written, and the report.

    Raises:
        QuantoolError: the run ended without a result; `report` holds what it knew. GateError: a gate does not hold.
            NothingQuantizedError: its report has every node's reason. VerificationError: the result failed its check.
    """
    from quantool import pipeline

    reports, force = _reports(options), _flag(options, "force")
    request = QuantizeRequest(
        model=model,
        data=data,
        verify_data=cast("DataSource | None", options.pop("verify_data", None)),
        stats=_stats(options),
        recipe=from_options(options, _recipe(recipe)),
        output=None if output is None else Path(output),
        write=output is not None,
        force=force,
        reads=_files(recipe),
        reports=reports,
        detailed=bool(reports),
    )
    reads = _files(model, data, request.verify_data, recipe)
    check_paths(reports, output=request.output, reads=reads, force=force)
    result = _reported("quantize", reports, lambda: pipeline.quantize(request))
    _write(result.report, reports)
    return result


def calibrate(
    model: ModelSource,
    data: DataSource | None = None,
    *,
    output: str | Path | None = None,
    recipe: RecipeSource = None,
    **options: object,
) -> Stats:
    """Gather a model's statistics over data in one pass; they merge, save, and serve as ``ranges=``.

    Takes what `quantize` takes, and `shard` ("3/16"), `workers`, `scheduler` and `resume` as the command does;
    `output` None writes nothing.
    """
    from quantool import pipeline

    force, resume = _flag(options, "force"), _flag(options, "resume")
    shard, workers, scheduler = (options.pop(name, None) for name in ("shard", "workers", "scheduler"))
    request = CalibrateRequest(
        model=model,
        data=data,
        recipe=from_options(options, _recipe(recipe)),
        output=None if output is None else Path(output),
        force=force,
        reads=_files(recipe),
        shard=shard_of(shard),
        workers=_typed("workers", workers, int),
        scheduler=_typed("scheduler", scheduler, str),
        resume=resume,
    )
    return pipeline.calibrate(request).stats


def tune(
    model: ModelSource,
    data: DataSource | None = None,
    *,
    output: str | Path | None = None,
    recipe: RecipeSource = None,
    **options: object,
) -> TuneResult:
    """Look for the recipe that meets a target, and make its model.

    Takes what `quantize` takes, and `eval` (data to judge on) and `budget` (minutes) as the command does; `output` None
    writes nothing. The result's `recipe` gives the model again with `quantize`.
    """
    from quantool import pipeline

    reports, force = _reports(options), _flag(options, "force")
    judged = cast("DataSource | None", options.pop("eval", None))
    budget = options.pop("budget", None)
    request = TuneRequest(
        model=model,
        recipe=from_options(options, _recipe(recipe)),
        data=data,
        eval_data=judged,
        budget=_typed("budget", float(budget) if isinstance(budget, int) else budget, float),
        output=None if output is None else Path(output),
        write=output is not None,
        force=force,
        reads=_files(recipe),
        reports=reports,
        detailed=bool(reports),
    )
    check_paths(reports, output=request.output, reads=_files(model, data, judged, recipe), force=force)
    result = _reported("tune", reports, lambda: pipeline.tune(request))
    _write(result.report, reports)
    return result


def merge(*parts: str | Path | Stats, output: str | Path | None = None, force: bool = False) -> Stats:
    """The statistics of several calibrations as those of one over all of their data, in whatever order.

    Args:
        *parts: ``.qcal`` files, or what `calibrate` returned.
        output: where to write them; None writes nothing.
        force: replace an output that exists.

    Raises:
        QuantoolError: the parts belong to different models, or were counted in different ways.
    """
    from quantool import pipeline

    path = None if output is None else Path(output)
    return pipeline.merge(MergeRequest(parts=parts, output=path, force=force)).stats


def compare(
    float_model: ModelSource, quantized_model: ModelSource, *, data: DataSource | None = None, **options: object
) -> Report:
    """Run a float model and a quantized one on the same data, and report how they differ."""
    from quantool import pipeline

    reports, force = _reports(options), _flag(options, "force")
    request = CompareRequest(
        float_model=float_model,
        quantized_model=quantized_model,
        data=data,
        recipe=from_options(options),
        detailed=bool(reports),
    )
    check_paths(reports, reads=_files(float_model, quantized_model, data), force=force)
    report = _reported("compare", reports, lambda: pipeline.compare(request))
    _write(report, reports)
    return report


def check(
    report: str | Path | Report,
    *,
    baseline: str | Path | Report,
    tolerance: Mapping[str, float | str] | None = None,
) -> Report:
    """Hold a run's report against that of an earlier run; the result's `check` lists every comparison.

    Args:
        report: a Report, or the ``.json`` file of one.
        baseline: the same of the earlier run, of the same command and model.
        tolerance: how much worse quantities may be: ``{"sqnr": 0.5, "speedup": "10%", "latency": "off"}``.

    Raises:
        GateError: something is worse than allowed. DataError: the two cannot be compared.
    """
    from quantool import pipeline

    given = tuple(f"{name}={value}" for name, value in (tolerance or {}).items())
    sides = [side if isinstance(side, Report) else Path(side) for side in (report, baseline)]
    return pipeline.check(CheckRequest(report=sides[0], baseline=sides[1], tolerances=given))


def explain(model: ModelSource, target: str | None = None, *, recipe: RecipeSource = None, **options: object) -> Report:
    """Plan without data: the report's `nodes` say what would be quantized, and why the rest would not."""
    from quantool import pipeline

    chosen = from_options({"target": target, **options}, _recipe(recipe))
    return pipeline.explain(ExplainRequest(model=model, recipe=chosen))


def sensitivity(
    model: ModelSource,
    data: DataSource | None = None,
    *,
    output: str | Path | None = None,
    recipe: RecipeSource = None,
    **options: object,
) -> Sensitivity:
    """Measure what rounding each operator alone costs at the outputs, in few runs of the model.

    Takes what `quantize` takes. The result's `groups` are ranked, its `exclude` lists the nodes that are better left in
    float; `output` is where a recipe with them is written.
    """
    from quantool import pipeline

    request = SensitivityRequest(
        model=model,
        data=data,
        output=None if output is None else Path(output),
        force=_flag(options, "force"),
        reads=_files(model, data, recipe),
        recipe=from_options(options, _recipe(recipe)),
    )
    return pipeline.sensitivity(request)


def _reported(command: str, reports: Sequence[Path], work: Callable[[], T]) -> T:
    """Work, and write the reports of its failure."""
    try:
        return work()
    except QuantoolError as error:
        write_reports(Report.failed(command, error), reports)
        raise


def _write(report: Report, reports: Sequence[Path]) -> None:
    """Write the reports of a run that went well; where one cannot be written, the error tells the run."""
    try:
        write_reports(report, reports)
    except OptionError as error:
        error.report = report
        error.report = Report.failed(report.command, error)
        raise


def _recipe(recipe: RecipeSource) -> Path | Recipe | Mapping[str, object] | None:
    return Path(recipe) if isinstance(recipe, str) else recipe


def _reports(options: dict[str, object]) -> tuple[Path, ...]:
    given = options.pop("report", None)
    found = given if isinstance(given, list | tuple) else () if given is None else (given,)
    if not all(isinstance(path, str | Path) for path in found):
        raise OptionError("bad-value", f"report is {given!r}", where="--report", fix="Give a path or a list of paths.")
    return tuple(Path(path) for path in found)


def _flag(options: dict[str, object], name: str) -> bool:
    given = options.pop(name, False)
    if not isinstance(given, bool):
        raise OptionError("bad-value", f"{name} is {given!r}", where=f"--{name}", fix="Give True or False.")
    return given


def _typed(name: str, given: object, kind: type[T]) -> T | None:
    if given is None or type(given) is kind:
        return given
    expected = {int: "a whole number", float: "a number"}.get(kind, "a text")
    raise OptionError("bad-value", f"{name} is {given!r}", where=f"--{name}", fix=f"Give {expected}.")


def _stats(options: dict[str, object]) -> Stats | None:
    """The `ranges` that are statistics in memory; a path stays an option of the recipe."""
    if options.get("ranges") is None or isinstance(options["ranges"], str | Path):
        return None
    from quantool.stats import Stats

    given = options.pop("ranges")
    if not isinstance(given, Stats):
        fix = "Give a .qcal file or what quantool.calibrate returned."
        raise OptionError("bad-value", f"ranges is {given!r}", where="--ranges", fix=fix)
    return given


def _files(*sources: object) -> tuple[Path, ...]:
    """The files among what a call reads."""
    from quantool.data import files_read

    return files_read(*sources)
