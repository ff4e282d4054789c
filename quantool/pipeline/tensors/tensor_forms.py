"""The formulas of `quantool tensor`: ONNX, TensorFlow and DirectML, each from an array to codes and back.

The integers come from `quantool.kernels`; here scales are made, given parameters checked, and the figures gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import ml_dtypes  # noqa: F401  # registers int4 and its kin as NumPy type names
import numpy as np

from quantool.elements import ELEMENTS, required_opset
from quantool.errors import OptionError
from quantool.formulas import compute
from quantool.kernels import (
    dequantize_linear,
    dml_quantize_linear,
    quantize_linear,
    tf_dequantize,
    tf_quantize_v2,
)
from quantool.kernels.directml import FEATURE_LEVELS
from quantool.kernels.dtypes import Array
from quantool.kernels.tensorflow_types import quantized_type
from quantool.pipeline.tensors.tensor_parameters import FLOAT32, Solved, Task, own_bounds, solve_parameters, spread

DEFAULT_OPSET: Final = 23
#: float16 and bfloat16 tensors
HALF_OPSET: Final = 19
#: opsets whose QuantizeLinear takes an int32 tensor with an int32 scale only
INT32_SCALE_OPSETS: Final = range(19, 23)
HALF_TO_EVEN, HALF_AWAY = "HALF_TO_EVEN", "HALF_AWAY_FROM_ZERO"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """Codes and the values that they stand for. opset, feature_level: None where the formula has none."""

    codes: Array
    real: Array
    solved: Solved
    opset: int | None = None
    feature_level: str | None = None
    expanded_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One family of formulas. refused: fields of a Task that it has no use for; codes: type name -> NumPy type."""

    quantize: Callable[[Array, Task], Coded]
    dequantize: Callable[[Array, Task], Coded]
    codes: Callable[[str], np.dtype[np.generic]]
    refused: tuple[str, ...]
    round_modes: tuple[str, ...]


# --- ONNX -----------------------------------------------------------------------------------------------


def _onnx_quantize(values: Array, task: Task) -> Coded:
    opset = _onnx_opset(values.dtype, task)
    solved = solve_parameters(values, task)
    axis = 1 if task.axis is None else task.axis
    scale, zero = solved.scale, solved.zero_point
    codes = quantize_linear(values, scale, zero, axis=axis, block_size=task.block_size, opset=opset)
    return _onnx_back(codes, task, solved, opset=opset)


def _onnx_dequantize(codes: Array, task: Task) -> Coded:
    opset = _onnx_opset(FLOAT32, task)
    return _onnx_back(codes, task, solve_parameters(None, task), opset=opset)


def _onnx_back(codes: Array, task: Task, solved: Solved, *, opset: int) -> Coded:
    axis = 1 if task.axis is None else task.axis
    # The reference's zero point of float4 means nothing to DequantizeLinear, and an int32 scale only to its inverse.
    scale = solved.scale.astype(FLOAT32) if solved.scale.dtype == np.int32 else solved.scale
    real = dequantize_linear(codes, scale, solved.zero_point, axis=axis, block_size=task.block_size)
    return Coded(codes=codes, real=real, solved=solved, opset=opset)


def _onnx_opset(dtype: np.dtype[np.generic], task: Task) -> int:
    """The opset asked for, else 23 or what the type needs; refused where it is too old."""
    needed = max(
        required_opset(task.dtype, per_axis=task.axis is not None, per_block=task.block_size > 0),
        HALF_OPSET if dtype.itemsize == 2 else 0,
    )
    opset = max(DEFAULT_OPSET, needed) if task.opset is None else task.opset
    if opset < needed:
        raise OptionError(
            "opset-too-old",
            f"{task.dtype} codes of a {dtype} tensor in this form need opset {needed}, not {opset}",
            where="--opset",
            fix=f"Use --opset {needed} or newer.",
        )
    if dtype == np.int32 and opset in INT32_SCALE_OPSETS:
        raise OptionError(
            "opset-without-form",
            f"at opset {opset} an int32 tensor takes an int32 scale only",
            where="--opset",
            fix="Use --opset 23, or one before 19.",
        )
    return opset


# --- TensorFlow -----------------------------------------------------------------------------------------


def _tf_quantize(values: Array, task: Task) -> Coded:
    kind = quantized_type(task.dtype)
    lo, hi = task.bounds or own_bounds(values, axis=task.axis, block_size=0)
    if not task.ensure_minimum_range and np.any((lo == 0) & (hi == 0)):
        raise OptionError(
            "empty-range",
            "TensorFlow leaves a range of width 0 undefined",
            where="--range",
            fix="Give --range, or --ensure-minimum-range 0.01.",
        )
    found = compute(
        task.formula,
        lo,
        hi,
        qmin=kind.lowest,
        qmax=kind.highest,
        # A narrow unsigned grid has no code for zero, which TensorFlow maps to 1; the factor is the same.
        narrow_range=task.narrow_range and kind.signed,
        ensure_minimum_range=task.ensure_minimum_range,
    )
    codes, low, high = tf_quantize_v2(
        values,
        lo,
        hi,
        T=task.dtype,
        mode=_mode(task),
        round_mode=task.round_mode or HALF_AWAY,
        narrow_range=task.narrow_range,
        axis=_tf_axis(task),
        ensure_minimum_range=task.ensure_minimum_range,
    )
    used = low.astype(np.float64), high.astype(np.float64)
    solved = Solved(
        scale=found.scale,
        zero_point=found.zero_point,
        used=used,
        reach=used,
        residual_shift=float(np.abs(found.residual_shift).max(initial=0.0)),
    )
    return Coded(codes=codes, real=_tf_real(codes, task, low, high), solved=solved)


