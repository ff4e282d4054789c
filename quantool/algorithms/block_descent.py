"""Coordinate descent for weights in blocks: better codes and scales for the inputs behind a Gram matrix.

f(Q, s) = tr((W - W_q) G (W - W_q)^T) with W_q = s (Q - z), s of each row and block. In one column k the best integer is
q_k + R_k / (s_k G_kk) with R = (W - W_q) G, rounded: Zhang et al., "COMQ: A Backpropagation-Free Algorithm for
Post-Training Quantization", arXiv:2403.07134, equation 6. With all other blocks fixed, the best change of a block's
scale is (c R_b) / (c G_bb c), c = Q_b - z: its equation 8 for one block. Neither step raises f, so that both may follow
GPTQ.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantool.algorithms.gptq import DAMPING
from quantool.schema import AnyArray, Grid

Float64 = NDArray[np.float64]

#: how often codes and scales take turns: later turns gain less than a hundredth of a decibel
ROUNDS = 3
#: columns whose changes reach the others together
_COLUMNS = 64
#: a scale beyond this share of its own, up or down, fits its codes no longer
_MOST_CHANGE = 2.0


def descended(
    weight: Float64, gram: Float64, scale: Float64, zero_point: AnyArray, codes: AnyArray, *, grid: Grid, block: int
) -> tuple[NDArray[np.int32], Float64]:
    """Codes and scales of no larger output error on the damped Gram matrix than those given.

    weight: float64[O, d]; gram: float64[d, d]; scale: float64[O, ceil(d / block)]; zero_point: integers[O, d]; codes:
    integers[O, d], on the grid. Silent inputs keep their codes. Returns int32[O, d] and float64 of scale's shape.
    """
    size = weight.shape[1]
    damped = gram + DAMPING * float(np.mean(np.diagonal(gram))) * np.eye(size)
    zeros, steps = zero_point.astype(np.float64), scale.copy()
    centred = codes.astype(np.float64) - zeros
    low, high = grid.qmin - zeros, grid.qmax - zeros
    for _ in range(ROUNDS):
        step = _spread(steps, size, block)
        slope = (weight - centred * step) @ damped
        for start in range(0, size, _COLUMNS):
            inside = slice(start, start + _COLUMNS)
            change = _sweep(centred, slope[:, inside].copy(), damped, step, (low, high), inside)
            if change.any():
                slope -= change @ damped[inside]
        _refit(centred, slope, damped, steps, block)
    return (centred + zeros).astype(np.int32), steps


def _spread(scale: Float64, size: int, block: int) -> Float64:
    return np.repeat(scale, block, axis=1)[:, :size]


def _sweep(
    centred: Float64, slope: Float64, gram: Float64, step: Float64, bounds: tuple[Float64, Float64], inside: slice
) -> Float64:
    """Visit some columns once, in place; returns by how much what each code stands for changed.

    slope: float64[O, n], of these columns alone, which follows their changes.
    """
    energy = np.diagonal(gram)[inside]
    square = gram[inside, inside]
    changed = np.zeros_like(slope)
    for k in range(slope.shape[1]):
        column = inside.start + k
        if energy[k] <= 0:
            continue
        better = np.rint(centred[:, column] + slope[:, k] / (step[:, column] * energy[k]))
        found = np.clip(better, bounds[0][:, column], bounds[1][:, column])
        changed[:, k] = (found - centred[:, column]) * step[:, column]
        centred[:, column] = found
        slope -= changed[:, k, None] * square[k]
    return changed


def _refit(centred: Float64, slope: Float64, gram: Float64, scale: Float64, block: int) -> None:
    """The best scale of each block in turn, in place, slope with it."""
    for index, start in enumerate(range(0, centred.shape[1], block)):
        inside = slice(start, start + block)
        part = centred[:, inside]
        energy = np.einsum("od,od->o", part @ gram[inside, inside], part)
        product = np.einsum("od,od->o", part, slope[:, inside])
        change = np.divide(product, energy, out=np.zeros_like(energy), where=energy > 0)
        moved = scale[:, index] + change
        change[(moved < scale[:, index] / _MOST_CHANGE) | (moved > scale[:, index] * _MOST_CHANGE)] = 0.0
        scale[:, index] += change
        slope -= (change[:, None] * part) @ gram[inside]
