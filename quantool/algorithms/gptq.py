"""GPTQ: round weights one column at a time and let the columns after it make up for the error.

Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", ICLR 2023, arXiv:2210.17323: equation 2 for the update, section 3.3 for the Cholesky form, with columns
in descending order of their energy ("act-order" of its implementation). The Hessian of a layer's squared output
error is the Gram matrix of its inputs (equation 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantool.schema import AnyArray, Grid

Float64 = NDArray[np.float64]

DAMPING = 0.01
_DAMPING_STEPS = 4
_BLOCK = 128


def gptq(
    weight: AnyArray, gram: Float64, scale: AnyArray, *, grid: Grid, zero_point: AnyArray | None = None
) -> NDArray[np.int32] | None:
    """Codes that minimize the output error for the inputs behind the Gram matrix.

    weight: float[O, d]; gram: float64[d, d], the mean of x x^T, or float64[G, d, d] for a convolution of G groups,
    whose O / G outputs each read their own inputs; scale: float[O] or [], of each row, or float[O, d] of each weight,
    for scales in blocks ("static groups": they are fixed beforehand, so that columns may be visited in any order);
    zero_point: integers[O, d], None for zero. Returns int32[O, d], or None where the matrix cannot be factored even
    with strong damping. Inputs that never occur are rounded to nearest.
    """
    size = weight.shape[1]
    grams = gram.reshape(-1, size, size)
    order = np.argsort(-np.diagonal(grams, axis1=1, axis2=2), axis=1, kind="stable")
    upper = _inverse_factors(np.take_along_axis(np.take_along_axis(grams, order[:, :, None], 1), order[:, None], 2))
    if upper is None:
        return None

    def visited(values: AnyArray) -> Float64:
        by_group = np.broadcast_to(values, weight.shape).astype(np.float64).reshape(len(grams), -1, size)
        return np.take_along_axis(by_group, order[:, None], 2)

    rest, step = visited(weight), visited(np.asarray(scale) if np.ndim(scale) == 2 else np.reshape(scale, (-1, 1)))
    zero = None if zero_point is None else visited(zero_point)
    codes = np.empty_like(rest)
    for start in range(0, size, _BLOCK):
        block = slice(start, min(start + _BLOCK, size))
        grids = _Grids(grid, step[:, :, block], None if zero is None else zero[:, :, block])
        errors = _round_block(rest[:, :, block], codes[:, :, block], upper[:, block, block], grids)
        rest[:, :, block.stop :] -= errors @ upper[:, block, block.stop :]
    restored = np.empty(codes.shape, np.int32)
    np.put_along_axis(restored, order[:, None], codes.astype(np.int32), 2)
    return restored.reshape(weight.shape)


@dataclass(frozen=True, slots=True)
class _Grids:
    """The codes, and the steps and zero points of the weights of one block, float64[G, O / G, n]; zero: None for 0."""

    codes: Grid
    step: Float64
    zero: Float64 | None

    def rounded(self, column: Float64, k: int) -> tuple[Float64, Float64]:
        """The codes of one column, and what they stand for."""
        zero = 0.0 if self.zero is None else self.zero[:, :, k]
        found = np.clip(np.rint(column / self.step[:, :, k]) + zero, self.codes.qmin, self.codes.qmax)
        return found, (found - zero) * self.step[:, :, k]


def _round_block(rest: Float64, codes: Float64, upper: Float64, grids: _Grids) -> Float64:
    """Round the columns of one block of each group in place; returns what each leaves to the columns after the block.

    rest, codes: float64[G, O / G, n]; upper: float64[G, n, n].
    """
    errors = np.empty_like(rest)
    for k in range(rest.shape[2]):
        column = rest[:, :, k]
        codes[:, :, k], value = grids.rounded(column, k)
        errors[:, :, k] = (column - value) / upper[:, k, k, None]
        rest[:, :, k + 1 :] -= errors[:, :, k, None] * upper[:, None, k, k + 1 :]
    return errors


def _inverse_factors(grams: Float64) -> Float64 | None:
    """The upper Cholesky factor of the inverse of each damped matrix; a group without energy gets the identity."""
    energy = np.mean(np.diagonal(grams, axis1=1, axis2=2), axis=1)
    if not np.isfinite(energy).all() or not (energy > 0).any():
        return None
    eye = np.eye(grams.shape[1])
    silent = energy <= 0
    matrices, energy = np.where(silent[:, None, None], eye, grams), np.where(silent, 1.0, energy)
    damping = DAMPING
    for _ in range(_DAMPING_STEPS):
        try:
            inverse = np.linalg.inv(matrices + (damping * energy)[:, None, None] * eye)
            lower = np.linalg.cholesky((inverse + inverse.transpose(0, 2, 1)) / 2).astype(np.float64)
        except np.linalg.LinAlgError:
            damping *= 10
        else:
            return lower.transpose(0, 2, 1)
    return None


def rescaled_gram(gram: Float64, factors: Float64) -> Float64:
    """The Gram matrix of inputs that were multiplied by factors: diag(s) G diag(s).

    gram: float64[G, d, d]; factors: float64[G, d]. Returns float64[G, d, d].
    """
    return factors[:, :, None] * gram * factors[:, None, :]


def output_noise(error: AnyArray, gram: Float64) -> float:
    """Mean squared output error of a weight error, summed over the outputs: tr(E G E^T) of each group.

    error: float[O, d]; gram: float64[d, d], or float64[G, d, d] where the rows belong to G groups in turn.
    """
    return float(row_noise(error, gram).sum())


def row_noise(error: AnyArray, gram: Float64) -> Float64:
    """The same for each output, float64[O]."""
    grams = gram.reshape(-1, error.shape[1], error.shape[1])
    wide = error.astype(np.float64).reshape(len(grams), -1, error.shape[1])
    noise: Float64 = np.einsum("god,god->go", wide @ grams, wide).reshape(-1)
    return noise
