"""quantool recipe show, export and check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quantool.cli.command import Command, Given, Outcome, envelope, outcome_of
from quantool.cli.options import FILES, OPTIONS, RECIPE_OPTIONS, RUN_OPTIONS, Option
from quantool.errors import OptionError

if TYPE_CHECKING:
    from quantool.requests import RecipeView

OWN: Final = {
    "model": Option(panel=FILES, metavar="MODEL", help="Count what each rule matches in this model."),
}


def show(given: Given) -> Outcome:
    """Print the effective recipe."""
    from quantool import pipeline
    from quantool.recipe import to_toml
    from quantool.requests import ShowRecipeRequest

    found = pipeline.show_recipe(ShowRecipeRequest(recipe=given.recipe(), model=_model(given)))
    assert found.recipe is not None
    text = to_toml(found.recipe, every=True, rule_comments=[reach.wording for reach in found.reach or ()])
    return Outcome(
        exit_code=0,
        document=lambda: envelope(given.command, found.to_dict()),
        show=lambda screen: screen.verbatim(text),
    )


def export(given: Given) -> Outcome:
    """Write the options given as a recipe."""
    from quantool import pipeline
    from quantool.report.model import plain
    from quantool.requests import ExportRecipeRequest

    output = given.path("output")
    if output is None:
        what = "recipe export was not told where to write"
        raise OptionError("missing-option", what, where="--output", fix="Add -o FILE.toml.")
    recipe = given.recipe()
    request = ExportRecipeRequest(
        recipe=recipe,
        output=output,
        comments={name: OPTIONS[name].help for name in RECIPE_OPTIONS},
        force=given.flag("force"),
        reads=given.reads(),
    )
    written = pipeline.export_recipe(request)
    content = {"recipe": recipe.to_dict(), "output": plain(written)}
    return Outcome(
        exit_code=0,
        document=lambda: envelope(given.command, content),
        show=lambda screen: screen.verbatim(f"Wrote {output}."),
    )


def check(given: Given) -> Outcome:
    """List everything that is wrong with a recipe."""
    from quantool import pipeline
    from quantool.report.model import Failure, Report
    from quantool.report.wording import plural
    from quantool.requests import CheckRecipeRequest

    found = pipeline.check_recipe(CheckRecipeRequest(recipe=Path(given.text("recipe")), model=_model(given)))
    if found.problems:
        first = Report.failed(given.command, found.problems[0], model=_model(given))
        report = replace(first, errors=tuple(Failure(**error.to_dict()) for error in found.problems))
        count = plural(len(found.problems), "problem")
        return outcome_of(report, lambda screen: screen.verbatim(f"{count}."))
    return Outcome(
        exit_code=0,
        document=lambda: envelope(given.command, found.to_dict()),
        show=lambda screen: screen.verbatim(_praise(found)),
    )


def _model(given: Given) -> str | None:
    return None if given.values["model"] is None else given.text("model")


def _praise(found: RecipeView) -> str:
    lines = [f"rule {number} {reach.wording}" for number, reach in enumerate(found.reach or (), start=1)]
    return "\n".join(["No problem found.", *lines])


COMMANDS: Final = (
    Command(
        name="recipe show",
        help="Print the recipe that options and a file come to.",
        example="quantool recipe show recipe.toml --target cpu-arm64",
        arguments=("recipe?",),
        options=("model", *RECIPE_OPTIONS, *RUN_OPTIONS),
        run=show,
        own=OWN,
    ),
    Command(
        name="recipe export",
        help="Write the options given as a recipe.",
        example="quantool recipe export -o recipe.toml --mode static --exclude '/head/*'",
        arguments=(),
        options=("output", "force", "recipe", *RECIPE_OPTIONS, *RUN_OPTIONS),
        run=export,
    ),
    Command(
        name="recipe check",
        help="List everything that is wrong with a recipe.",
        example="quantool recipe check recipe.toml --model model.onnx",
        arguments=("recipe",),
        options=("model", *RUN_OPTIONS),
        run=check,
        own=OWN,
    ),
)
