"""Scales and zero points of weights by the searches under algorithms/: one row for each."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final, TypeAlias

from quantool.algorithms.blocks import Float32, Int32, bounds, nearest_steps, over_blocks
from quantool.algorithms.hqq import half_quadratic
from quantool.algorithms.k_quant import least_squares
from quantool.algorithms.mse_clip import FEW_LEVELS, QUICK, QUICK_OF_FEW_LEVELS, RATIOS, clipped
from quantool.recipe import Algorithm
from quantool.schema import AnyArray, FloatArray, Grid, IntArray, WeightSpec

#: (weights, grid, importance or None, thorough) -> scale and zero point; see algorithms.blocks for the arrays
_Search: TypeAlias = Callable[[Float32, Grid, Float32 | None, bool], tuple[Float32, Int32]]


def _clipped(values: Float32, grid: Grid, importance: Float32 | None, thorough: bool) -> tuple[Float32, Int32]:
    quick = QUICK_OF_FEW_LEVELS if grid.qmax - grid.qmin < FEW_LEVELS else QUICK
    return clipped(values, grid, importance=importance, ratios=RATIOS if thorough else quick)


def _least_squares(values: Float32, grid: Grid, importance: Float32 | None, thorough: bool) -> tuple[Float32, Int32]:
    return least_squares(values, grid, importance=importance, thorough=thorough)


def _half_quadratic(values: Float32, grid: Grid, importance: Float32 | None, thorough: bool) -> tuple[Float32, Int32]:
    del importance, thorough  # its errors are sparse instead of weighted
    return half_quadratic(values, grid)


def _nearest(values: Float32, grid: Grid, importance: Float32 | None, thorough: bool) -> tuple[Float32, Int32]:
    del importance, thorough  # nothing is searched
    return nearest_steps(*bounds(values), grid)


#: what looks for scales without data; all take the same time however the weights lie
SEARCHES: Final = MappingProxyType(
    {
        Algorithm.MSE_CLIP: _clipped,
        Algorithm.K_QUANT: _least_squares,
        Algorithm.HQQ: _half_quadratic,
    }
)


def searched_scales(
    weight: AnyArray,
    spec: WeightSpec,
    *,
    search: Algorithm | None,
    importance: AnyArray | None = None,
    thorough: bool = False,
    transposed: bool = False,
) -> tuple[FloatArray, IntArray]:
    """Scale and zero point of a weight of integers by a search of SEARCHES, None for those of rounding to nearest.

    weight: float[*W]; importance: float, broadcast to W, how much an error counts. transposed: search the transpose, so
    that a matrix and its transpose elsewhere in the model get the same scales to the last bit.
    """
    grid = Grid.of(spec.dtype, symmetric=spec.symmetric, bits=spec.bits)
    chosen: _Search = _nearest if search is None else SEARCHES[search]
    axis = None if spec.axis is None else spec.axis % weight.ndim
    turned = transposed and weight.ndim == 2
    scale, zero_point = over_blocks(
        weight.T if turned else weight,
        lambda values, counts: chosen(values, grid, counts, thorough),
        axis=1 - axis if turned and axis is not None else axis,
        block_size=spec.block_size,
        importance=importance.T if turned and importance is not None else importance,
    )
    return (scale.T, zero_point.T) if turned and scale.ndim == 2 else (scale, zero_point)
