"""explain: what would be done with each node, and why not; reads no data."""

from __future__ import annotations

from quantool import graph, targets
from quantool.pipeline.draft import Draft
from quantool.pipeline.resolved import kept_floats, settings_of
from quantool.pipeline.rows import coverage, node_rows
from quantool.pipeline.source import model_info, normalized_model, read_float
from quantool.plan import make_plan
from quantool.recipe import Recipe
from quantool.report.model import Report
from quantool.requests import ExplainRequest
from quantool.schema import Mode, Plan


def explain(request: ExplainRequest) -> Report:
    """Plan a model without touching data.

    `auto` explains the static plan, since that is what `quantize` does with data. Raises ModelError, OptionError.
    """
    draft = Draft(command="explain", recipe=request.recipe.to_dict())
    with draft.attached():
        recipe = request.recipe
        target = targets.load(recipe.target)
        mode = Mode.STATIC if recipe.mode is Mode.AUTO else recipe.mode
        loaded = read_float(request.model)
        draft.model = model_info(loaded)
        opset = settings_of(recipe, target, mode).opset
        floats = kept_floats(target, mode)
        source = normalized_model(loaded, None, opset=opset, recipe=recipe, floats=floats)
        plan = make_plan(source.facts, recipe, target=target, mode=mode)
        draft.warnings.extend((*source.notes, *plan.notes))
        draft.nodes = node_rows(source.facts, plan, planned_execution(plan))
        draft.coverage = coverage(source.facts, plan, graph.macs(source.facts))
        done = sum(d.quantized for d in plan.decisions.values())
        draft.verdict = (
            f"{done} of {len(plan.decisions)} nodes become integers in {mode} mode on {target.name}"
            f"{_left_open(recipe, mode)}."
        )
        return draft.report()


def _left_open(recipe: Recipe, mode: Mode) -> str:
    """What a plan leaves to the run itself."""
    if recipe.target_size is not None:
        return "; which weights become wider, to use the size, is decided when they are quantized"
    return "; ranges measured on data may keep some of them in float" if mode is Mode.STATIC else ""


def planned_execution(plan: Plan) -> dict[str, bool]:
    """How the target's table says that each node runs."""
    return {name: d.quantized and d.expected == "integer" for name, d in plan.decisions.items()}
