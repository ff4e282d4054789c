"""AWQ: scale up the inputs' loud channels in the weights before rounding, and clip each block for the inputs it meets.

Lin, Tang, Tang, Yang, Chen, Wang, Xiao, Dang, Gan, Han, "AWQ: Activation-aware Weight Quantization for LLM Compression
and Acceleration", MLSys 2024, arXiv:2306.00978: equation 4, min over s of ||Q(W diag(s)) diag(s)^-1 X - W X||, with
s = s_X^alpha (equation 5), s_X the mean magnitude of each input channel and alpha on a grid from 0 to 1. The error on X
is tr(E G E^T) with the Gram matrix G of X, so that no activation is kept. The clip search (its implementation's
auto_clip) takes for each row and block the range of least such error within the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from quantool.algorithms.gptq import output_noise
from quantool.schema import AnyArray

Float64 = NDArray[np.float64]

#: values of alpha that are tried, as many as the paper's
ALPHAS = tuple(i / 20 for i in range(1, 20))
#: shares of each block's scale that are tried
CLIPS = (1.0, 1.15, 1.1, 1.05, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.5)
#: factors beyond these say that a channel is silent, not that it is loud
LIMITS = (1e-3, 1e3)


def awq_factors(magnitudes: Float64, *, alpha: float) -> Float64:
    """s_j of each input channel, float64[d], with a geometric mean of 1 over the channels that are heard.

    magnitudes: float64[d], the mean (or root mean square) of |x_j|. A silent channel gets 1.
    """
    factors = np.ones_like(magnitudes)
    heard = magnitudes > 0
    if heard.any():
        logs = alpha * np.log(magnitudes[heard])
        factors[heard] = np.exp(np.clip(logs - logs.mean(), *np.log(LIMITS)))
    return factors


def best_factors(
    weights: Sequence[Float64],
    gram: Float64,
    magnitudes: Float64,
    *,
    rounded: Callable[[int, Float64], Float64],
    alphas: Sequence[float] = ALPHAS,
) -> tuple[Float64, float]:
    """The factors of least output error for weights that read one tensor, and that error over the one without factors.

    weights: float64[O, d] each; gram: float64[d, d]; rounded: (which weight, float64[O, d]) -> what its codes mean.
    Ones and 1.0 where no alpha lowers the error. Returns float64[d] and a ratio.
    """

    def loss(factors: Float64) -> float:
        errors = (rounded(i, weight * factors) / factors - weight for i, weight in enumerate(weights))
        return sum(output_noise(error, gram) for error in errors)

    plain = np.ones_like(magnitudes)
    best, least = plain, loss(plain)
    before = least
    for alpha in alphas:
        factors = awq_factors(magnitudes, alpha=alpha)
        found = loss(factors)
        if found < least:
            best, least = factors, found
    return best, least / before if before > 0 else 1.0


def clip_shares(
    weight: AnyArray, gram: Float64, scale: Float64, zero_point: AnyArray, *, codes: tuple[int, int], block: int
) -> Float64:
    """By how much each block's scale changes for the least output error of the block alone, float64[O, blocks].

    weight: float[O, d]; gram: float64[d, d] of which the squares on the diagonal count; scale, zero_point: [O, ceil(d
    / block)], where the search starts; codes: the smallest and the largest. 1 where no change gains.
    """
    found = np.ones(scale.shape)
    for index, start in enumerate(range(0, weight.shape[1], block)):
        inside = slice(start, start + block)
        values, square = weight[:, inside].astype(np.float64), gram[inside, inside]
        least = np.full(len(values), np.inf)
        for share in CLIPS:
            step, zero = scale[:, index, None] * share, zero_point[:, index, None]
            stored = np.clip(np.rint(values / step) + zero, *codes) - zero
            error = values - stored * step
            noise = np.einsum("od,od->o", error @ square, error)
            better = noise < least
            found[:, index] = np.where(better, share, found[:, index])
            least = np.minimum(noise, least)
    return found
