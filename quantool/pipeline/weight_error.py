"""What rounding cost each weight: all that can be said of a model whose outputs nobody compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ml_dtypes  # noqa: F401  # registers int4 and its kin as NumPy type names
import numpy as np

from quantool.kernels import dequantize_linear
from quantool.kernels.metrics import sqnr_db
from quantool.schema import AnyArray, Parameters, WeightParams


def weight_errors(parameters: Parameters, constant: Callable[[str], AnyArray]) -> Mapping[str, float]:
    """SQNR in dB of each distinct weight, by its key; inf where nothing was lost. One weight is in memory at a time.

    constant: the float value of an initializer.
    """
    distinct = {weight.key: weight for weight in parameters.weights.values()}
    return {key: _error(weight, constant(weight.spec.tensor)) for key, weight in distinct.items()}


def rounded_values(weight: WeightParams) -> AnyArray:
    """What a weight's codes stand for."""
    params = weight.params
    return dequantize_linear(
        weight.codes(),
        params.scale,
        params.zero_point.astype(np.dtype(params.dtype)),
        axis=0 if params.axis is None else params.axis,
        block_size=params.block_size,
    )


def _error(weight: WeightParams, exact: AnyArray) -> float:
    return sqnr_db(exact, rounded_values(weight))
