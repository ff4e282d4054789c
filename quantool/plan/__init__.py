"""Planning: (facts, recipe, target) -> Plan. Decides and explains; touches no tensor."""

from __future__ import annotations

from quantool.plan.context import Context, Findings
from quantool.plan.dynamic import plan_rangeless
from quantool.plan.findings import examine
from quantool.plan.rules import algorithms_of, local_choices
from quantool.plan.selection import reach, select, unmatched
from quantool.plan.settings import Settings, resolve
from quantool.plan.static import plan_static
from quantool.plan.weight_only import plan_weight_only
from quantool.recipe import Recipe
from quantool.schema import GraphFacts, Mode, Plan
from quantool.targets import Target

__all__ = ["Findings", "Settings", "algorithms_of", "examine", "make_plan", "reach", "resolve", "unmatched"]


def make_plan(
    facts: GraphFacts,
    recipe: Recipe,
    *,
    target: Target,
    mode: Mode,
    findings: Findings | None = None,
) -> Plan:
    """Decide every node of a model.

    mode: AUTO means `auto` without data: dynamic where a fused kernel exists, weight-only elsewhere.
    findings: what statistics taught after a first plan. Raises OptionError for impossible options.
    """
    mixed = mode is Mode.AUTO
    settings = resolve(recipe, target, Mode.DYNAMIC if mixed else mode)
    ctx = Context(
        facts=facts,
        settings=settings,
        target=target,
        choices=select(facts, recipe),
        findings=findings or Findings(),
        local=local_choices(facts, recipe, settings, target),
    )
    if mode is Mode.STATIC:
        return plan_static(ctx)
    return plan_weight_only(ctx) if mode is Mode.WEIGHT_ONLY else plan_rangeless(ctx, mixed=mixed)
