"""GPTQ: round weights one column at a time and let the columns after it make up for the error.

Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", ICLR 2023, arXiv:2210.17323: equation 2 for the update, section 3.3 for the Cholesky form, with columns
in descending order of their energy ("act-order" of its implementation). The Hessian of a layer's squared output
error is the Gram matrix of its inputs (equation 1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantool.schema import AnyArray, Grid

Float64 = NDArray[np.float64]

DAMPING = 0.01
_DAMPING_STEPS = 4
_BLOCK = 128


def gptq(weight: AnyArray, gram: Float64, scale: AnyArray, *, grid: Grid) -> NDArray[np.int32] | None:
    """Codes that minimize the output error for the inputs behind the Gram matrix, symmetric grids only.

    weight: float[O, d]; gram: float64[d, d], the mean of x x^T; scale: float[O] or [], of each row. Returns
    int32[O, d], or None where the matrix cannot be factored even with strong damping. Inputs that never occur are
    rounded to nearest.
    """
    order = np.argsort(-np.diag(gram), kind="stable")
    upper = _inverse_factor(gram[np.ix_(order, order)])
    if upper is None:
        return None
    step = np.broadcast_to(np.asarray(scale, np.float64).reshape(-1, 1), (len(weight), 1))
    rest = weight.astype(np.float64)[:, order] / step
    codes = np.empty_like(rest)
    for start in range(0, rest.shape[1], _BLOCK):
        block = slice(start, min(start + _BLOCK, rest.shape[1]))
        errors = _round_block(rest[:, block], codes[:, block], upper[block, block], grid)
        rest[:, block.stop :] -= errors @ upper[block, block.stop :]
    restored = np.empty(codes.shape, np.int32)
    restored[:, order] = codes
    return restored


def _round_block(rest: Float64, codes: Float64, upper: Float64, grid: Grid) -> Float64:
    """Round the columns of one block in place; returns what each leaves to the columns after the block."""
    errors = np.empty_like(rest)
    for k in range(rest.shape[1]):
        column = rest[:, k]
        codes[:, k] = np.clip(np.rint(column), grid.qmin, grid.qmax)
        errors[:, k] = (column - codes[:, k]) / upper[k, k]
        rest[:, k + 1 :] -= np.outer(errors[:, k], upper[k, k + 1 :])
    return errors


def _inverse_factor(gram: Float64) -> Float64 | None:
    """The upper Cholesky factor of the inverse of the damped matrix."""
    energy = float(np.mean(np.diag(gram)))
    if not np.isfinite(energy) or energy <= 0:
        return None
    damping = DAMPING
    for _ in range(_DAMPING_STEPS):
        try:
            inverse = np.linalg.inv(gram + damping * energy * np.eye(len(gram)))
            lower = np.linalg.cholesky((inverse + inverse.T) / 2).astype(np.float64)
        except np.linalg.LinAlgError:
            damping *= 10
        else:
            return lower.T
    return None


def output_noise(error: AnyArray, gram: Float64) -> float:
    """Mean squared output error of a weight error, summed over the outputs: tr(E G E^T).

    error: float[O, d]; gram: float64[d, d].
    """
    wide = error.astype(np.float64)
    return float(np.einsum("od,od->", wide @ gram, wide))
