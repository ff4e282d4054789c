"""HQQ: half-quadratic quantization, which lets a few weights of each block err much so that the others err little.

Badri, Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023 (mobiusml.github.io/hqq_blog):
min over z of ||W - s (q - z)||_p^p with p = 0.7. Sparse errors E take turns with the zero point:
E = shrink(W - W_r, beta) with shrink(x, beta) = sign(x) max(|x| - |x|^(p-1) / beta, 0), their equation for the proximal
step, and z = mean(q - (W - E) / s). Here errors are counted in steps, so that a weight's unit does not matter; zero
points are integers, so that the scale is fitted to W - E too, by least squares; on a symmetric grid it is all that is.
"""

from __future__ import annotations

import numpy as np

from quantool.algorithms.blocks import SMALLEST_SCALE, Float32, Int32, bounds, nearest_steps, summed, widest_steps
from quantool.schema import Grid

P = 0.7
BETA, KAPPA = 10.0, 1.01
ROUNDS = 8
#: errors below this many steps are none
TINY = 1e-12


def half_quadratic(values: Float32, grid: Grid) -> tuple[Float32, Int32]:
    """Scale and zero point of each block, never of larger p-norm of the error than those of rounding to nearest.

    values: float32[m, n, i], blocks along the middle axis. Returns float32[m, i] and int32[m, i].
    """
    low, high = bounds(values)
    best, zeros = nearest_steps(low, high, grid)
    least = lp_error(values, best, zeros, grid)
    scale, zero = (widest_steps(low, high, grid) if grid.symmetric else best), zeros
    beta = BETA
    for _ in range(ROUNDS):
        scale, zero = _turn(values, scale, zero, grid, beta)
        beta *= KAPPA
        error = lp_error(values, scale, zero, grid)
        better = error < least
        if not better.any():
            break
        best, zeros = np.where(better, scale, best), np.where(better, zero, zeros)
        least = np.where(better, error, least)
    return best, zeros


def lp_error(values: Float32, scale: Float32, zero_point: Int32, grid: Grid) -> Float32:
    """sum_j |w_j - s (q_j - z)|^p of each block with its weights rounded to nearest, float32[m, i]."""
    quotient = values * (np.float32(1) / scale)[:, None]
    codes = _codes(quotient, zero_point, grid)
    error: Float32 = np.add.reduce(_power(np.abs(quotient - codes), P), axis=1) * _power(scale, P)
    return error


def _turn(values: Float32, scale: Float32, zero_point: Int32, grid: Grid, beta: float) -> tuple[Float32, Int32]:
    """Errors that stay sparse, then the zero point and the scale of the rest."""
    quotient = values * (np.float32(1) / scale)[:, None]
    codes = _codes(quotient, zero_point, grid)
    rest = quotient - _shrunk(quotient - codes, beta)
    if not grid.symmetric:
        shift = np.mean(codes - rest, axis=1)
        moved = np.clip(np.rint(zero_point + shift), grid.qmin, grid.qmax).astype(np.int32)
        codes += (zero_point - moved)[:, None].astype(np.float32)
        zero_point = moved
    product, energy = summed(codes, rest), summed(codes, codes)
    good = (energy > 0) & (product > 0)
    factor = np.divide(product, energy, out=np.ones_like(scale), where=good)
    return np.maximum(scale * factor, np.float32(SMALLEST_SCALE)), zero_point


def _codes(quotient: Float32, zero_point: Int32, grid: Grid) -> Float32:
    """Codes, counted from their zero points, rounded to nearest on the grid."""
    low, high = ((edge - zero_point)[:, None].astype(np.float32) for edge in (grid.qmin, grid.qmax))
    codes = np.rint(quotient)
    np.maximum(codes, low, out=codes)
    return np.minimum(codes, high, out=codes)


def _shrunk(errors: Float32, beta: float) -> Float32:
    size = np.abs(errors)
    kept = size - _power(size, P - 1) / np.float32(beta)
    shrunk: Float32 = np.sign(errors) * np.maximum(kept, np.float32(0))
    return shrunk


def _power(size: Float32, exponent: float) -> Float32:
    """size^exponent, size > 0 by logarithm, ten times as fast as np.power; 0 gives 0 for a positive exponent."""
    logs = np.log(np.maximum(size, np.float32(TINY)))
    logs *= np.float32(exponent)
    found: Float32 = np.exp(logs, out=logs)
    return found
