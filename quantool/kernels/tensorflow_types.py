"""What the three TensorFlow kernels share: quantized types, modes, ranges along an axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from quantool.kernels.dtypes import FLOAT32, Array, require_dtype

MODES = ("MIN_COMBINED", "MIN_FIRST", "SCALED")


@dataclass(frozen=True, slots=True)
class QuantizedType:
    """One of TensorFlow's quantized types.

    Attributes:
        dtype: the NumPy type of its codes.
        bits: width of a code.
    """

    dtype: np.dtype[Any]
    bits: int

    @property
    def signed(self) -> bool:
        """Whether codes can be negative."""
        return self.dtype.kind == "i"

    @property
    def lowest(self) -> int:
        """Smallest code."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def highest(self) -> int:
        """Largest code."""
        return self.lowest + (1 << self.bits) - 1


QUANTIZED_TYPES: dict[str, QuantizedType] = {
    "quint8": QuantizedType(np.dtype(np.uint8), 8),
    "qint8": QuantizedType(np.dtype(np.int8), 8),
    "quint16": QuantizedType(np.dtype(np.uint16), 16),
    "qint16": QuantizedType(np.dtype(np.int16), 16),
    "qint32": QuantizedType(np.dtype(np.int32), 32),
}


def quantized_type(T: str) -> QuantizedType:
    """The type called ``T``, with or without the leading q of TensorFlow's name, else TypeError."""
    found = QUANTIZED_TYPES.get(T if T.startswith("q") else f"q{T}")
    if found is None:
        raise TypeError(f"T is {T!r}; allowed: {', '.join(QUANTIZED_TYPES)}.")
    return found


def require_choice(value: str, allowed: tuple[str, ...], *, argument: str) -> None:
    """Raise ValueError unless the value is one of those allowed."""
    if value not in allowed:
        raise ValueError(f"{argument} is {value!r}; allowed: {', '.join(allowed)}.")


def range_bounds(
    low: Array, high: Array, *, shape: tuple[int, ...], axis: int, names: tuple[str, str]
) -> tuple[Array, Array]:
    """The bounds of a range, 1-D along ``axis`` or 0-d where there is no axis or it has one entry.

    Raises:
        TypeError: a bound is not float32.
        ValueError: axis is not below the rank, or a bound has the wrong number of elements.
    """
    if axis >= len(shape):
        raise ValueError(f"axis is {axis}; for rank {len(shape)} it must be below {len(shape)}.")
    wanted = shape[axis] if axis >= 0 else 1
    bounds = []
    for name, value in zip(names, (low, high), strict=True):
        bound = np.asarray(value)
        require_dtype(bound, (FLOAT32,), argument=name)
        if bound.size != wanted or (axis >= 0 and bound.ndim != 1):
            needed = f"[{wanted}] for axis {axis}" if axis >= 0 else "one element without axis"
            raise ValueError(f"{name} has shape {list(bound.shape)}; it must be {needed}.")
        bounds.append(bound.reshape(()) if wanted == 1 else bound)
    return bounds[0], bounds[1]


def along_axis(values: Array, *, rank: int, axis: int) -> Array:
    """A 1-D array shaped so that it broadcasts along one axis; a 0-d array as it is."""
    return values if values.ndim == 0 else values.reshape(-1, *(1,) * (rank - 1 - axis))
