"""What rounding cost each weight: all that can be said of a model whose outputs nobody compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Final, TypeVar

import ml_dtypes  # noqa: F401  # registers int4 and its kin as NumPy type names
import numpy as np

from quantool.kernels import dequantize_linear
from quantool.schema import AnyArray, FloatArray, IntArray, Parameters, QuantParams, WeightParams

#: elements whose values and differences are in memory at once: 768 KiB of float32 each
PIECE: Final = 3 << 16
#: of larger weights one piece in four counts, evenly spread: all of them would take a third of the time of the run
WHOLE_UP_TO, ONE_IN = 1 << 22, 4

A = TypeVar("A", bound=AnyArray)


@dataclass(slots=True, kw_only=True)
class WeightErrors:
    """The SQNR of each distinct weight, noted when its codes are made, so that no weight is quantized twice for it.

    constant: the float value of an initializer. found: SQNR in dB by the weight's key; inf where nothing was lost.
    """

    constant: Callable[[str], AnyArray]
    found: dict[str, float] = field(default_factory=dict)

    def noting(self, parameters: Parameters) -> Parameters:
        """The same parameters, whose weights note their error here whenever their codes are made."""
        weights = {
            place: replace(weight, codes=partial(self._codes, weight)) for place, weight in parameters.weights.items()
        }
        return replace(parameters, weights=weights)

    def complete(self, parameters: Parameters) -> Mapping[str, float]:
        """The errors of all weights; of one that is stored as another's transpose they are computed now."""
        for weight in parameters.weights.values():
            if weight.key not in self.found:
                self._codes(weight)
        return self.found

    def _codes(self, weight: WeightParams) -> AnyArray:
        codes = weight.codes()
        if weight.key not in self.found:
            self.found[weight.key] = sqnr_of_codes(self.constant(weight.spec.tensor), codes, weight.params)
        return codes


def sqnr_of_codes(exact: AnyArray, codes: AnyArray, params: QuantParams) -> float:
    """10 log10(sum w^2 / sum (w - s (q - z))^2) in dB, in pieces; inf where nothing was lost.

    exact: float[*W], finite; codes: of that shape. Of weights above 4 M elements a quarter counts. Squares are summed
    in float32 over 4096 elements at most, which errs by less than a millionth, and those sums in float64.
    """
    signal = noise = 0.0
    step = 1 if exact.size <= WHOLE_UP_TO else ONE_IN
    for rows, scale, zero_point in islice(_pieces(exact.shape, params), 0, None, step):
        values: FloatArray = np.ascontiguousarray(exact[rows], np.float32)
        signal += _energy(values)
        rounded = _dequantized(codes[rows], scale, zero_point, params)
        noise += _energy(np.subtract(values, rounded, dtype=np.float32))
    if noise == 0.0:
        return math.inf
    return 10.0 * math.log10(signal / noise) if signal else -math.inf


def rounded_values(weight: WeightParams) -> AnyArray:
    """What a weight's codes stand for."""
    return _dequantized(weight.codes(), weight.params.scale, weight.params.zero_point, weight.params)


def _dequantized(codes: AnyArray, scale: FloatArray, zero_point: IntArray, params: QuantParams) -> AnyArray:
    return dequantize_linear(
        codes,
        scale,
        zero_point.astype(np.dtype(params.dtype)),
        axis=0 if params.axis is None else params.axis,
        block_size=params.block_size,
    )


def _pieces(shape: tuple[int, ...], params: QuantParams) -> Iterator[tuple[slice, FloatArray, IntArray]]:
    """Runs of entries of axis 0, whole blocks of them, each with its part of the parameters."""
    if not shape:
        yield slice(None), params.scale, params.zero_point
        return
    axis = None if params.axis is None or params.scale.ndim == 0 else params.axis % len(shape)
    own = axis == 0 or (axis is not None and params.block_size > 0)
    block = max(params.block_size, 1) if axis == 0 else 1
    step = max(1, PIECE // max(1, math.prod(shape[1:])) // block) * block
    for start in range(0, shape[0], step):
        part = slice(start // block, -(-(start + step) // block)) if own else slice(None)
        zero_point = params.zero_point
        yield slice(start, start + step), _part(params.scale, part), _part(zero_point, part)


def _part(values: A, part: slice) -> A:
    return values[part] if values.ndim else values  # type: ignore[return-value]  # the same type


def _energy(values: FloatArray) -> float:
    flat = values.reshape(-1)
    whole = flat.size // 4096 * 4096
    rows = flat[:whole].reshape(-1, 4096)
    tail = flat[whole:]
    sums = np.einsum("ij,ij->i", rows, rows)
    return float(sums.sum(dtype=np.float64)) + float(np.einsum("i,i->", tail, tail))