def _tf_dequantize(codes: Array, task: Task) -> Coded:
    if task.bounds is None:
        raise OptionError(
            "missing-option",
            "TensorFlow's codes mean something only with their range",
            where="--range",
            fix="Give --range LO:HI, the range that quantizing printed.",
        )
    kind, (lo, hi) = quantized_type(task.dtype), task.bounds
    narrow = task.narrow_range and kind.signed
    found = compute(task.formula, lo, hi, qmin=kind.lowest, qmax=kind.highest, narrow_range=narrow)
    used = lo.astype(np.float64), hi.astype(np.float64)
    solved = Solved(scale=found.scale, zero_point=found.zero_point, used=used, reach=used)
    return Coded(codes=codes, real=_tf_real(codes, task, lo, hi), solved=solved)


def _tf_real(codes: Array, task: Task, lo: Array, hi: Array) -> Array:
    axis = _tf_axis(task)
    return tf_dequantize(codes, lo, hi, T=task.dtype, mode=_mode(task), narrow_range=task.narrow_range, axis=axis)


def _tf_axis(task: Task) -> int:
    """TensorFlow's -1 means none."""
    return -1 if task.axis is None else task.axis


def _mode(task: Task) -> str:
    return task.formula.removeprefix("tf-").replace("-", "_").upper()


# --- DirectML -------------------------------------------------------------------------------------------


def _dml_quantize(values: Array, task: Task) -> Coded:
    level = _level(task)
    solved = solve_parameters(values, task)
    scale, zero = _each_element(solved, values.shape, task)
    codes = dml_quantize_linear(values, scale, zero, output_dtype=task.dtype, feature_level=level)
    return _dml_back(codes, scale, zero, solved=solved, level=level)


def _dml_dequantize(codes: Array, task: Task) -> Coded:
    solved = solve_parameters(None, task)
    scale, zero = _each_element(solved, codes.shape, task)
    return _dml_back(codes, scale, zero, solved=solved, level=_level(task))


def _dml_back(codes: Array, scale: Array, zero: Array, *, solved: Solved, level: str) -> Coded:
    flat = dequantize_linear(codes.reshape(-1), scale.reshape(-1), zero.reshape(-1), axis=0)
    return Coded(
        codes=codes,
        real=flat.reshape(codes.shape),
        solved=solved,
        feature_level=level,
        expanded_bytes=scale.nbytes + zero.nbytes,
    )


def _level(task: Task) -> str:
    """The level asked for, else the newest."""
    return tuple(FEATURE_LEVELS)[-1] if task.feature_level is None else task.feature_level


def _each_element(solved: Solved, shape: tuple[int, ...], task: Task) -> tuple[Array, Array]:
    """Scale and zero point of the tensor's own sizes, as DirectML reads them."""
    parts = (solved.scale, solved.zero_point)
    spread_out = (spread(part, shape, axis=task.axis, block_size=task.block_size) for part in parts)
    scale, zero = (np.ascontiguousarray(np.broadcast_to(part, shape)) for part in spread_out)
    return scale, zero


# --- the table ------------------------------------------------------------------------------------------


def _element_codes(dtype: str) -> np.dtype[np.generic]:
    if dtype not in ELEMENTS:
        raise TypeError(f"dtype is {dtype!r}; allowed: {', '.join(ELEMENTS)}.")
    return np.dtype(dtype)


def _tf_codes(dtype: str) -> np.dtype[np.generic]:
    return quantized_type(dtype).dtype


_ONNX = Form(
    quantize=_onnx_quantize,
    dequantize=_onnx_dequantize,
    codes=_element_codes,
    refused=("feature_level",),
    round_modes=(HALF_TO_EVEN,),
)
_TENSORFLOW = Form(
    quantize=_tf_quantize,
    dequantize=_tf_dequantize,
    codes=_tf_codes,
    refused=("scale", "zero_point", "block_size", "opset", "feature_level"),
    round_modes=(HALF_AWAY, HALF_TO_EVEN),
)
_DIRECTML = Form(
    quantize=_dml_quantize,
    dequantize=_dml_dequantize,
    codes=_element_codes,
    refused=("opset",),
    round_modes=(HALF_TO_EVEN,),
)

FORMS: Final[Mapping[str, Form]] = MappingProxyType(
    {
        "onnx": _ONNX,
        "onnx-symmetric": _ONNX,
        "tf-min-combined": _TENSORFLOW,
        "tf-min-first": _TENSORFLOW,
        "tf-scaled": _TENSORFLOW,
        "directml": _DIRECTML,
    }
)
