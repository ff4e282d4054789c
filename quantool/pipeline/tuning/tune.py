"""tune: look for the recipe that meets a target, and write the model that it makes."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from quantool.data import open_data
from quantool.errors import GateError, OptionError, QuantoolError
from quantool.graph.destination import refuse_overwrite
from quantool.graph.temporary import publish
from quantool.metrics import find
from quantool.pipeline.draft import Draft
from quantool.pipeline.feeds import Judging, data_options, input_specs
from quantool.pipeline.job import Job, prepare
from quantool.pipeline.judge import worst_sqnr
from quantool.pipeline.quantize import quantize, raise_failed_gates
from quantool.pipeline.tuning.bench import Bench, calibrated
from quantool.pipeline.tuning.ladder import first_recipe
from quantool.pipeline.tuning.search import Search, Tried
from quantool.recipe import Recipe, to_toml
from quantool.report.model import CandidateRow, LatencyInfo, MetricInfo, Report
from quantool.report.tune import candidate_line, with_pareto
from quantool.report.wording import visible
from quantool.requests import DataSource, QuantizeRequest, TuneRequest, TuneResult
from quantool.schema import Mode

#: the target where none is given
DEFAULT_SQNR_DB = 30.0


def tune(request: TuneRequest) -> TuneResult:
    """Try recipes from cheap to dear until one meets the target; the fastest that does is made and written.

    The result is made by `quantize` from its recipe, which therefore gives it again without a search.
    Raises GateError where none meets the target (published only with ``keep``), else what `quantize` raises.
    """
    recipe = _with_target(request.recipe)
    request = replace(request, recipe=recipe, data=_again(request.data), eval_data=_again(request.eval_data))
    draft = Draft(command="tune", recipe=recipe.to_dict())
    with draft.attached(), draft.memory.watching(recipe.memory):
        job = prepare(_first_request(request), draft)
        file = None if job.output is None else job.output.with_suffix(".toml")
        if file is not None:
            refuse_overwrite(file, reads=request.reads, force=request.force)
        search = _searched(request, job, draft)
        draft.candidates = with_pareto([_row(t) for t in search.tried])
        winners = search.winners()
        if not winners:
            raise _nothing(search)
        # Made anew, each is fitted to slightly other samples: what met the target by a hair may miss it.
        strict = replace(request, recipe=replace(recipe, keep=False))
        for winner in winners[:-1]:
            with suppress(GateError):
                return _made(strict, job, winner, file, draft, search)
        return _made(request, job, winners[-1], file, draft, search)


def _with_target(given: Recipe) -> Recipe:
    """The recipe with a target. Raises OptionError for what a search cannot be given."""
    held = {
        f"--mode {given.mode}": given.mode not in (Mode.AUTO, Mode.STATIC),
        "--ranges": given.ranges is not None,
        "--memory": given.memory is not None,
        "--no-verify": not given.verify,
    }
    named = ", ".join(name for name, is_held in held.items() if is_held)
    if named:
        raise OptionError(
            "not-tunable",
            f"tune calibrates, tries modes and times results by itself, and the recipe holds {named}",
            where=named,
            fix="Leave it out, or use quantool quantize.",
        )
    has_target = given.max_drop is not None or given.min_sqnr is not None or given.min_agreement is not None
    return given if has_target else replace(given, min_sqnr=DEFAULT_SQNR_DB)


def _again(data: DataSource | None) -> DataSource | None:
    """Data that can be read again: the winner is calibrated anew, as its recipe will be."""
    return list(data) if isinstance(data, Iterator) else data


def _first_request(request: TuneRequest) -> QuantizeRequest:
    recipe, first = request.recipe, first_recipe(request.recipe)
    judged = replace(first, metric=recipe.metric, max_drop=recipe.max_drop, min_sqnr=recipe.min_sqnr)
    return QuantizeRequest(
        model=request.model,
        recipe=judged,
        data=request.data,
        verify_data=request.eval_data,
        output=request.output,
        write=request.write,
        force=request.force,
        reads=request.reads,
        reports=request.reports,
        progress=request.progress,
        detailed=request.detailed,
    )


def _searched(request: TuneRequest, job: Job, draft: Draft) -> Search:
    """Calibrate once, and climb the ladder."""
    recipe, samples = request.recipe, job.samples
    assert samples is not None, "a static run has samples"
    deadline = None if request.budget is None else time.monotonic() + 60.0 * request.budget
    job = replace(job, recipe=first_recipe(recipe))
    _, evidence = calibrated(job, draft)
    feeds = samples.kept
    whole = (
        None
        if request.eval_data is None
        else open_data(request.eval_data, input_specs(job.loaded), data_options(recipe))
    )
    bench = Bench(
        job=job,
        judging=Judging(kept=feeds, feeds=feeds if whole is None else whole),
        metric=None if recipe.metric is None else find(recipe.metric),
        evidence=evidence,
        target=recipe,
    )
    search = Search(bench=bench, given=recipe, told=_teller(request.told), deadline=deadline)
    search.climb()
    return search


def _teller(tell: Callable[[str], None] | None) -> Callable[[Tried], None]:
    return lambda tried: None if tell is None else tell(candidate_line(_row(tried)))


def _row(tried: Tried) -> CandidateRow:
    """What a report says of a candidate."""
    row = CandidateRow(
        name=tried.step.words, rung=tried.step.rung, recipe=tried.step.recipe.to_dict(), error=tried.error
    )
    if tried.figures is None:
        return row
    evaluation = tried.figures.evaluation
    latency, measured = evaluation.latency, evaluation.measured
    return replace(
        row,
        size_bytes=tried.figures.size_bytes,
        latency=None if latency is None else LatencyInfo.of(latency),
        speed=None if latency is None else latency.quartiles,
        metric=None if measured is None else MetricInfo.of(measured),
        sqnr_db=worst_sqnr(evaluation.outputs),
        meets=tried.meets,
    )


def _nothing(search: Search) -> QuantoolError:
    reasons = dict.fromkeys(t.error for t in search.tried if t.error is not None)
    return GateError(
        "no-candidate",
        f"none of {len(search.tried)} candidates could be made: {'; '.join(list(reasons)[:2])}",
        where=str(search.bench.job.loaded.source.path or "the model"),
        fix="See what quantool explain says of the model.",
    )


def _made(request: TuneRequest, job: Job, winner: Tried, file: Path | None, draft: Draft, search: Search) -> TuneResult:
    """Make the winner from its recipe, and write that beside it. Raises GateError where it misses the target."""
    given = request.recipe
    assert winner.figures is not None
    draft.chosen, draft.responsible, draft.gates = winner.step.words, search.responsible(winner), winner.figures.gates
    if not winner.meets and not given.keep:
        draft.verdict = f"No candidate meets the target; the nearest is: {winner.step.words}."
        raise_failed_gates(draft)
    recipe = winner.step.recipe
    judged = replace(recipe, metric=given.metric, max_drop=given.max_drop, min_sqnr=given.min_sqnr, keep=given.keep)
    try:
        made = quantize(replace(_first_request(request), recipe=judged, output=job.output))
    except QuantoolError as error:
        written = error.report is not None and error.report.output is not None
        if written:
            _write_recipe(request, recipe, file)
        if error.report is not None:
            error.report = _told(error.report, draft, file if written else None)
        raise
    _write_recipe(request, recipe, file)
    report = _told(made.report, draft, file)
    if not winner.meets:  # only time or size misses the target, which quantize was not asked for
        draft.output = report.output
        raise_failed_gates(draft)
    return TuneResult(model=made.model, output=made.output, recipe=recipe, report=report)


def _told(report: Report, draft: Draft, file: Path | None) -> Report:
    """The report of the run that made the winner, with what the search found; gates as that run measured them."""
    measured = {gate.name: gate for gate in report.gates}
    return replace(
        report,
        command="tune",
        gates=tuple(measured.get(gate.name, gate) for gate in draft.gates),
        candidates=draft.candidates,
        chosen=draft.chosen,
        responsible=draft.responsible,
        recipe_file=None if file is None else str(file),
    )


def _write_recipe(request: TuneRequest, recipe: Recipe, file: Path | None) -> None:
    if file is None:
        return
    model = request.model if isinstance(request.model, str | Path) else "MODEL"
    words = ["quantool", "quantize", str(model), *_named("--data", request.data)]
    words += [*_named("--verify-data", request.eval_data), "--recipe", file.name]
    text = f"# {visible(shlex.join(words))}\n" + to_toml(recipe, folder=file.parent)
    publish(file, text.encode("utf-8", "surrogateescape"), force=request.force)


def _named(option: str, data: DataSource | None) -> Iterator[str]:
    """The words of a command line that name data; DATA stands for what is in memory."""
    parts = data if isinstance(data, tuple) else () if data is None else (data,)
    for part in parts:
        yield from (option, str(part) if isinstance(part, str | Path) else "DATA")
