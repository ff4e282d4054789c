"""recipe: what a recipe comes to, alone or on a model, and everything that is wrong with it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from quantool import targets
from quantool.errors import OptionError, QuantoolError, RecipeError
from quantool.graph.destination import refuse_overwrite
from quantool.graph.temporary import publish
from quantool.pipeline.refusals import refuse_impossible_rules, refuse_unmeasured, refuse_unrunnable
from quantool.pipeline.resolved import resolved_recipe, settings_of
from quantool.pipeline.source import plain_facts, read_float
from quantool.plan import reach, unmatched
from quantool.recipe import Recipe, recipe_problems, to_toml
from quantool.report.model import OutputInfo
from quantool.requests import CheckRecipeRequest, ExportRecipeRequest, RecipeView, RuleReach, ShowRecipeRequest
from quantool.schema import GraphFacts, Mode

Found = TypeVar("Found")

#: what can be held against a model whatever else a recipe says
_PATTERNS: Final = ("include", "exclude", "include_op", "exclude_op", "rules")


def show_recipe(request: ShowRecipeRequest) -> RecipeView:
    """A recipe with what it leaves open decided as far as no model is needed, and what its rules match in one.

    `auto` stays open, but what depends on it is that of static mode, as with data. Raises QuantoolError.
    """
    given = request.recipe
    target = targets.load(given.target)
    resolved = resolved_recipe(given, target, _mode(given))
    facts = None if request.model is None else plain_facts(read_float(request.model), opset=None)
    return RecipeView(recipe=replace(resolved, mode=given.mode), reach=_reach(facts, given))


def export_recipe(request: ExportRecipeRequest) -> OutputInfo:
    """Write a recipe as a TOML file, whole or not at all. Raises OptionError."""
    refuse_overwrite(request.output, reads=request.reads, force=request.force)
    text = to_toml(request.recipe, comments=request.comments, folder=request.output.parent)
    try:
        content = text.encode("utf-8")
    except UnicodeEncodeError as error:
        what, fix = "a value holds bytes that are no UTF-8, which TOML is", "Use a glob in their place."
        raise OptionError("not-utf-8", what, where=str(request.output), fix=fix) from error
    publish(request.output, content, force=request.force)
    digest = hashlib.sha256(content).hexdigest()
    return OutputInfo(path=str(request.output), sha256=digest, size_bytes=len(content))


def check_recipe(request: CheckRecipeRequest) -> RecipeView:
    """Everything that is wrong with a recipe file, alone or on a model, not only what is found first.

    Raises RecipeError where it cannot be read, and ModelError where the model cannot.
    """
    values, problems = recipe_problems(request.recipe)
    check = _Check(request.recipe, list(problems))
    target = check.tried(lambda: targets.load(values.get("target", Recipe().target)))
    facts = None
    if request.model is not None:
        loaded = read_float(request.model)
        facts = plain_facts(loaded, opset=None)
        check.found(unmatched(facts, Recipe(**_patterns(values))))
    if check.problems or target is None:
        return RecipeView(recipe=None, reach=None, problems=tuple(check.problems))
    recipe = Recipe(**values)
    check.tried(lambda: refuse_unmeasured(recipe))
    settings = check.tried(lambda: settings_of(recipe, target, _mode(recipe)))
    if request.model is not None and settings is not None:
        check.tried(lambda: refuse_unrunnable(loaded, settings))
        mode, opset = _mode(recipe), settings.opset
        check.tried(lambda: refuse_impossible_rules(loaded, recipe, target, mode=mode, opset=opset))
    return RecipeView(recipe=recipe, reach=_reach(facts, recipe), problems=tuple(check.problems))


@dataclass(frozen=True, slots=True)
class _Check:
    """Collects problems of one recipe file."""

    path: Path
    problems: list[RecipeError] = field(default_factory=list)

    def tried(self, step: Callable[[], Found]) -> Found | None:
        """What a step gives; None where it refuses, which is noted."""
        try:
            return step()
        except OptionError as error:
            self.found((error,))
            return None

    def found(self, errors: Iterable[QuantoolError]) -> None:
        """Note what is wrong, as errors of the recipe."""
        self.problems.extend(
            RecipeError(error.code, error.what, where=f"recipe {self.path}: {error.where}", fix=error.fix)
            for error in errors
        )


def _patterns(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in _PATTERNS if name in values}


def _mode(recipe: Recipe) -> Mode:
    return Mode.STATIC if recipe.mode is Mode.AUTO else recipe.mode


def _reach(facts: GraphFacts | None, recipe: Recipe) -> tuple[RuleReach, ...] | None:
    if facts is None:
        return None
    return tuple(RuleReach(nodes=n, tensors=t) for n, t in (reach(facts, rule) for rule in recipe.rules))
