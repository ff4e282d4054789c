"""How the elements of each quantized tensor spread, what rounding them costs, and what chose the range."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from calibrators import Histogram, Statistic
from calibrators.bins import binned, rounding_sqnr_db
from calibrators.distribution import Distribution
from calibrators.statistic import spread_of
from quantool.elements import ELEMENTS
from quantool.pipeline.choice.decide import Decided
from quantool.pipeline.rows import tensor_rows
from quantool.recipe import Recipe
from quantool.report import detail
from quantool.report.model import TensorRow
from quantool.schema import AnyArray, Grid, Parameters, Plan, QuantParams
from quantool.solve import range_sources


def detailed_rows(made: Decided, *, recipe: Recipe, weights: Mapping[str, float]) -> tuple[TensorRow, ...]:
    """The rows of a report with everything that statistics and weights tell; one weight is in memory at a time.

    weights: SQNR in dB of each distinct weight, by its key.
    """
    plan, parameters, stats = made.plan, made.parameters, made.stats
    rows = tensor_rows(parameters, weights)
    sources: Mapping[str, str] = {}
    if plan.activations:
        sources = range_sources(plan, made.source.facts, stats, recipe, default=made.calibrator)
    count = len(parameters.activations)
    activations = (_activation(row, plan, parameters, stats, sources) for row in rows[:count])
    spreads: dict[str, detail.Histogram | None] = {}
    constants = (_weight(row, made.source.constant, spreads) for row in rows[count:])
    return (*activations, *constants)


def _activation(
    row: TensorRow, plan: Plan, parameters: Parameters, stats: Mapping[str, Statistic], sources: Mapping[str, str]
) -> TensorRow:
    row = replace(row, calibrator=sources.get(row.name))
    state = stats.get(plan.activations[row.name].statistic)
    if not isinstance(state, Histogram) and getattr(state, "histogram", None) is None:
        return row
    assert state is not None
    seen = spread_of(state)
    if not math.isfinite(seen.minimum):
        return row
    found = _rounding_db(seen, parameters.activations[row.name])
    return replace(row, sqnr_db=found, histogram=_histogram(seen, row.range))


def _rounding_db(seen: Distribution, params: QuantParams) -> float | None:
    """SQNR of an activation's own rounding; None for floating types, whose steps are not even."""
    if ELEMENTS[params.dtype].floating:
        return None
    grid, scale, zero = Grid.of(params.dtype), float(params.scale), int(params.zero_point)
    return rounding_sqnr_db(seen, scale=scale, lo=(grid.qmin - zero) * scale, hi=(grid.qmax - zero) * scale)


def _weight(
    row: TensorRow, constant: Callable[[str], AnyArray], spreads: dict[str, detail.Histogram | None]
) -> TensorRow:
    values = np.asarray(constant(row.name))
    if row.name not in spreads:
        spreads[row.name] = _weight_histogram(values)
    found = spreads[row.name]
    if found is None:
        return row
    return replace(row, histogram=found, observed_min=float(values.min()), observed_max=float(values.max()))


def _weight_histogram(values: AnyArray) -> detail.Histogram | None:
    state = Histogram().observe(values)
    return None if not state.extrema.count else _histogram(spread_of(state), None)


def _histogram(seen: Distribution, bounds: tuple[float, float] | None) -> detail.Histogram:
    found = binned(seen, bounds)
    return detail.Histogram(
        low=found.low,
        high=found.high,
        counts=tuple(int(count) for count in found.counts),
        below=found.below,
        above=found.above,
    )
