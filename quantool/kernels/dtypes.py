"""The element types of the quantization operators: their names, ranges and families."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
DTypeName: TypeAlias = str | np.dtype[Any] | type[np.generic]


@dataclass(frozen=True, slots=True)
class IntegerGrid:
    """The codes of one integer type: ``qmin`` to ``qmax``, in arrays of ``dtype``.

    Attributes:
        dtype: the type of the codes, an ml_dtypes type below 8 bits.
        carrier: the NumPy type of the same sign in which codes are computed; ``dtype`` from 8 bits on.
        qmin: smallest code.
        qmax: largest code.
    """

    dtype: np.dtype[Any]
    carrier: np.dtype[Any]
    qmin: int
    qmax: int


FLOAT32 = np.dtype(np.float32)
FLOAT16 = np.dtype(np.float16)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INT32 = np.dtype(np.int32)
FLOAT8_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
FLOAT4 = np.dtype(ml_dtypes.float4_e2m1fn)

FLOAT8 = frozenset(
    np.dtype(t)
    for t in (
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e5m2fnuz,
    )
)
SMALL_FLOAT = frozenset(
    np.dtype(t) for t in (ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn)
)


def _grid(dtype: DTypeName, carrier: DTypeName, *, bits: int) -> IntegerGrid:
    signed = np.dtype(carrier).kind == "i"
    qmin = -(1 << (bits - 1)) if signed else 0
    return IntegerGrid(np.dtype(dtype), np.dtype(carrier), qmin, qmin + (1 << bits) - 1)


# The integer types of QuantizeLinear-25.
INTEGER_GRIDS: dict[np.dtype[Any], IntegerGrid] = {
    grid.dtype: grid
    for grid in (
        _grid(np.uint8, np.uint8, bits=8),
        _grid(np.int8, np.int8, bits=8),
        _grid(np.uint16, np.uint16, bits=16),
        _grid(np.int16, np.int16, bits=16),
        _grid(ml_dtypes.uint4, np.uint8, bits=4),
        _grid(ml_dtypes.int4, np.int8, bits=4),
        _grid(ml_dtypes.uint2, np.uint8, bits=2),
        _grid(ml_dtypes.int2, np.int8, bits=2),
    )
}

QUANTIZED = (*INTEGER_GRIDS, *sorted((*FLOAT8, *SMALL_FLOAT), key=str))

# Two spellings that ml_dtypes writes with a longer name.
_ALIASES = {"float4_e2m1": "float4_e2m1fn", "float8_e8m0": "float8_e8m0fnu"}


def _resolve(name: DTypeName) -> np.dtype[Any] | None:
    if isinstance(name, str):
        name = getattr(ml_dtypes, _ALIASES.get(name, name), name)
    try:
        return np.dtype(name)
    except TypeError:
        return None


def dtype_of(name: DTypeName, *, argument: str) -> np.dtype[Any]:
    """The NumPy dtype called ``name``, ml_dtypes names included.

    Raises:
        TypeError: no such type; the text names ``argument`` and the value.
    """
    found = _resolve(name)
    if found is None:
        raise TypeError(f"{argument} is {name!r}; it must be a NumPy or ml_dtypes type name such as 'int8'.")
    return found


def listed(dtypes: Any) -> str:
    """The names of some dtypes, for an error text."""
    return ", ".join(str(np.dtype(d)) for d in dtypes)


def require_dtype(array: Array, allowed: Any, *, argument: str) -> None:
    """Raise TypeError unless the array has one of the allowed dtypes."""
    if array.dtype not in allowed:
        raise TypeError(f"{argument} has dtype {array.dtype}; allowed: {listed(allowed)}.")


def output_array(out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any], *, inputs: Iterable[Array]) -> Array:
    """A new array, or ``out`` where the caller gave one that the result can be written into.

    Raises:
        TypeError: out is not an array, or not of ``dtype``.
        ValueError: out is not of ``shape``, not C-contiguous, not writeable, or overlaps an input.
    """
    if out is None:
        return np.empty(shape, dtype)
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out is a {type(out).__name__}; it must be a NumPy array.")
    require_dtype(out, (dtype,), argument="out")
    if out.shape != shape:
        raise ValueError(f"out has shape {list(out.shape)}; it must be {list(shape)}.")
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise ValueError("out is not C-contiguous or not writeable; it must be both.")
    if any(np.may_share_memory(out, array) for array in inputs):
        raise ValueError("out shares memory with an input; it must be memory of its own.")
    return out


def require_profile(profile: str) -> None:
    """Raise ValueError unless the profile names one of the two oracles."""
    if profile not in ("ort", "ref"):
        raise ValueError(f"profile is {profile!r}; it must be 'ort' (ONNX Runtime) or 'ref' (onnx reference).")
