"""QuantizeLinear and DequantizeLinear: edge rows, memory, refusals."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from quantool.kernels import dequantize_linear, dynamic_quantize_linear, quantize_linear

F32 = np.float32
INF, NAN = np.inf, np.nan

# x, scale, zero point, code (int8).
ROWS = [
    (0.0, 0.5, 0, 0),
    (-0.0, 0.5, 3, 3),
    (0.25, 0.5, 0, 0),
    (0.75, 0.5, 0, 2),
    (-0.25, 0.5, 1, 1),
    (1.25, 0.5, 1, 3),
    (1e-45, 1e-45, 0, 1),
    (INF, 0.5, 0, 127),
    (-INF, 0.5, 0, -128),
    (NAN, 0.5, 5, -128),
    (0.0, 0.0, 0, -128),
    (1.0, 0.0, 0, 127),
    (-1.0, 0.0, 0, -128),
    (INF, INF, 0, -128),
    (3e38, 1e-38, 0, 127),
    (1.0, -0.5, 0, -2),
    (100.0, 1.0, 100, 127),
    (-300.0, 1.0, 100, -128),
    (2.0**24 + 1, 1.0, -128, 127),
]


@pytest.mark.parametrize(("x", "scale", "zero", "code"), ROWS)
def test_edge_rows(x: float, scale: float, zero: int, code: int) -> None:
    assert quantize_linear(F32(x), F32(scale), np.int8(zero)) == code


@pytest.mark.parametrize("position", [0, 70_000, 299_999])
def test_one_nan_among_many_values_changes_only_its_own_code(position: int) -> None:
    x = np.random.default_rng(0).standard_normal(300_000, dtype=F32)
    clean = quantize_linear(x, F32(0.02), np.uint8(130))
    x[position] = NAN
    codes = quantize_linear(x, F32(0.02), np.uint8(130))
    clean[position] = 0
    np.testing.assert_array_equal(codes, clean)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1)])
def test_shapes_without_much_in_them(shape: tuple[int, ...]) -> None:
    codes = quantize_linear(np.ones(shape, F32), F32(0.5))
    assert (codes.shape, codes.dtype) == (shape, np.uint8)
    assert np.all(codes == 2)
    np.testing.assert_array_equal(dequantize_linear(codes, F32(0.5)), np.ones(shape, F32))


def test_arguments_are_left_as_they_were() -> None:
    x, scale, zero = np.ones((2, 3), F32), np.ones(3, F32), np.ones(3, np.int8)
    for array in (x, scale, zero):
        array.flags.writeable = False
    codes = quantize_linear(x, scale, zero)
    codes.flags.writeable = False
    dequantize_linear(codes, scale, zero)


def test_the_reference_sends_infinity_to_the_smallest_code() -> None:
    x = np.array([INF, 3e9, 1.0], F32)
    assert quantize_linear(x, F32(1), np.int8(0), profile="ref").tolist() == [-128, -128, 1]
    assert quantize_linear(x, F32(1), np.int8(-1), profile="ref").tolist() == [127, 127, 0]
    assert quantize_linear(x, F32(1), np.int8(0)).tolist() == [127, 127, 1]


@pytest.mark.parametrize("x_type", ["float32", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("kind", ["tensor", "axis", "block"])
def test_memory_is_the_output_and_a_few_slabs(x_type: str, kind: str) -> None:
    elements = 1 << 22
    dtype = getattr(ml_dtypes, x_type, x_type)
    x = np.ones((1024, elements // 1024), F32).astype(dtype)
    shape = {"tensor": (), "axis": (1024,), "block": (1024, elements // 1024 // 32)}[kind]
    scale_type = F32 if x_type == "int32" else dtype
    scale, zero = np.ones(shape, F32).astype(scale_type), np.zeros(shape, np.int8)
    options: dict[str, Any] = {"axis": 1 if kind == "block" else 0, "block_size": 32 if kind == "block" else 0}
    tracemalloc.start()
    codes = quantize_linear(x, scale, zero, **options)
    back = dequantize_linear(codes, scale, zero, **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Parameters in float32, and sixteen slabs of 128 Ki elements in up to 8 bytes.
    extra = peak - codes.nbytes - back.nbytes - 8 * scale.size
    assert extra <= 16 * 8 * (1 << 17)


def test_a_transposed_tensor_is_not_copied_as_a_whole() -> None:
    x = np.ones((2048, 2048), F32).T
    tracemalloc.start()
    codes = quantize_linear(x, F32(0.5))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - codes.nbytes <= x.nbytes // 2
    assert np.all(codes == 2)


def test_dynamic_quantization_of_nothing_zero_and_nan() -> None:
    y, scale, zero = dynamic_quantize_linear(np.zeros((0, 3), F32))
    assert (y.shape, float(scale), int(zero)) == ((0, 3), 1.0, 0)
    assert dynamic_quantize_linear(np.zeros(3, F32))[1] == 1
    assert dynamic_quantize_linear(np.zeros(3, F32), profile="ref")[1] == F32(1) / F32(255)
    y, scale, zero = dynamic_quantize_linear(np.array([NAN, -1, 4], F32))
    assert (y.tolist(), float(scale), int(zero)) == ([0, 0, 255], float(F32(5) / F32(255)), 51)
    with pytest.raises(ValueError, match=r"x has shape \[0\]; the reference evaluator refuses"):
        dynamic_quantize_linear(np.zeros(0, F32), profile="ref")


X = np.zeros((2, 5), F32)
ONE, S2, S3 = F32(1), np.ones(2, F32), np.ones(3, F32)

QUANTIZE_REFUSALS = [
    ((X.astype(np.float64), ONE), {}, TypeError, r"x has dtype float64; allowed: float32, float16, bfloat16, int32"),
    ((X, np.float64(1)), {}, TypeError, r"y_scale has dtype float64; allowed: float32, float16"),
    ((X, ONE, np.int32(0)), {}, TypeError, r"y_zero_point has dtype int32; allowed: uint8, int8"),
    ((X, ONE), {"output_dtype": "int32"}, TypeError, r"output_dtype is int32; allowed: uint8, int8"),
    ((X, ONE), {"output_dtype": "int9"}, TypeError, r"output_dtype is 'int9'; it must be a NumPy or ml_dtypes"),
    ((X, ONE), {"precision": "float64"}, ValueError, r"precision is float64; allowed: float32, float16, bfloat16"),
    ((X, ONE), {"opset": 9}, ValueError, r"opset is 9; QuantizeLinear is defined from 10 to 28"),
    ((X, ONE), {"profile": "tf"}, ValueError, r"profile is 'tf'; it must be 'ort' .* or 'ref'"),
    ((X, ONE), {"threads": 0}, ValueError, r"threads is 0; it must be at least 1"),
    ((X, S3), {}, ValueError, r"the scale has shape \[3\]; .* must be \[\] or \[5\]"),
    ((X, S2), {"axis": 2}, ValueError, r"axis is 2; .* rank 2 .* must be in \[-2, 1\]"),
    ((X, S2, np.zeros(1, np.int8)), {"axis": 0}, ValueError, r"y_zero_point has shape \[1\]; .* scale's, \[2\]"),
    ((X, ONE, np.int8(0)), {"output_dtype": "uint8"}, ValueError, r"output_dtype is uint8 but y_zero_point .* int8"),
    ((X, ONE), {"block_size": -1}, ValueError, r"block_size is -1; it must be 0"),
    ((X, ONE), {"block_size": 2}, ValueError, r"block_size is 2 beside a scalar scale"),
    ((X, np.ones((2, 2), F32)), {"block_size": 2}, ValueError, r"scale has shape \[2, 2\]; .* must be \[2, 3\]"),
    ((X, np.ones((2, 2), F32)), {}, ValueError, r"scale has shape \[2, 2\]; .* without block_size it must be"),
]


@pytest.mark.parametrize(("arguments", "options", "error", "text"), QUANTIZE_REFUSALS, ids=lambda v: str(v)[:40])
def test_quantize_refuses_in_words(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        quantize_linear(*arguments, **options)


C = np.zeros((2, 5), np.int8)
F8 = np.zeros(2, ml_dtypes.float8_e5m2)
DEQUANTIZE_REFUSALS = [
    ((X, ONE), {}, TypeError, r"x has dtype float32; allowed: uint8, int8"),
    ((C, np.float64(1)), {}, TypeError, r"x_scale has dtype float64; allowed: float32"),
    ((C, ONE), {"output_dtype": "int8"}, TypeError, r"output_dtype is int8; allowed: float32"),
    ((C, ONE, np.uint8(0)), {}, TypeError, r"x_zero_point has dtype uint8; it must be x's, int8"),
    ((F8, ONE, np.array(1, F8.dtype)), {}, ValueError, r"x_zero_point is 1.0; for float8_e5m2 it must be zero"),
    ((C, S2, np.zeros((), np.int8)), {"axis": 0}, ValueError, r"x_zero_point has shape \[\]; .* scale's, \[2\]"),
    ((C, S3), {}, ValueError, r"the scale has shape \[3\]"),
    ((C, ONE), {"profile": "x"}, ValueError, r"profile is 'x'"),
]


@pytest.mark.parametrize(("arguments", "options", "error", "text"), DEQUANTIZE_REFUSALS, ids=lambda v: str(v)[:40])
def test_dequantize_refuses_in_words(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        dequantize_linear(*arguments, **options)


def test_the_reference_takes_what_the_runtime_refuses() -> None:
    codes = quantize_linear(X, np.ones((2, 2), F32), np.zeros((2, 2), np.int8), axis=1, block_size=5, profile="ref")
    assert codes.shape == X.shape
    codes = quantize_linear(X, ONE, np.arange(5, dtype=np.int8), axis=1, profile="ref")
    assert codes[0].tolist() == [0, 1, 2, 3, 4]
    assert quantize_linear(X, ONE, np.int8(3), block_size=2, profile="ref").tolist() == [[3] * 5] * 2
