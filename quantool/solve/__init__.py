"""Solving: (plan, ranges, weights) -> parameters. Pure functions of statistics and weights."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quantool.formulas import compute, formula_for
from quantool.recipe import Recipe
from quantool.schema import ActivationSpec, FloatArray, Grid, Note, Parameters, Plan, QuantParams, Range
from quantool.solve.ranges import DEFAULT_CALIBRATOR, default_calibrator, solve_ranges, statistic_kind
from quantool.solve.weights import Load, solve_weight

__all__ = ["DEFAULT_CALIBRATOR", "default_calibrator", "solve", "solve_ranges", "statistic_kind"]

Corrections: TypeAlias = Mapping[str, NDArray[np.float64]]
NO_CORRECTIONS: Final[Corrections] = MappingProxyType({})


def solve(
    plan: Plan,
    ranges: Mapping[str, Range],
    *,
    load: Load,
    recipe: Recipe,
    corrections: Corrections = NO_CORRECTIONS,
) -> Parameters:
    """Scales, zero points, and how to make the codes of every weight.

    load: a constant's value by name. corrections: node -> mean error of its output channels, taken out of its bias.

    Raises ModelError where a weight holds NaN or infinity.
    """
    activations = {name: activation_params(spec, ranges[name], recipe) for name, spec in plan.activations.items()}
    weights = {
        (spec.node, spec.index): solve_weight(
            spec, load, activations=activations, correction=corrections.get(spec.node)
        )
        for spec in plan.weights
    }
    return Parameters(
        activations=activations, weights=weights, corrections=corrections, notes=tuple(_outlier_notes(plan, ranges))
    )


def activation_params(spec: ActivationSpec, chosen: Range, recipe: Recipe) -> QuantParams:
    """Scale and zero point of one activation by the recipe's formula."""
    grid = Grid.of(spec.dtype)
    solved = compute(
        formula_for(spec.dtype, recipe.formula),
        chosen.lo,
        chosen.hi,
        qmin=grid.qmin,
        qmax=grid.qmax,
        narrow_range=recipe.narrow_range,
    )
    scale = _within(solved.scale, grid, int(solved.zero_point), spec.bounds)
    return QuantParams(
        dtype=spec.dtype,
        scale=scale,
        zero_point=solved.zero_point,
        chosen=chosen,
        residual_shift=float(solved.residual_shift),
    )


def _within(scale: FloatArray, grid: Grid, zero_point: int, bounds: tuple[float, float] | None) -> FloatArray:
    """Lower a scale by units in the last place until its largest value respects a Clip's upper bound."""
    if bounds is None or not np.isfinite(bounds[1]):
        return scale
    steps = np.float32(grid.qmax - zero_point)
    while np.float32(steps * scale) > np.float32(bounds[1]):
        scale = np.asarray(np.nextafter(scale, np.float32(0)), np.float32)
    return scale


def _outlier_notes(plan: Plan, ranges: Mapping[str, Range]) -> list[Note]:
    """One warning for each statistic whose isolated outliers were left out of the range."""
    notes = []
    seen = set()
    for name, spec in plan.activations.items():
        chosen = ranges[name]
        if chosen.outliers and spec.group not in seen:
            seen.add(spec.group)
            notes.append(
                Note(
                    code="outliers-clipped",
                    what=f"{chosen.outliers} isolated values up to "
                    f"{max(abs(chosen.observed_min), abs(chosen.observed_max)):.6g} lie outside the range "
                    f"{chosen.lo:.6g}..{chosen.hi:.6g}",
                    where=name,
                    fix="Check the data, or use --calibrator minmax to cover them.",
                )
            )
    return notes
