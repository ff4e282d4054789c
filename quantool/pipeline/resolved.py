"""The recipe that a run came to: what it left open, filled in, so that it repeats the run."""

from __future__ import annotations

from dataclasses import replace

from quantool.errors import OptionError
from quantool.formulas import compute
from quantool.plan import Settings, resolve
from quantool.recipe import Calibrator, Formula, Recipe
from quantool.schema import Grid, Mode
from quantool.solve import default_calibrator
from quantool.targets import Target


def settings_of(recipe: Recipe, target: Target, mode: Mode) -> Settings:
    """What mode and target decide; AUTO stands for the mixed plan without data, which is dynamic first.

    Raises:
        OptionError: types that no form holds, or a formula that has no code for zero among them.
    """
    settings = resolve(recipe, target, Mode.DYNAMIC if mode is Mode.AUTO else mode)
    if mode is Mode.STATIC:
        _refuse_grid_without_zero(recipe, settings)
    return settings


def kept_floats(target: Target, mode: Mode) -> tuple[str, ...]:
    """The float types that a model may keep; integer kernels stand between float32."""
    return target.weight_only_floats if mode is Mode.WEIGHT_ONLY else ("float32",)


def _refuse_grid_without_zero(recipe: Recipe, settings: Settings) -> None:
    for activations in dict.fromkeys(each.activations for each in settings.all):
        grid = Grid.of(activations)
        try:
            compute(settings.formula, -1.0, 1.0, qmin=grid.qmin, qmax=grid.qmax, narrow_range=recipe.narrow_range)
        except ValueError as error:
            raise OptionError(
                "impossible-pair",
                f"--formula {settings.formula} with --narrow-range has no code for zero in {activations}",
                where="--formula, --narrow-range",
                fix="Use int8 or int16 activations, or leave --narrow-range out.",
            ) from error


def resolved_recipe(recipe: Recipe, target: Target, mode: Mode) -> Recipe:
    """The same recipe with every decision made; quantizing by it gives the same model.

    What the mode has no use for stays None.
    """
    settings = settings_of(recipe, target, mode)
    static = mode is Mode.STATIC
    dynamic = mode in (Mode.DYNAMIC, Mode.AUTO)
    axis = "channel" if settings.axis_scales else "tensor"
    usual = f"block:{settings.block_size}" if settings.block_size else axis
    # Each of the types that a target size mixes has its own.
    granularity = usual if recipe.target_size is None else recipe.granularity
    return replace(
        recipe,
        mode=mode,
        format=settings.format if static or settings.plain_weights else None,
        weights=settings.weights,
        activations=settings.activations if static else "uint8" if dynamic else None,
        granularity=granularity,
        calibrator=(recipe.calibrator or Calibrator(default_calibrator(settings.activations))) if static else None,
        formula=Formula(settings.formula) if static else _weight_formula(settings),
    )


def _weight_formula(settings: Settings) -> Formula | None:
    """The formula of weights alone, where the user named one; else it follows the type of each weight."""
    return None if settings.weight_formula is None else Formula(settings.weight_formula)
