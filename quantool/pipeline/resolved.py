"""The recipe that a run came to: what it left open, filled in, so that it repeats the run."""

from __future__ import annotations

from dataclasses import replace

from quantool.plan import Settings, resolve
from quantool.recipe import Calibrator, Formula, Recipe
from quantool.schema import Mode
from quantool.solve.ranges import DEFAULT_CALIBRATOR
from quantool.targets import Target


def settings_of(recipe: Recipe, target: Target, mode: Mode) -> Settings:
    """What mode and target decide; AUTO stands for the mixed plan without data, which is dynamic first."""
    return resolve(recipe, target, Mode.DYNAMIC if mode is Mode.AUTO else mode)


def resolved_recipe(recipe: Recipe, target: Target, mode: Mode) -> Recipe:
    """The same recipe with every decision made; quantizing by it gives the same model.

    What the mode has no use for stays None.
    """
    settings = settings_of(recipe, target, mode)
    static = mode is Mode.STATIC
    dynamic = mode in (Mode.DYNAMIC, Mode.AUTO)
    axis = "channel" if settings.axis_scales else "tensor"
    return replace(
        recipe,
        mode=mode,
        format=settings.format if static else None,
        weights=settings.weights,
        activations=settings.activations if static else "uint8" if dynamic else None,
        granularity=f"block:{settings.block_size}" if settings.block_size else axis,
        calibrator=(recipe.calibrator or Calibrator(DEFAULT_CALIBRATOR)) if static else None,
        formula=Formula(settings.formula) if static else None,
    )
