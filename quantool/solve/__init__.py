"""Solving: (plan, ranges, weights) -> parameters. Pure functions of statistics and weights."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quantool.formulas import compute, formula_for
from quantool.recipe import Recipe
from quantool.schema import FloatArray, Grid, Note, Parameters, Plan, QuantParams, Range
from quantool.solve.ranges import (
    DEFAULT_CALIBRATOR,
    default_calibrator,
    is_pinned,
    range_sources,
    solve_ranges,
    statistic_kind,
)
from quantool.solve.weights import Load, ScaleRule, solve_weight

__all__ = [
    "DEFAULT_CALIBRATOR",
    "NO_CORRECTIONS",
    "Corrections",
    "default_calibrator",
    "is_pinned",
    "range_sources",
    "solve",
    "solve_ranges",
    "statistic_kind",
]

Corrections: TypeAlias = Mapping[str, NDArray[np.float64]]
Scales: TypeAlias = Mapping[str, FloatArray]
NO_SCALES: Final[Scales] = MappingProxyType({})
NO_CORRECTIONS: Final[Corrections] = MappingProxyType({})


def solve(
    plan: Plan,
    ranges: Mapping[str, Range],
    *,
    load: Load,
    recipe: Recipe,
    corrections: Corrections = NO_CORRECTIONS,
    scales: Scales = NO_SCALES,
    search: ScaleRule | None = None,
) -> Parameters:
    """Scales, zero points, and how to make the codes of every weight.

    load: a constant's value by name. corrections: node -> mean error of its output channels, taken out of its bias.
    scales: node -> scale of its weight, float32 in the shape that it would get, where one was fitted.
    search: what looks for scales and zero points of weights that are better than those of rounding to nearest.

    Raises ModelError where a weight holds NaN or infinity.
    """
    activations = _activations(plan, ranges, recipe)
    weights = {
        (spec.node, spec.index): solve_weight(
            spec,
            load,
            activations=activations,
            correction=corrections.get(spec.node),
            fitted=scales.get(spec.node),
            search=search,
        )
        for spec in plan.weights
    }
    return Parameters(
        activations=activations, weights=weights, corrections=corrections, notes=tuple(_outlier_notes(plan, ranges))
    )


def _activations(plan: Plan, ranges: Mapping[str, Range], recipe: Recipe) -> dict[str, QuantParams]:
    """Scale and zero point of every activation by the recipe's formula, all tensors of a type at once."""
    found: dict[str, QuantParams] = {}
    for dtype in sorted({spec.dtype for spec in plan.activations.values()}):
        specs = [spec for spec in plan.activations.values() if spec.dtype == dtype]
        chosen = [ranges[spec.name] for spec in specs]
        grid = Grid.of(dtype)
        solved = compute(
            formula_for(dtype, recipe.formula),
            np.array([r.lo for r in chosen]),
            np.array([r.hi for r in chosen]),
            qmin=grid.qmin,
            qmax=grid.qmax,
            narrow_range=recipe.narrow_range,
        )
        for i, spec in enumerate(specs):
            zero_point = np.asarray(solved.zero_point[i])
            found[spec.name] = QuantParams(
                dtype=dtype,
                scale=_within(np.asarray(solved.scale[i]), grid, int(zero_point), spec.bounds),
                zero_point=zero_point,
                chosen=chosen[i],
                residual_shift=float(solved.residual_shift[i]),
            )
    return {name: found[name] for name in plan.activations}


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
