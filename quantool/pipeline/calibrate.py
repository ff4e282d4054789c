"""calibrate: run the model once over the data and keep the statistics."""

from __future__ import annotations

from quantool import targets
from quantool.errors import DataError, NothingQuantizedError
from quantool.graph.destination import refuse_overwrite
from quantool.pipeline.draft import Draft
from quantool.pipeline.feeds import open_samples
from quantool.pipeline.rows import node_rows
from quantool.pipeline.source import model_info, normalized_model, read_float
from quantool.pipeline.statistics import gather
from quantool.plan import make_plan, resolve
from quantool.report.model import DataInfo, OutputInfo
from quantool.requests import CalibrateRequest, CalibrateResult
from quantool.schema import Mode
from quantool.stats import Stats


def calibrate(request: CalibrateRequest) -> CalibrateResult:
    """Collect the statistics that a static plan of the recipe needs; every feed counts, none is held out.

    Raises DataError without data, NothingQuantizedError where no tensor would need a range.
    """
    draft = Draft(command="calibrate", recipe=request.recipe.to_dict())
    with draft.attached():
        recipe, target = request.recipe, targets.load(request.recipe.target)
        loaded = read_float(request.model)
        draft.model = model_info(loaded)
        if request.output is not None:
            reads = [*([loaded.source.path] if loaded.source.path else []), *request.reads]
            refuse_overwrite(request.output, reads=reads, force=request.force)
        samples = open_samples(request.data, None, loaded, recipe=recipe, progress=request.progress, keep_all=True)
        if samples is None:
            raise DataError(
                "no-data",
                "there is no data to calibrate on",
                where="--data",
                fix="Give --data, or put NAME.calib.npz beside the model NAME.onnx.",
            )
        opset = resolve(recipe, target, Mode.STATIC).opset
        source = normalized_model(loaded, samples, opset=opset, recipe=recipe)
        plan = make_plan(source.facts, recipe, target=target, mode=Mode.STATIC)
        draft.nodes = node_rows(source.facts, plan, None)
        if not plan.activations:
            raise NothingQuantizedError(
                "nothing-to-calibrate",
                "no tensor of the model needs a range",
                where=str(loaded.source.path or "the model"),
                fix="See `quantool explain` for the reason of every node.",
            )
        stats = gather(source, plan, samples, recipe=recipe, progress=request.progress)
        draft.data = DataInfo(source=samples.description, samples=stats.samples, held_out=False)
        draft.warnings.extend(source.notes)
        draft.verdict = f"{len(stats.tensors)} tensors calibrated on {stats.samples} samples."
        _save(stats, request, draft)
        return CalibrateResult(stats=stats, report=draft.report())


def _save(stats: Stats, request: CalibrateRequest, draft: Draft) -> None:
    if request.output is None:
        return
    import hashlib

    content = stats.to_bytes()
    stats.save(request.output)
    digest = hashlib.sha256(content).hexdigest()
    draft.output = OutputInfo(path=str(request.output), sha256=digest, size_bytes=len(content))
