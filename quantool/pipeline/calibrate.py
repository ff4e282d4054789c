"""calibrate: run the model once over the data and keep the statistics."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import product

from quantool import targets
from quantool.errors import DataError, NothingQuantizedError, OptionError
from quantool.graph.destination import refuse_overwrite
from quantool.graph.temporary import publish
from quantool.pipeline.draft import Draft
from quantool.pipeline.feeds import data_info, open_samples
from quantool.pipeline.refusals import refuse_unmeasured
from quantool.pipeline.resolved import settings_of
from quantool.pipeline.rows import node_rows
from quantool.pipeline.source import model_info, normalized_model, read_float, source_files
from quantool.pipeline.statistics import file_request, gather, taps_of, wanted_by
from quantool.plan import make_plan
from quantool.recipe import Formula, Recipe
from quantool.report.model import OutputInfo
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
        recipe, target = request.recipe, targets.load(request.recipe.target)
        refuse_unmeasured(recipe)
        loaded = read_float(request.model, memory=recipe.memory)
        draft.model = model_info(loaded)
        samples = open_samples(request.data, None, loaded, recipe=recipe, progress=request.progress, keep_all=True)
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
        wanted = _wanted(source.facts, plan, recipe, target)
        if not wanted:
            raise NothingQuantizedError(
                "nothing-to-calibrate",
                "no tensor of the model needs a range",
                where=str(loaded.source.path or "the model"),
                fix="See `quantool explain` for the reason of every node.",
            )
        wanted_request = file_request(source, wanted, recipe)
        taps = taps_of(source, wanted_request, samples, recipe=recipe, meter=draft.memory)
        stats, _ = gather(wanted_request, samples, taps=taps, recipe=recipe, progress=request.progress)
        draft.data = data_info(samples)
        draft.warnings.extend((*([] if samples.note is None else [samples.note]), *source.notes, *plan.notes))
        draft.verdict = f"{len(stats.tensors)} tensors calibrated on {stats.samples} samples."
        _save(stats, request, draft)
        return CalibrateResult(stats=stats, report=draft.report())


def _wanted(facts: GraphFacts, plan: Plan, recipe: Recipe, target: Target) -> frozenset[str]:
    """The tensors that a later run on these statistics may ask for, whatever format and formula it chooses.

    A tensor that shares another's statistic here may need its own there, where the node between is excluded.
    """
    plans = [plan]
    for form, formula in product(Format, (Formula.ONNX, Formula.ONNX_SYMMETRIC)):
        try:
            other = replace(recipe, format=form, formula=formula)
            plans.append(make_plan(facts, other, target=target, mode=Mode.STATIC))
        except OptionError:  # 16-bit types have no QOperator form, so that no run will ask for it
            continue
    return frozenset().union(*(wanted_by(each) | each.activations.keys() for each in plans))


def _save(stats: Stats, request: CalibrateRequest, draft: Draft) -> None:
    if request.output is None:
        return
    content = stats.to_bytes()
    publish(request.output, content, force=request.force)
    digest = hashlib.sha256(content).hexdigest()
    draft.output = OutputInfo(path=str(request.output), sha256=digest, size_bytes=len(content))
