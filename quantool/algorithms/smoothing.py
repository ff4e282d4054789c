"""Smoothing: move the outliers of a layer's input into its weights, where each channel has its own scale.

Xiao, Lin, Seznec, Wu, Demouth, Han, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language
Models", ICML 2023, arXiv:2211.10438, equations 3 and 4: Y = (X diag(s)^-1) (diag(s) W), with
s_j = max|X_j|^alpha / max|W_j|^(1 - alpha). A convolution has its input channels in place of columns.

The strength alpha is the one of least expected output error. Rounding evenly to steps of size D adds D^2 / 12 to each
element (Bennett 1948), and never more than the element's own square, since small ones become 0. So with the steps D_x
of the smoothed input and D_o of the scaled weight's outputs a row of the output errs by
sum_jo min(D_x^2 / 12, E[x_j^2] / s_j^2) (s_j W_jo)^2 + sum_jo min(D_o^2 / 12, (s_j W_jo)^2) E[x_j^2] / s_j^2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

#: factors beyond these say that a channel is silent, not that it is large
LIMITS = (1e-4, 1e4)
#: strengths that are compared, beside none
ALPHAS = tuple(round(0.1 * step, 1) for step in range(1, 10))
#: the error that smoothing must take away, as a share: expected errors are not surer than that
LEAST_SAVED = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothedInput:
    """A tensor that becomes integers. lows, highs: float64[C], the ends of each channel; levels: steps of its codes."""

    lows: Float64
    highs: Float64
    levels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothedLayer:
    """A layer that multiplies it.

    magnitudes: float64[G, O / G, C / G], max|W| over its taps; energies: float64[C], sum of W^2 over outputs and taps;
    taps: how many weights one output has for a channel; levels: the largest code; per_tensor: whether all outputs
    share a scale.
    """

    magnitudes: Float64
    energies: Float64
    taps: int
    levels: int
    per_tensor: bool


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


def best_factors(
    inputs: Sequence[SmoothedInput],
    layers: Sequence[SmoothedLayer],
    squares: Float64,
    *,
    most: Float64 | None = None,
    least_saved: float = LEAST_SAVED,
) -> tuple[Float64, float] | None:
    """The factors s of least expected output error and their alpha; None where smoothing saves too little.

    inputs: every tensor with these channels that is rounded on the way to the layers; squares: float64[C], E[x_j^2] of
    what the layers read; most: float64[C], how far each channel may grow, at 1 or less it keeps its scale; least_saved:
    the share of the error that must go.
    """
    peaks = np.max([np.maximum(-each.lows, each.highs) for each in inputs], axis=0)
    columns = np.max([layer.magnitudes.max(axis=1).reshape(-1) for layer in layers], axis=0)
    before = expected_error(np.ones_like(peaks), inputs, layers, squares)
    found: tuple[Float64, float] | None = None
    least = before * (1.0 - least_saved)
    for alpha in ALPHAS:
        factors = smoothing_factors(peaks, columns, alpha=alpha)
        if most is not None:
            factors = np.where(most > 1.0, np.maximum(factors, 1.0 / np.maximum(most, 1.0)), 1.0)
        error = expected_error(factors, inputs, layers, squares)
        if error < least:
            found, least = (factors, alpha), error
    return found


def expected_error(
    factors: Float64, inputs: Sequence[SmoothedInput], layers: Sequence[SmoothedLayer], squares: Float64
) -> float:
    """The mean squared output error of the layers, each beside the power of its output, with inputs divided by s.

    Arguments as :func:`best_factors`'s; factors: float64[C].
    """
    steps = [_step(each.lows / factors, each.highs / factors, each.levels) for each in inputs]
    smooth = squares / np.square(factors)
    of_inputs = np.sum([np.minimum(step**2 / 12, smooth) for step in steps], axis=0)
    total = 0.0
    for layer in layers:
        power = float(layer.energies @ squares)
        if power > 0:
            error = float((of_inputs * np.square(factors)) @ layer.energies) + _weight_error(layer, factors, smooth)
            total += error / power
    return total


def _step(lows: Float64, highs: Float64, levels: int) -> float:
    return (max(float(highs.max(initial=0.0)), 0.0) - min(float(lows.min(initial=0.0)), 0.0)) / levels


def _weight_error(layer: SmoothedLayer, factors: Float64, smooth: Float64) -> float:
    """The part of the weights, over all taps. smooth: float64[C], E[x_j^2] / s_j^2."""
    groups, outputs, inputs = layer.magnitudes.shape
    rows = (layer.magnitudes * factors.reshape(groups, 1, inputs)).max(axis=2, keepdims=True)
    steps = (np.full_like(rows, rows.max()) if layer.per_tensor else rows) / layer.levels
    own = (layer.energies * np.square(factors)).reshape(groups, 1, inputs) / (outputs * layer.taps)
    noise = np.minimum(np.square(steps) / 12, own).sum(axis=1)
    return float((noise * smooth.reshape(groups, inputs)).sum()) * layer.taps
