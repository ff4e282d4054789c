"""Rewriting: (plan, parameters) -> edits. Nothing here touches a graph."""

from __future__ import annotations

from quantool.edits import Edit
from quantool.rewrite.builder import Builder
from quantool.rewrite.naming import Fresh
from quantool.rewrite.qdq import rewrite_qdq
from quantool.rewrite.qoperator import rewrite_qoperator
from quantool.rewrite.rangeless import rewrite_rangeless
from quantool.schema import Format, GraphFacts, Mode, Parameters, Plan

__all__ = ["rewrite"]


def rewrite(facts: GraphFacts, plan: Plan, parameters: Parameters, *, fresh: Fresh) -> list[Edit]:
    """The edits that turn the normalized graph into the planned one."""
    build = Builder(facts=facts, plan=plan, parameters=parameters, fresh=fresh)
    if plan.mode is not Mode.STATIC:
        return rewrite_rangeless(build)
    return rewrite_qdq(build) if plan.format is Format.QDQ else rewrite_qoperator(build)
