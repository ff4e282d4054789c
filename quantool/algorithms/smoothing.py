"""Smoothing: move the outliers of a layer's input into its weights, where each channel has its own scale.

Xiao, Lin, Seznec, Wu, Demouth, Han, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language
Models", ICML 2023, arXiv:2211.10438, equations 3 and 4: Y = (X diag(s)^-1) (diag(s) W), with
s_j = max|X_j|^alpha / max|W_j|^(1 - alpha).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

#: factors beyond these say that a channel is silent, not that it is large
LIMITS = (1e-4, 1e4)


def smoothing_factors(inputs: Float64, weights: Float64, *, alpha: float) -> Float64:
    """s_j of each input channel, with a geometric mean of 1 over the channels that matter.

    inputs: float64[K], max|X_j|; weights: float64[K], max|W_j| over everything that multiplies channel j; alpha: 0
    leaves the work to the inputs, 1 to the weights. A silent channel gets 1. Returns float64[K], positive.
    """
    factors = np.ones_like(inputs)
    heard = (inputs > 0) & (weights > 0)
    if not heard.any():
        return factors
    exponents = alpha * np.log(inputs[heard]) - (1.0 - alpha) * np.log(weights[heard])
    factors[heard] = np.exp(np.clip(exponents - exponents.mean(), *np.log(LIMITS)))
    return np.clip(factors, *LIMITS)
