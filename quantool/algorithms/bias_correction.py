"""Bias correction: take the mean error that quantization adds out of a layer's bias.

Nagel, van Baalen, Blankevoort, Welling, "Data-Free Quantization Through Weight Equalization and Bias Correction",
ICCV 2019, arXiv:1906.04721, section 4.2: E[y~] = E[y] + E[e x], so that E[e x] leaves the bias. Here both errors
count, the weights' and the input's: e = Wq E[Q(x)] - W E[x].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantool.kernels import dequantize_linear, quantize_linear
from quantool.schema import AnyArray, QuantParams

Float64 = NDArray[np.float64]

#: rows of one sample that enter a mean at most: their number decides the cost, not the size of the activation
MOST_ROWS = 2048


def channel_means(x: AnyArray, params: QuantParams, *, axis: int) -> tuple[Float64, Float64]:
    """Sums to average: the mean of each channel of x, before and after quantization.

    x: float32[*S], one sample's activation; params: per tensor; axis: the channels. At most MOST_ROWS rows count,
    at even distances. Returns float64[S[axis]] twice.
    """
    rows = np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])
    rows32: NDArray[np.float32] = rows[:: max(1, len(rows) // MOST_ROWS)].astype(np.float32)
    zero_point = params.zero_point.astype(np.dtype(params.dtype))
    quantized = dequantize_linear(quantize_linear(rows32, params.scale, zero_point), params.scale, zero_point)
    return rows32.mean(axis=0, dtype=np.float64), quantized.mean(axis=0, dtype=np.float64)


def mean_error(
    weight: AnyArray, dequantized: AnyArray, mean: Float64, mean_quantized: Float64, *, outputs: int
) -> Float64:
    """E[e] of each output channel: Wq E[Q(x)] - W E[x].

    weight, dequantized: float[O, I, *K] with the output channels first (a matrix as [O, I]); a grouped convolution
    has I = inputs / groups. mean, mean_quantized: float64[inputs]. outputs: O. Positions at the border count like
    inner ones, since padding is zero on both sides. Returns float64[O].
    """
    inputs = weight.shape[1]
    groups = mean.size // inputs
    taps = tuple(range(2, weight.ndim))
    exact = weight.astype(np.float64).sum(axis=taps).reshape(groups, outputs // groups, inputs)
    coarse = dequantized.astype(np.float64).sum(axis=taps).reshape(groups, outputs // groups, inputs)
    before = np.einsum("goi,gi->go", exact, mean.reshape(groups, inputs))
    after = np.einsum("goi,gi->go", coarse, mean_quantized.reshape(groups, inputs))
    error: Float64 = (after - before).reshape(outputs)
    return error


def row_mean_error(weight: AnyArray, dequantized: AnyArray, mean: Float64, mean_quantized: Float64) -> Float64:
    """The same from the means of a layer's rows, so that the border of a convolution counts exactly.

    weight, dequantized: float[O, d], outputs first; mean, mean_quantized: float64[G, d] for G groups of O / G outputs,
    of the float and of the quantized model. Returns float64[O].
    """
    groups, size = mean.shape
    exact, coarse = (w.astype(np.float64).reshape(groups, -1, size) for w in (weight, dequantized))
    error: Float64 = (coarse @ mean_quantized[:, :, None] - exact @ mean[:, :, None]).reshape(-1)
    return error
