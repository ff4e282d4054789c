"""Coordinate descent: polish the codes of a weight, and its scales, for the inputs behind a Gram matrix.

f(Q, s) = tr((W - sQ) G (W - sQ)^T) is the layer's squared output error. In one column k the best integer is
q_k + (R_k / s) / G_kk with R = (W - sQ) G, rounded: Zhang et al., "COMQ: A Backpropagation-Free Algorithm for
Post-Training Quantization", arXiv:2403.07134, equation 6, for all rows at once. For fixed codes the best scale of a row
is (q G w) / (q G q), its equation 8. Neither step ever raises f, so that it may follow any rounding, GPTQ's too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantool.algorithms.gptq import gptq, row_noise
from quantool.schema import AnyArray, Grid

Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]

#: sweeps over all columns; later ones change hardly a code
SWEEPS = 4
#: how often scales and codes take turns
ROUNDS = 3
#: where scales start, as shares of the largest weight's: with few levels the best one clips
STARTS, STARTS_OF_FEW_LEVELS = (1.0,), (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
_FEW_LEVELS = 16
_BLOCK = 64


def rounded_well(
    weight: AnyArray, gram: Float64, scale: AnyArray, *, grid: Grid, least: AnyArray | float = 0.0
) -> tuple[Int32, Float64] | None:
    """Codes and scales of least output error that GPTQ and coordinate descent find from several starts, row by row.

    weight: float[O, d]; gram: as :func:`descend`'s; scale: float[O], to start from; least: float[O] or one, below which
    a scale may not fall. Scales are float32 in float64. None where GPTQ cannot factor the matrix.
    """
    found: tuple[Int32, Float64] | None = None
    noise = np.full(len(weight), np.inf)
    for start in STARTS_OF_FEW_LEVELS if grid.qmax - grid.qmin < _FEW_LEVELS else STARTS:
        scales = _as_float32(np.maximum(np.asarray(scale, np.float64) * start, least))
        codes = gptq(weight, gram, scales, grid=grid)
        if codes is None:
            return None
        for _ in range(ROUNDS):
            codes = descend(weight, gram, scales, codes, grid=grid)
            scales = _as_float32(np.maximum(best_scales(weight, gram, scales, codes), least))
        of_rows = row_noise(weight.astype(np.float64) - codes * scales[:, None], gram)
        better = of_rows < noise
        noise = np.where(better, of_rows, noise)
        old = found if found is not None else (codes, scales)
        found = np.where(better[:, None], codes, old[0]), np.where(better, scales, old[1])
    return found


def _as_float32(scale: Float64) -> Float64:
    return scale.astype(np.float32).astype(np.float64)


def descend(weight: AnyArray, gram: Float64, scale: AnyArray, codes: AnyArray, *, grid: Grid) -> Int32:
    """Codes of no larger output error than those given, on the same scales; symmetric grids only.

    weight: float[O, d]; gram: float64[d, d] or float64[G, d, d] for G groups of O / G rows; scale: float[O] or [];
    codes: integers[O, d]. Columns are visited in descending order of their energy; silent ones keep their codes.
    """
    size = weight.shape[1]
    grams = gram.reshape(-1, size, size)
    order = np.argsort(-np.diagonal(grams, axis1=1, axis2=2).max(axis=0), kind="stable")
    grams = np.ascontiguousarray(grams[:, order][:, :, order])
    step = np.broadcast_to(np.asarray(scale, np.float64).reshape(-1, 1), (len(weight), 1)).reshape(len(grams), -1, 1)
    target = weight.astype(np.float64)[:, order].reshape(len(grams), -1, size) / step
    found = codes.astype(np.float64)[:, order].reshape(target.shape)
    slope = (target - found) @ grams
    for _ in range(SWEEPS):
        changed = False
        for start in range(0, size, _BLOCK):
            block = slice(start, start + _BLOCK)
            change = _sweep(found[:, :, block], slope[:, :, block].copy(), grams[:, block, block], grid)
            if change.any():
                # What the block's columns changed reaches all others in one product.
                slope -= change @ grams[:, block]
                changed = True
        if not changed:
            break
    restored = np.empty(weight.shape, np.int32)
    restored[:, order] = found.reshape(weight.shape)
    return restored


def _sweep(found: Float64, slope: Float64, grams: Float64, grid: Grid) -> Float64:
    """Visit the columns of one block once, in place; returns by how much each code changed.

    found, slope: float64[G, O / G, n]; grams: float64[G, n, n].
    """
    energy = np.diagonal(grams, axis1=1, axis2=2)
    divisor = np.where(energy > 0, energy, np.inf)
    before = found.copy()
    for k in range(found.shape[2]):
        better = np.rint(found[:, :, k] + slope[:, :, k] / divisor[:, k, None])
        change = np.clip(better, grid.qmin, grid.qmax) - found[:, :, k]
        found[:, :, k] += change
        slope -= change[:, :, None] * grams[:, None, k]
    return found - before


def best_scales(weight: AnyArray, gram: Float64, scale: AnyArray, codes: AnyArray) -> Float64:
    """The scale of each row that loses least with its codes, float64[O]; a row of zeros keeps its own.

    Arguments as :func:`descend`'s; scale: float[O]. A best scale below half or above twice its own is no better guess.
    """
    size = weight.shape[1]
    grams = gram.reshape(-1, size, size)
    wide = codes.astype(np.float64).reshape(len(grams), -1, size)
    weighted = wide @ grams
    energy = np.einsum("god,god->go", weighted, wide).reshape(-1)
    product = np.einsum("god,god->go", weighted, weight.astype(np.float64).reshape(wide.shape)).reshape(-1)
    old = np.asarray(scale, np.float64).reshape(-1)
    best = np.divide(product, energy, out=old.copy(), where=energy > 0)
    return np.where((best >= old / 2) & (best <= old * 2), best, old)
