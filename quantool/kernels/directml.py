"""DirectML DML_ELEMENT_WISE_QUANTIZE_LINEAR: one scale and zero point an element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from quantool.kernels.dtypes import FLOAT16, FLOAT32, INT32, Array, DTypeName, dtype_of, listed, require_dtype
from quantool.kernels.onnx_linear import quantize_linear

_UINT8, _INT8 = np.dtype(np.uint8), np.dtype(np.int8)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevel:
    """What one DirectML feature level allows.

    Attributes:
        min_rank: least number of dimensions.
        max_rank: largest number of dimensions.
        inputs: types of the input.
        scales: types of the scale; it equals the input's, float32 for int32 input.
        outputs: types of the output and of the zero point.
        zero_point_optional: the zero point may be absent.
    """

    min_rank: int
    max_rank: int
    inputs: tuple[np.dtype[Any], ...]
    scales: tuple[np.dtype[Any], ...]
    outputs: tuple[np.dtype[Any], ...]
    zero_point_optional: bool = False


_MIXED = (FLOAT32, FLOAT16, INT32)
_BOTH = (_INT8, _UINT8)

# Source: the tensor support tables of DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC.
FEATURE_LEVELS: dict[str, FeatureLevel] = {
    "1.0": FeatureLevel(min_rank=4, max_rank=4, inputs=(FLOAT32,), scales=(FLOAT32,), outputs=(_UINT8,)),
    "2.1": FeatureLevel(min_rank=4, max_rank=4, inputs=(FLOAT32, INT32), scales=(FLOAT32,), outputs=_BOTH),
    "3.0": FeatureLevel(min_rank=1, max_rank=8, inputs=(FLOAT32, INT32), scales=(FLOAT32,), outputs=_BOTH),
    "6.0": FeatureLevel(min_rank=1, max_rank=8, inputs=_MIXED, scales=(FLOAT32, FLOAT16), outputs=_BOTH),
    "6.2": FeatureLevel(
        min_rank=1,
        max_rank=8,
        inputs=_MIXED,
        scales=(FLOAT32, FLOAT16),
        outputs=_BOTH,
        zero_point_optional=True,
    ),
}


def dml_quantize_linear(
    input: Array,  # DirectML calls it so, and the contract follows DirectML
    scale: Array,
    zero_point: Array | None = None,
    *,
    output_dtype: DTypeName,
    feature_level: str,
) -> Array:
    """Quantize with a scale and a zero point for each element: clamp(round(input / scale) + zero_point).

    input, scale, zero_point: one shape [*S]. Returns S in ``output_dtype``. The documents do not say how
    round treats ties; half to even is an assumption, as in ONNX, whose saturation is taken too. A scale of
    0 is undefined there. Float16 is divided in float32.

    Args:
        input: float32, float16 or int32, by feature level.
        scale: the input's type; float32 for int32 input.
        zero_point: of the output's type; may be absent from level 6.2 on.
        output_dtype: uint8, or from level 2.1 on int8.
        feature_level: "1.0", "2.1", "3.0", "6.0" or "6.2".

    Raises:
        TypeError: the feature level does not allow a type.
        ValueError: the feature level is unknown, does not allow the rank or a missing zero point, or shapes
            differ.
    """
    level = FEATURE_LEVELS.get(feature_level)
    if level is None:
        raise ValueError(f"feature_level is {feature_level!r}; allowed: {', '.join(FEATURE_LEVELS)}.")
    values, scale = np.asarray(input), np.asarray(scale)
    dtype = dtype_of(output_dtype, argument="output_dtype")
    _check_types(values, scale, dtype, level=level, name=feature_level)
    if not level.min_rank <= values.ndim <= level.max_rank:
        raise ValueError(
            f"input has rank {values.ndim}; feature level {feature_level} allows {level.min_rank} to {level.max_rank}."
        )
    if scale.shape != values.shape:
        raise ValueError(f"scale has shape {list(scale.shape)}; it must be the input's, {list(values.shape)}.")
    zero = _zero_point(zero_point, values, dtype, level=level, name=feature_level)
    codes = quantize_linear(
        values.reshape(-1).astype(FLOAT32),
        scale.reshape(-1).astype(FLOAT32),
        zero.reshape(-1),
        axis=0,
    )
    return codes.reshape(values.shape)


def _check_types(values: Array, scale: Array, dtype: np.dtype[Any], *, level: FeatureLevel, name: str) -> None:
    for argument, given, allowed in (
        ("input", values.dtype, level.inputs),
        ("scale", scale.dtype, level.scales),
        ("output_dtype", dtype, level.outputs),
    ):
        if given not in allowed:
            raise TypeError(f"{argument} is {given}; feature level {name} allows {listed(allowed)}.")
    wanted = FLOAT32 if values.dtype == INT32 else values.dtype
    if scale.dtype != wanted:
        raise TypeError(f"scale has dtype {scale.dtype}; for {values.dtype} input it must be {wanted}.")


def _zero_point(
    zero_point: Array | None, values: Array, dtype: np.dtype[Any], *, level: FeatureLevel, name: str
) -> Array:
    if zero_point is None:
        if not level.zero_point_optional:
            raise ValueError(f"zero_point is None; feature level {name} needs one, it is optional from 6.2 on.")
        return np.zeros(values.shape, dtype)
    zero_point = np.asarray(zero_point)
    require_dtype(zero_point, (dtype,), argument="zero_point")
    if zero_point.shape != values.shape:
        raise ValueError(
            f"zero_point has shape {list(zero_point.shape)}; it must be the input's, {list(values.shape)}."
        )
    return zero_point
