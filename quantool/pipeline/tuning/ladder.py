"""The ladder of `tune`: what is tried, from cheap to dear. Every step is an ordinary recipe that needs no search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from quantool.ops import Role, op_of
from quantool.recipe import Algorithm, Calibrator, Effort, Recipe, Rule
from quantool.schema import Format, GraphFacts, Mode, Plan

#: what is added step by step to the first one
RECOVERIES: Final = {
    "bias correction": (Algorithm.BIAS_CORRECTION,),
    "GPTQ": (Algorithm.BIAS_CORRECTION, Algorithm.GPTQ),
    "smoothing": (Algorithm.BIAS_CORRECTION, Algorithm.GPTQ, Algorithm.SMOOTHING),
    "equalization": (Algorithm.BIAS_CORRECTION, Algorithm.GPTQ, Algorithm.EQUALIZATION),
}
NAMES: Final = {
    Algorithm.BIAS_CORRECTION: "bias correction",
    Algorithm.GPTQ: "GPTQ",
    Algorithm.SMOOTHING: "smoothing",
    Algorithm.EQUALIZATION: "equalization",
}
#: the share of multiply-adds in products of matrices from which quantizing at run time is tried
MOSTLY_PRODUCTS: Final = 0.5
#: and from which their inputs are worth smoothing
SOME_PRODUCTS: Final = 0.1
_PRODUCTS: Final = frozenset({"MatMul", "Gemm"})
_LAYERS: Final = _PRODUCTS | {"Conv"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One candidate: its rung, its recipe, and that in words."""

    rung: str
    words: str
    recipe: Recipe


def first_recipe(given: Recipe) -> Recipe:
    """The cheapest static recipe: ranges by squared error, nothing searched, no gates."""
    return replace(
        given,
        mode=Mode.STATIC,
        calibrator=given.calibrator or Calibrator.MSE,
        effort=Effort.FAST,
        min_sqnr=None,
        min_agreement=None,
        min_speedup=None,
        max_size_ratio=None,
        min_coverage=None,
        max_drop=None,
        keep=False,
        metric=None,
    )


def forms(given: Recipe, first: Recipe) -> Iterator[Step]:
    """Formats and types, where the user leaves them open."""
    rung = str(first.calibrator)
    yield Step(rung=rung, words=f"{first.format or Format.QDQ}, {rung} ranges", recipe=first)
    if given.format is None:
        recipe = replace(first, format=Format.QOPERATOR)
        yield Step(rung=rung, words=f"qoperator, {rung} ranges", recipe=recipe)
    if given.activations is None and given.format is None:
        recipe = replace(first, activations="int8")
        yield Step(rung=rung, words=f"qdq, int8 activations, {rung} ranges", recipe=recipe)


def fewer_operators(step: Step, facts: GraphFacts, plan: Plan) -> Iterator[Step]:
    """The same with nothing but products and convolutions as integers, where there is more."""
    hosts = (facts.by_name[d.node] for d in plan.decisions.values() if d.quantized and d.kernel and not d.into)
    others = sorted({node.op_type for node in hosts if op_of(node).role not in (Role.ANCHOR, Role.MOVER)})
    if others:
        recipe = replace(step.recipe, exclude_op=(*step.recipe.exclude_op, *others))
        yield replace(step, words=f"{step.words}, layers with weights alone", recipe=recipe)


def at_run_time(given: Recipe, first: Recipe, facts: GraphFacts, macs: Mapping[str, int]) -> Iterator[Step]:
    """Activations quantized at run time, for models that are mostly products of matrices."""
    if given.mode is Mode.AUTO and given.format is None and _products(facts, macs) >= MOSTLY_PRODUCTS:
        recipe = replace(first, mode=Mode.DYNAMIC, calibrator=None)
        yield Step(rung=str(first.calibrator), words="dynamic", recipe=recipe)


def _products(facts: GraphFacts, macs: Mapping[str, int]) -> float:
    """The share of multiply-adds in products of matrices."""
    found = sum(count for name, count in macs.items() if facts.by_name[name].op_type in _PRODUCTS)
    return found / max(sum(macs.values()), 1)


def recovered(step: Step, facts: GraphFacts, macs: Mapping[str, int]) -> Iterator[Step]:
    """A step with one more algorithm at a time, at all layers."""
    layers = sorted(_LAYERS & {node.op_type for node in facts.nodes if not node.scope})
    for rung, algorithms in RECOVERIES.items():
        if rung == "smoothing" and _products(facts, macs) < SOME_PRODUCTS:
            continue
        rules = (*(Rule(op_type=kind, algorithms=algorithms) for kind in layers), *step.recipe.rules)
        words = f"{step.words}, {' and '.join(NAMES[a] for a in algorithms)}"
        yield Step(rung=rung, words=words, recipe=replace(step.recipe, rules=rules))


def spared(step: Step, nodes: Sequence[str], shown: str) -> Iterator[Step]:
    """A step with some nodes in float, and in 16 bits."""
    recipe = replace(step.recipe, exclude=(*step.recipe.exclude, *nodes))
    yield Step(rung="float", words=f"{step.words}, in float: {shown}", recipe=recipe)
    if step.recipe.format is not Format.QOPERATOR:
        rules = (*step.recipe.rules, *(Rule(name=name, weights="int16", activations="uint16") for name in nodes))
        words = f"{step.words}, in 16 bits: {shown}"
        yield Step(rung="16 bits", words=words, recipe=replace(step.recipe, rules=rules))


def weights_alone(given: Recipe, first: Recipe) -> Iterator[Step]:
    """Only weights as integers: nothing of activations is lost."""
    if given.mode is Mode.AUTO and given.format is None:
        recipe = replace(first, mode=Mode.WEIGHT_ONLY, format=None, calibrator=None, activations=None, formula=None)
        yield Step(rung="weight-only", words="weight-only", recipe=recipe)
