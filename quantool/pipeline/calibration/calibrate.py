"""calibrate: run the model once over the data and keep the statistics."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import product

from quantool import targets
from quantool.collect import CollectRequest
from quantool.errors import DataError, NothingQuantizedError, OptionError
from quantool.graph import Loaded
from quantool.graph.destination import refuse_overwrite
from quantool.pipeline.calibration.checkpoint import Checkpoint
from quantool.pipeline.calibration.gathering import Gathered, gathered, origin_of, refuse_undividable
from quantool.pipeline.calibration.merge import written
from quantool.pipeline.calibration.moments import divided, joined, on_disk, refuse_read_once
from quantool.pipeline.calibration.statistics import file_request, taps_of, wanted_by
from quantool.pipeline.draft import Draft
from quantool.pipeline.feeds import Samples, open_samples
from quantool.pipeline.refusals import refuse_unmeasured
from quantool.pipeline.resolved import settings_of
from quantool.pipeline.rows import node_rows
from quantool.pipeline.source import FloatModel, model_info, normalized_model, read_float, source_files
from quantool.plan import make_plan
from quantool.recipe import Formula, Recipe
from quantool.report.model import DataInfo
from quantool.report.wording import duration
from quantool.requests import CalibrateRequest, CalibrateResult
from quantool.schema import Format, GraphFacts, Mode, Plan
from quantool.stats import Stats
from quantool.targets import Target


def calibrate(request: CalibrateRequest) -> CalibrateResult:
    """Collect the statistics that static plans of the recipe need, in either format and by any formula.

    Every feed counts, none is held out.
    Raises DataError without data, NothingQuantizedError where no tensor would need a range.
    """
    draft = Draft(command="calibrate", recipe=request.recipe.to_dict())
    with draft.attached(), draft.memory.watching(request.recipe.memory):
        source, samples, wanted = _prepared(request, draft)
        parts = divided(source, wanted, samples, recipe=request.recipe)
        if len(parts) > 1:
            refuse_read_once(request.data)
        taps = taps_of(source, parts[0], samples, recipe=request.recipe, meter=draft.memory)
        checkpoint = Checkpoint(request.output, origin_of(request, parts[0], taps))
        with checkpoint.kept():
            started = time.perf_counter()
            counted = replace(source, normalized=taps.model)
            found = gathered(request, counted, samples, parts[0], checkpoint, taps=taps)
            for part in parts[1:]:
                found = replace(found, stats=_and_moments(request, source, found.stats, part, draft))
            draft.verdict = _summary(found, time.perf_counter() - started)
            draft.data = _data_info(request, samples, found.stats.samples)
            draft.warnings.extend((*found.notes, *samples.notes(found.stats, request.recipe, source.facts)))
            if request.output is not None:
                draft.output = written(found.stats, request.output, force=request.force)
        return CalibrateResult(stats=found.stats, report=draft.report())


def _and_moments(
    request: CalibrateRequest, source: FloatModel, before: Stats, part: CollectRequest, draft: Draft
) -> Stats:
    """The statistics so far and the Gram matrices of one more pass over the data, which no checkpoint keeps."""
    folder = None if request.output is None else request.output.parent
    before = on_disk(before, folder)
    samples = _samples(request, source.loaded)
    assert samples is not None, "the first pass had some"
    taps = taps_of(source, part, samples, recipe=request.recipe, meter=draft.memory)
    once = replace(request, resume=False)
    unkept = Checkpoint(None, {})
    found = gathered(once, replace(source, normalized=taps.model), samples, part, unkept, taps=taps)
    return on_disk(joined(before, found.stats), folder)


def _samples(request: CalibrateRequest, loaded: Loaded) -> Samples | None:
    return open_samples(
        request.data,
        None,
        loaded,
        recipe=request.recipe,
        progress=request.progress,
        keep_all=True,
        shard=request.shard,
    )


def _prepared(request: CalibrateRequest, draft: Draft) -> tuple[FloatModel, Samples, CollectRequest]:
    """The model, its data, and what to collect, before anything is counted."""
    recipe, target = request.recipe, targets.load(request.recipe.target)
    refuse_unmeasured(recipe)
    refuse_undividable(request)
    loaded = read_float(request.model, memory=recipe.memory)
    draft.model = model_info(loaded)
    samples = _samples(request, loaded)
    if request.output is not None:
        reads = source_files(loaded, samples, request.data, request.reads)
        refuse_overwrite(request.output, reads=reads, force=request.force)
    if samples is None:
        raise DataError(
            "no-data",
            "there is no data to calibrate on",
            where="--data",
            fix="Give --data, or put NAME.calib.npz beside the model NAME.onnx.",
        )
    opset = settings_of(recipe, target, Mode.STATIC).opset
    source = normalized_model(loaded, samples, opset=opset, recipe=recipe)
    plan = make_plan(source.facts, recipe, target=target, mode=Mode.STATIC)
    draft.nodes = node_rows(source.facts, plan, None)
    draft.warnings.extend((*([] if samples.note is None else [samples.note]), *source.notes, *plan.notes))
    wanted = _wanted(source.facts, plan, recipe, target)
    if not wanted:
        raise NothingQuantizedError(
            "nothing-to-calibrate",
            "no tensor of the model needs a range",
            where=str(loaded.source.path or "the model"),
            fix="See `quantool explain` for the reason of every node.",
        )
    return source, samples, file_request(source, wanted, recipe)


def _wanted(facts: GraphFacts, plan: Plan, recipe: Recipe, target: Target) -> frozenset[str]:
    """The tensors that a later run on these statistics may ask for, whatever format and formula it chooses.

    Where no target is named, on any target. A tensor that shares another's statistic here may need its own there, where
    the node between is excluded.
    """
    plans = [plan]
    later = targets.names() if recipe.target == targets.DEFAULT else (target.name,)
    for name, form, formula in product(later, Format, (Formula.ONNX, Formula.ONNX_SYMMETRIC)):
        try:
            other = replace(recipe, target=name, format=form, formula=formula)
            plans.append(make_plan(facts, other, target=targets.load(name), mode=Mode.STATIC))
        except OptionError:  # 16-bit types have no QOperator form, so that no run will ask for it
            continue
    return frozenset().union(*(wanted_by(each) | each.activations.keys() for each in plans))


def _data_info(request: CalibrateRequest, samples: Samples, count: int) -> DataInfo:
    part = "" if request.shard is None else f", shard {request.shard[0]} of {request.shard[1]}"
    return DataInfo(source=f"{samples.description}{part}", samples=count, held_out=False)


def _summary(found: Gathered, seconds: float) -> str:
    """One line: how much, how long, how fast."""
    tensors, count = len(found.stats.tensors), found.stats.samples
    resumed = f", {found.before:,} of them before," if found.before else ""
    rate = (count - found.before) / max(seconds, 1e-9)
    return (
        f"{tensors:,} tensor{'s'[: tensors != 1]} calibrated on {count:,} sample{'s'[: count != 1]}{resumed} "
        f"in {duration(seconds)}, {rate:,.{0 if rate >= 10 else 1}f} samples a second."
    )
