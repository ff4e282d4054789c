"""Ranges of activations: one for each group of tensors that share a scale, from their merged statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from calibrators import CALIBRATORS, MovingAverage, estimate_expected_many
from calibrators.statistic import Statistic
from quantool.elements import ELEMENTS
from quantool.errors import DataError
from quantool.ops import ScaleRule, op_of
from quantool.plan.rules import matches_node, matches_tensor
from quantool.recipe import Recipe, Rule
from quantool.schema import ActivationSpec, GraphFacts, Grid, Plan, Range

DEFAULT_CALIBRATOR = "mse"
#: from here on extrema are taken at their word where nothing may be clipped; chosen on the sample
#: models, so that both formats of digits_mlp give the same classes on its evaluation images
ENOUGH_ELEMENTS = 2000


def default_calibrator(activations: str | None) -> str:
    """What reads the ranges of a type (None: the target's): the least error, or extrema where steps follow the values.

    A value that is clipped costs a floating type more than coarse steps near zero, which it does not have.
    """
    return "minmax" if activations is not None and ELEMENTS[activations].floating else DEFAULT_CALIBRATOR


def statistic_kind(recipe: Recipe) -> str:
    """What must be collected so that the recipe's calibrator, and every rule's, can read it."""
    names = {recipe.calibrator, *(rule.calibrator for rule in recipe.rules)}
    return "moving-average" if "moving-average" in names else "histogram"


def solve_ranges(
    plan: Plan,
    facts: GraphFacts,
    stats: Mapping[str, Statistic],
    recipe: Recipe,
    *,
    default: str = DEFAULT_CALIBRATOR,
) -> dict[str, Range]:
    """The range of every planned activation, equal within a group.

    default: the calibrator where neither a rule nor the recipe names one. Raises DataError where a tensor was
    never calibrated.
    """
    members: dict[str, list[ActivationSpec]] = {}
    for spec in plan.activations.values():
        members.setdefault(spec.group, []).append(spec)
    found: dict[str, Range] = {}
    asked: dict[tuple[str | None, Grid], dict[str, _Question]] = {}
    for group, specs in members.items():
        pinned = _pinned(specs, facts, stats, recipe)
        if pinned is not None:
            found[group] = pinned
        else:
            question = _question(specs, facts, stats, recipe, default=default)
            asked.setdefault((question.calibrator, question.grid), {})[group] = question
    for (calibrator, grid), questions in asked.items():
        ranges = _answers(calibrator, grid, list(questions.values()))
        found.update({group: _bounded(chosen, members[group]) for group, chosen in zip(questions, ranges, strict=True)})
    return {spec.name: found[group] for group, specs in members.items() for spec in specs}


def range_sources(
    plan: Plan,
    facts: GraphFacts,
    stats: Mapping[str, Statistic],
    recipe: Recipe,
    *,
    default: str = DEFAULT_CALIBRATOR,
) -> dict[str, str]:
    """What chooses the range of each planned activation: a calibrator, ``fixed`` by its operator, or the ``recipe``."""
    members: dict[str, list[ActivationSpec]] = {}
    for spec in plan.activations.values():
        members.setdefault(spec.group, []).append(spec)
    found = {}
    for specs in members.values():
        if _ruled_range(specs, facts, recipe) is not None:
            source = "recipe"
        elif _pinned(specs, facts, stats, recipe) is not None:
            source = "fixed"
        else:
            asked = _question(specs, facts, stats, recipe, default=default).calibrator
            source = asked or DEFAULT_CALIBRATOR
        found.update(dict.fromkeys((spec.name for spec in specs), source))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What to estimate for a group: with which calibrator (None: the least error to expect), and from what.

    covering: keep inside all that was observed.
    """

    calibrator: str | None
    grid: Grid
    state: Statistic
    covering: bool = False


def _answers(calibrator: str | None, grid: Grid, questions: Sequence[_Question]) -> list[Range]:
    """The range for each question of one calibrator and grid: together, since a search over many tensors is cheaper."""
    states = [question.state for question in questions]
    if calibrator is None:
        return estimate_expected_many(states, grid, covering=[question.covering for question in questions])
    return CALIBRATORS[calibrator].estimate_many(states, grid)


def _pinned(
    specs: list[ActivationSpec], facts: GraphFacts, stats: Mapping[str, Statistic], recipe: Recipe
) -> Range | None:
    """The range that a rule pins, or that a Sigmoid has by nature; None where statistics decide."""
    fixed = {spec.fixed for spec in specs}
    pinned = _ruled_range(specs, facts, recipe) or (fixed.pop() if len(fixed) == 1 else None)
    if pinned is None:
        return None
    seen = [stats[spec.statistic].extrema for spec in specs if spec.statistic in stats]
    observed = reduce(lambda a, b: a.merge(b), seen) if seen else None
    lo, hi = (observed.minimum, observed.maximum) if observed is not None and observed.count else pinned
    return _bounded(Range(lo=pinned[0], hi=pinned[1], observed_min=lo, observed_max=hi), specs)


def is_pinned(spec: ActivationSpec, facts: GraphFacts, recipe: Recipe) -> bool:
    """Whether a rule of the recipe says the range of a tensor."""
    return _ruled_range([spec], facts, recipe) is not None


def _question(
    specs: list[ActivationSpec], facts: GraphFacts, stats: Mapping[str, Statistic], recipe: Recipe, *, default: str
) -> _Question:
    """What the group's calibrator is asked to read off its merged statistics.

    The default counts what is likely beyond the extrema of a few elements too, and clips nothing that a Softmax or a
    caller reads.
    """
    sources = dict.fromkeys(_collected(spec.statistic, facts, stats) for spec in specs)
    missing = [name for name in sources if name not in stats]
    if missing:
        raise DataError(
            "not-calibrated",
            "no statistic was collected for the tensor",
            where=missing[0],
            fix="Calibrate again with the options of this run, or give --data in place of --ranges.",
        )
    grid = Grid.of(specs[0].dtype, symmetric="symmetric" in (recipe.formula or ""))
    state = reduce(_together, (stats[name] for name in sources))
    named = _calibrator(specs, facts, recipe)
    if named is None and default == DEFAULT_CALIBRATOR:
        exact = any(spec.exact for spec in specs)
        if not exact or state.extrema.count < ENOUGH_ELEMENTS:
            return _Question(calibrator=None, grid=grid, state=state, covering=exact)
        named = "minmax"
    return _Question(calibrator=named or default, grid=grid, state=state)


def _collected(tensor: str, facts: GraphFacts, stats: Mapping[str, Statistic]) -> str:
    """The tensor whose statistic stands for one: itself, or what data movers made it from.

    A plan that learned from ranges may need a tensor that shared another one's parameters before; what a mover
    writes lies within the range of what it reads.
    """
    while tensor not in stats:
        producer = facts.producer(tensor)
        if producer is None or op_of(producer).rule is not ScaleRule.SAME:
            break
        tensor = producer.inputs[0]
    return tensor


def _together(a: Statistic, b: Statistic) -> Statistic:
    """The statistic of two tensors that share a scale."""
    if isinstance(a, MovingAverage) and isinstance(b, MovingAverage):
        return a.beside(b)
    return a.merge(b)  # type: ignore[arg-type]  # one kind a collection


def _calibrator(specs: list[ActivationSpec], facts: GraphFacts, recipe: Recipe) -> str | None:
    """A rule's calibrator, else the recipe's, else None.

    A recipe that names the default means the same as one that names none.
    """
    for rule in reversed(recipe.rules):
        if rule.calibrator is not None and any(_applies(rule, spec, facts) for spec in specs):
            return str(rule.calibrator)
    return None if recipe.calibrator in (None, DEFAULT_CALIBRATOR) else str(recipe.calibrator)


def _ruled_range(specs: list[ActivationSpec], facts: GraphFacts, recipe: Recipe) -> tuple[float, float] | None:
    for rule in reversed(recipe.rules):
        if rule.range is not None and any(_applies(rule, spec, facts) for spec in specs):
            return rule.range
    return None


def _applies(rule: Rule, spec: ActivationSpec, facts: GraphFacts) -> bool:
    """Whether a rule speaks of a tensor: by its name, or by the node that writes it."""
    producer = facts.producer(spec.name)
    written = not rule.names_nodes or (producer is not None and matches_node(rule, producer))
    return written and matches_tensor(rule, spec.name)


def _bounded(chosen: Range, specs: list[ActivationSpec]) -> Range:
    """Keep the range inside what absorbed rectifiers allow, so that saturation really replaces them."""
    bounds = [spec.bounds for spec in specs if spec.bounds is not None]
    if not bounds:
        return chosen
    lo, hi = max(b[0] for b in bounds), min(b[1] for b in bounds)
    return Range(
        lo=max(chosen.lo, lo),
        hi=max(min(chosen.hi, hi), max(chosen.lo, lo)),
        observed_min=chosen.observed_min,
        observed_max=chosen.observed_max,
        clipped_share=chosen.clipped_share,
        outliers=chosen.outliers,
    )
