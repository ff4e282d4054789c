"""The integer, com.microsoft, TensorFlow and DirectML kernels refuse bad requests in words, and their edge rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from quantool import kernels as k

F32, U8, I8, I32 = np.float32, np.uint8, np.int8, np.int32
ONE = F32(1)


def u8(*shape: int) -> np.ndarray:
    return np.ones(shape, U8)


def i8(*shape: int) -> np.ndarray:
    return np.ones(shape, I8)


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, F32)


@dataclass(frozen=True)
class Refusal:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    text: str
    options: dict[str, Any] = field(default_factory=dict)
    error: type[Exception] = ValueError

    def __str__(self) -> str:
        return f"{self.function.__name__}-{self.text[:30]}"


Z8, ZI = U8(0), I8(0)
CONV = (u8(1, 2, 4, 4), u8(2, 2, 3, 3))
QCONV = (u8(1, 2, 4, 4), ONE, Z8, u8(2, 2, 3, 3), ONE, Z8, ONE, Z8)
MATMUL = (u8(3, 4), ONE, Z8, u8(4, 5), ONE, Z8, ONE, Z8)
UNARY = (u8(1, 2, 4, 4), ONE, Z8, ONE, Z8)
PAIR = (u8(3), ONE, Z8, u8(3), ONE, Z8, ONE, Z8)
NBITS = (f32(2, 32), np.zeros((3, 2, 8), U8), f32(3, 2))
NBITS_OPTIONS = {"K": 32, "N": 3, "bits": 4, "block_size": 16}
GATHER = (np.zeros((4, 32), U8), np.zeros(2, np.int64), f32(4, 2))
GATHER_OPTIONS = {"block_size": 16, "gather_axis": 0, "quantize_axis": 1, "bits": 8}
TF = (f32(2, 3), F32(-1), F32(1))
TFD = (u8(2, 3), F32(-1), F32(1))
FAKE = (f32(2, 3), F32(-1), F32(1))
DML = (f32(2, 3), f32(2, 3), u8(2, 3))


def swap(arguments: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*arguments[:index], value, *arguments[index + 1 :])


REFUSALS = [
    Refusal(k.matmul_integer, (f32(2, 2), u8(2, 2)), r"a has dtype float32; allowed: uint8, int8", error=TypeError),
    Refusal(k.matmul_integer, (u8(2, 3), u8(2, 3)), r"a has shape \[2, 3\] and b \[2, 3\]; they must multiply"),
    Refusal(
        k.matmul_integer, (u8(2, 2), u8(2, 2), ZI), r"a_zero_point has dtype int8; it must be uint8", error=TypeError
    ),
    Refusal(
        k.matmul_integer, (u8(2, 2), u8(2, 2), u8(2, 1)), r"a_zero_point has shape \[2, 1\]; ONNX Runtime takes one"
    ),
    Refusal(k.matmul_integer, (u8(2, 2), u8(2, 2), Z8, u8(2, 1)), r"b_zero_point has shape \[2, 1\]; .* one a column"),
    Refusal(
        k.matmul_integer,
        (u8(2, 2), u8(2, 2), u8(3, 1)),
        r"a_zero_point has shape \[3, 1\], which does not broadcast to \[2, 2\]",
        {"profile": "ref"},
    ),
    Refusal(k.qlinear_matmul, swap(MATMUL, 1, np.float64(1)), r"a_scale has dtype float64; allowed", error=TypeError),
    Refusal(k.qlinear_matmul, swap(MATMUL, 2, ZI), r"a_zero_point has dtype int8; it must be uint8", error=TypeError),
    Refusal(
        k.qlinear_matmul, swap(MATMUL, 7, ZI), r"a, b, y have dtypes uint8, uint8, int8; ONNX Runtime", error=TypeError
    ),
    Refusal(
        k.qlinear_matmul, swap(swap(MATMUL, 6, f32(3, 1)), 7, u8(3, 1)), r"y_scale has shape \[3, 1\]; ONNX Runtime"
    ),
    Refusal(k.qlinear_matmul, swap(MATMUL, 4, f32(5)), r"b_zero_point has shape \[\]; it must be the scale's, \[5\]"),
    Refusal(
        k.qlinear_matmul,
        (u8(1, 4), f32(3, 1), u8(3, 1), u8(4, 5), ONE, Z8, ONE, Z8),
        r"a_zero_point has shape \[3, 1\], which does not broadcast",
        {"profile": "ref"},
    ),
    Refusal(
        k.qlinear_matmul,
        swap(swap(MATMUL, 6, f32(2, 1, 1)), 7, u8(2, 1, 1)),
        r"parameters widen the product \[3, 5\] to \[2, 3, 5\]",
        {"profile": "ref"},
    ),
    Refusal(k.conv_integer, (u8(2, 2), u8(2, 2)), r"x has shape \[2, 2\] and w \[2, 2\]; both need"),
    Refusal(k.conv_integer, CONV, r"group is 3; .* divisible by group", {"group": 3}),
    Refusal(k.conv_integer, CONV, r"kernel_shape is \[2, 2\]; w has \[3, 3\]", {"kernel_shape": [2, 2]}),
    Refusal(k.conv_integer, CONV, r"strides is \[0, 1\]; it must hold 2 positive", {"strides": [0, 1]}),
    Refusal(k.conv_integer, CONV, r"pads is \[1, 1\]; it must hold 4 integers", {"pads": [1, 1]}),
    Refusal(k.conv_integer, CONV, r"dilations is \[1\]; it must hold 2", {"dilations": [1]}),
    Refusal(k.conv_integer, CONV, r"auto_pad is 'SAME'; allowed: 'NOTSET'", {"auto_pad": "SAME"}),
    Refusal(k.conv_integer, CONV, r"kernel_shape spans 5 elements, but only 4", {"dilations": [2, 1]}),
    Refusal(k.conv_integer, (*CONV, u8(2)), r"x_zero_point has shape \[2\]; it must be one element"),
    Refusal(k.conv_integer, (*CONV, Z8, u8(3)), r"w_zero_point has shape \[3, 1, 1, 1\], which does not broadcast"),
    Refusal(k.qlinear_conv, swap(QCONV, 4, f32(3)), r"w_scale has shape \[3\]; it must be \[\] or \[2\]"),
    Refusal(k.qlinear_conv, swap(QCONV, 1, f32(2)), r"x_scale has shape \[2\]; it must be one element"),
    Refusal(k.qlinear_conv, swap(QCONV, 6, np.float64(1)), r"y_scale has dtype float64", error=TypeError),
    Refusal(k.qlinear_conv, (*QCONV, np.ones(2)), r"B has dtype float64; allowed: int32", error=TypeError),
    Refusal(k.qlinear_conv, (*QCONV, np.ones(3, I32)), r"B has shape \[3\]; it must be \[2\]"),
    Refusal(k.qlinear_conv, QCONV, r"profile is 'x'", {"profile": "x"}),
    Refusal(k.cast_lowp, (u8(2),), r"x has dtype uint8; allowed: float32", {"to": "float8_e5m2"}, TypeError),
    Refusal(k.cast_lowp, (f32(2),), r"to is int8; allowed: float8", {"to": "int8"}, TypeError),
    Refusal(k.cast_lowp, (f32(2),), r"round_mode is 'up'; it applies", {"to": "float8_e5m2", "round_mode": "up"}),
    Refusal(k.cast_lowp, (f32(2),), r"round_mode is 'x'; allowed", {"to": "float8_e8m0fnu", "round_mode": "x"}),
    Refusal(k.qlinear_add, swap(PAIR, 0, i8(3)), r"a has dtype int8; allowed: uint8", error=TypeError),
    Refusal(k.qlinear_add, swap(PAIR, 2, u8(2)), r"a_zero_point has shape \[2\]; it must be one element"),
    Refusal(k.qlinear_mul, swap(PAIR, 7, ZI), r"dtypes a uint8, b uint8, y int8; all must be equal", error=TypeError),
    Refusal(k.qlinear_mul, swap(PAIR, 4, f32(2)), r"b_scale has shape \[2\]; it must be one element"),
    Refusal(k.qlinear_sigmoid, swap(UNARY, 4, ZI), r"dtypes x uint8, y int8; all must be equal", error=TypeError),
    Refusal(k.qlinear_softmax, UNARY, r"axis is 4; for rank 4 it must be in \[-4, 3\]", {"axis": 4}),
    Refusal(k.qlinear_global_average_pool, swap(UNARY, 0, u8(2, 2)), r"x has shape \[2, 2\]; it needs \[N, C"),
    Refusal(
        k.qlinear_global_average_pool,
        swap(UNARY, 4, ZI),
        r"y_zero_point has dtype int8; it must be x's",
        error=TypeError,
    ),
    Refusal(
        k.qlinear_average_pool,
        UNARY,
        r"kernel_shape is \[2\]; it must hold 2",
        {"kernel_shape": [2], "strides": [1, 1]},
    ),
    Refusal(k.qlinear_concat, (ONE, Z8, []), r"inputs is empty; it needs at least one", {"axis": 0}),
    Refusal(
        k.qlinear_concat,
        (ONE, Z8, [(i8(2), ONE, ZI)]),
        r"inputs\[0\] int8, y uint8; all must be",
        {"axis": 0},
        TypeError,
    ),
    Refusal(
        k.qlinear_where, (u8(2), u8(2), ONE, Z8, u8(2), ONE, Z8, ONE, Z8), r"condition has dtype uint8", error=TypeError
    ),
    Refusal(k.qgemm, swap(MATMUL[:6], 0, u8(3)), r"a has shape \[3\] and b \[4, 5\]; both must be matrices"),
    Refusal(k.qgemm, (*MATMUL[:6], None, ONE), r"y_scale and y_zero_point must be given together"),
    Refusal(k.qgemm, (*MATMUL[:6], np.ones(3, I32)), r"c has shape \[3\], which does not broadcast to \[3, 5\]"),
    Refusal(k.qgemm, (*MATMUL[:6], f32(5)), r"c has dtype float32; allowed: int32", error=TypeError),
    Refusal(k.matmul_integer_to_float, (u8(2, 3), u8(3, 2), ONE, f32(3)), r"b_scale has shape \[3\]; .* \[\] or \[2\]"),
    Refusal(
        k.dynamic_quantize_matmul, (u8(2, 3), u8(3, 2), ONE), r"x has dtype uint8; allowed: float32", error=TypeError
    ),
    Refusal(k.matmul_nbits, NBITS, r"bits is 3; allowed: 2, 4, 8", {**NBITS_OPTIONS, "bits": 3}),
    Refusal(k.matmul_nbits, NBITS, r"block_size is 24; it must be a power of two", {**NBITS_OPTIONS, "block_size": 24}),
    Refusal(k.matmul_nbits, NBITS, r"a has shape \[2, 32\]; its last axis must be K = 31", {**NBITS_OPTIONS, "K": 31}),
    Refusal(k.matmul_nbits, NBITS, r"b has shape \[3, 2, 8\]; it must be \[4, 2, 8\]", {**NBITS_OPTIONS, "N": 4}),
    Refusal(
        k.matmul_nbits, swap(NBITS, 2, f32(3, 3)), r"scales has shape \[3, 3\]; it must hold \[3, 2\]", NBITS_OPTIONS
    ),
    Refusal(k.matmul_nbits, (*NBITS, u8(3, 2)), r"zero_points has shape \[3, 2\]; it must hold 3", NBITS_OPTIONS),
    Refusal(k.matmul_nbits, (*NBITS, None, f32(2)), r"bias has shape \[2\]; it must be \[3\]", NBITS_OPTIONS),
    Refusal(
        k.matmul_nbits,
        (f32(2, 32), np.zeros((3, 2, 16), U8), f32(3, 2), f32(3, 2)),
        r"zero_points has dtype float32; for 8 bits it must be uint8",
        {**NBITS_OPTIONS, "bits": 8},
        TypeError,
    ),
    Refusal(
        k.gather_block_quantized, GATHER, r"gather_axis is 1; for uint8 data", {**GATHER_OPTIONS, "gather_axis": 1}
    ),
    Refusal(
        k.gather_block_quantized, GATHER, r"quantize_axis is 2; for rank 2", {**GATHER_OPTIONS, "quantize_axis": 2}
    ),
    Refusal(
        k.gather_block_quantized,
        swap(GATHER, 1, np.array([4])),
        r"indices reach from 4 to 4; .* -4 to 3",
        GATHER_OPTIONS,
    ),
    Refusal(
        k.gather_block_quantized, swap(GATHER, 2, f32(4, 3)), r"scales has shape \[4, 3\]; .*\[4, 2\]", GATHER_OPTIONS
    ),
    Refusal(
        k.gather_block_quantized,
        (*GATHER, u8(4, 3)),
        r"zero_points has shape \[4, 3\]; it must be \[4, 2\]",
        GATHER_OPTIONS,
    ),
    Refusal(
        k.gather_block_quantized,
        swap(GATHER, 0, np.zeros((4, 32), I8).astype(ml_dtypes.int4)),
        r"bits is 8; int4 data has 4",
        GATHER_OPTIONS,
    ),
    Refusal(k.tf_quantize_v2, TF, r"T is 'int4'; allowed: quint8, qint8", {"T": "int4"}, TypeError),
    Refusal(
        k.tf_quantize_v2, swap(TF, 0, u8(2)), r"input has dtype uint8; allowed: float32", {"T": "qint8"}, TypeError
    ),
    Refusal(k.tf_quantize_v2, TF, r"mode is 'MIN'; allowed: MIN_COMBINED", {"T": "qint8", "mode": "MIN"}),
    Refusal(k.tf_quantize_v2, TF, r"round_mode is 'UP'; allowed: HALF", {"T": "qint8", "round_mode": "UP"}),
    Refusal(
        k.tf_quantize_v2, TF, r"round_mode is HALF_TO_EVEN; mode MIN_CO", {"T": "qint8", "round_mode": "HALF_TO_EVEN"}
    ),
    Refusal(k.tf_quantize_v2, TF, r"axis is 2; for rank 2 it must be below 2", {"T": "qint8", "axis": 2}),
    Refusal(k.tf_quantize_v2, TF, r"min_range has shape \[\]; it must be \[3\] for axis 1", {"T": "qint8", "axis": 1}),
    Refusal(k.tf_quantize_v2, swap(TF, 1, np.float64(1)), r"min_range has dtype float64", {"T": "qint8"}, TypeError),
    Refusal(k.tf_quantize_v2, swap(TF, 1, F32(2)), r"min_range is 2.0 and max_range 1.0; max must not", {"T": "qint8"}),
    Refusal(k.tf_dequantize, TFD, r"input has dtype uint8; allowed: int8", {"T": "qint8"}, TypeError),
    Refusal(
        k.tf_dequantize,
        TFD,
        r"dtype is float16; allowed: float32, bfloat16",
        {"T": "quint8", "dtype": "float16"},
        TypeError,
    ),
    Refusal(
        k.tf_dequantize,
        TFD,
        r"dtype is bfloat16; mode SCALED gives float32 only",
        {"T": "quint8", "dtype": "bfloat16", "mode": "SCALED"},
    ),
    Refusal(k.tf_dequantize, TFD, r"axis is -2; it must be -1 \(none\) or an axis", {"T": "quint8", "axis": -2}),
    Refusal(
        k.tf_dequantize,
        TFD,
        r"axis is 0; mode MIN_FIRST takes no axis",
        {"T": "quint8", "axis": 0, "mode": "MIN_FIRST"},
    ),
    Refusal(k.tf_quantize_and_dequantize, FAKE, r"version is 1; allowed: 2, 3, 4", {"version": 1}),
    Refusal(k.tf_quantize_and_dequantize, FAKE, r"num_bits is 62; it must be 1 to 61", {"version": 2, "num_bits": 62}),
    Refusal(k.tf_quantize_and_dequantize, FAKE, r"axis is -2; for rank 2", {"version": 3, "axis": -2}),
    Refusal(
        k.tf_quantize_and_dequantize,
        FAKE,
        r"round_mode is 'HALF_UP'; allowed: HALF_TO_EVEN",
        {"version": 3, "round_mode": "HALF_UP"},
    ),
    Refusal(
        k.tf_quantize_and_dequantize,
        swap(FAKE, 1, F32(2)),
        r"input_min is 2.0 and input_max 1.0",
        {"version": 2, "range_given": True},
    ),
    Refusal(
        k.tf_quantize_and_dequantize,
        swap(FAKE, 1, f32(3)),
        r"input_min has shape \[3\]; version 4 with axis 1 needs \[\]",
        {"version": 4, "range_given": True, "axis": 1},
    ),
    Refusal(
        k.tf_quantize_and_dequantize, swap(FAKE, 1, 1.0), r"input_min has dtype float64", {"version": 2}, TypeError
    ),
    Refusal(
        k.dml_quantize_linear,
        DML,
        r"feature_level is '9'; allowed: 1.0, 2.1",
        {"output_dtype": "uint8", "feature_level": "9"},
    ),
    Refusal(
        k.dml_quantize_linear,
        DML,
        r"output_dtype is int16; feature level 6.2 allows int8, uint8",
        {"output_dtype": "int16", "feature_level": "6.2"},
        TypeError,
    ),
    Refusal(
        k.dml_quantize_linear,
        DML,
        r"input has rank 2; feature level 2.1 allows 4 to 4",
        {"output_dtype": "uint8", "feature_level": "2.1"},
    ),
    Refusal(
        k.dml_quantize_linear,
        (f32(2, 3), f32(2, 3)),
        r"zero_point is None; feature level 6.0 needs one",
        {"output_dtype": "uint8", "feature_level": "6.0"},
    ),
]


@pytest.mark.parametrize("case", REFUSALS, ids=str)
def test_a_bad_request_names_argument_value_and_what_is_allowed(case: Refusal) -> None:
    with pytest.raises(case.error, match=case.text):
        case.function(*case.arguments, **case.options)


def test_the_names_are_those_of_the_specification() -> None:
    assert k.__all__ == sorted(k.__all__)
    assert all(callable(getattr(k, name)) for name in k.__all__)
    assert len(k.__all__) == 28


def test_float8_matrices_follow_the_documented_formula() -> None:
    dtype = ml_dtypes.float8_e4m3fn
    a = np.array([[1.0, -2.0], [448.0, 448.0]]).astype(dtype)
    zero = np.zeros((), dtype)
    y = k.qlinear_matmul(a, F32(0.5), zero, a.T.copy(), F32(2), zero, F32(1), zero)
    want = np.clip(np.array([[5.0, -448.0], [-448.0, 401408.0]]), -448, 448).astype(dtype)
    assert y.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(y.astype(F32), want.astype(F32))


def test_a_product_over_nothing_is_the_zero_point() -> None:
    y = k.qlinear_matmul(u8(2, 0), ONE, Z8, u8(0, 3), ONE, Z8, ONE, U8(7))
    assert y.tolist() == [[7, 7, 7]] * 2


def test_integer_accumulators_wrap() -> None:
    depth = 1 << 16
    y = k.matmul_integer(np.full((1, depth), 255, U8), np.full((depth, 1), 255, U8))
    assert int(y[0, 0]) == (255 * 255 * depth + 2**31) % 2**32 - 2**31
