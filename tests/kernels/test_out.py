"""Results written into an array of the caller's: the same bits, and refusals in words."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from quantool.kernels import dequantize_linear, pack_lowbit, quantize_linear

F32 = np.float32
KINDS: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "one scale": ((), {}),
    "first axis": ((70,), {"axis": 0}),
    "last axis": ((65,), {"axis": 1}),
    "blocks": ((70, 3), {"axis": 1, "block_size": 32}),
}


@pytest.mark.parametrize("x_type", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int4", "uint2", "float8_e4m3fn"])
@pytest.mark.parametrize(("shape", "options"), KINDS.values(), ids=KINDS)
def test_out_receives_the_same_bits(x_type: str, dtype: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    x_dtype, code_type = np.dtype(getattr(ml_dtypes, x_type, x_type)), np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = np.random.default_rng(0).standard_normal((70, 65), dtype=F32).astype(x_dtype)
    scale, zero = np.full(shape, 0.05, x_dtype), np.zeros(shape, code_type)
    codes, back = np.ones(x.shape, code_type), np.ones(x.shape, x_dtype)
    assert quantize_linear(x, scale, zero, out=codes, **options) is codes
    assert codes.tobytes() == quantize_linear(x, scale, zero, **options).tobytes()
    assert dequantize_linear(codes, scale, zero, out=back, **options) is back
    assert back.tobytes() == dequantize_linear(codes, scale, zero, **options).tobytes()


def test_out_of_a_tensor_in_another_order_is_in_c_order() -> None:
    x = np.random.default_rng(0).standard_normal((30, 20), dtype=F32).T
    codes = np.empty(x.shape, np.int8)
    quantize_linear(x, F32(0.05), np.int8(3), out=codes)
    np.testing.assert_array_equal(codes, quantize_linear(np.ascontiguousarray(x), F32(0.05), np.int8(3)))


@pytest.mark.parametrize("elements", [0, 7, 300_001])
def test_packed_bytes_go_to_out(elements: int) -> None:
    codes = np.random.default_rng(0).integers(-8, 8, elements).astype(ml_dtypes.int4)
    packed = np.full(-(-elements // 2), 255, np.uint8)
    assert pack_lowbit(codes, out=packed) is packed
    np.testing.assert_array_equal(packed, pack_lowbit(codes))


X = np.zeros((2, 6), F32)
READ_ONLY = np.zeros((2, 6), np.uint8)
READ_ONLY.flags.writeable = False
REFUSALS = [
    ([[0] * 6] * 2, TypeError, r"out is a list; it must be a NumPy array"),
    (np.zeros((2, 6), np.int8), TypeError, r"out has dtype int8; allowed: uint8"),
    (np.zeros((6, 2), np.uint8), ValueError, r"out has shape \[6, 2\]; it must be \[2, 6\]"),
    (np.zeros((6, 2), np.uint8).T, ValueError, r"out is not C-contiguous or not writeable"),
    (READ_ONLY, ValueError, r"out is not C-contiguous or not writeable"),
    (X.reshape(-1).view(np.uint8)[:12].reshape(2, 6), ValueError, r"out shares memory"),
]


@pytest.mark.parametrize(("out", "error", "text"), REFUSALS, ids=lambda v: str(v)[:30])
def test_out_is_refused_in_words(out: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        quantize_linear(X, F32(1), out=out)


def test_dequantize_and_pack_refuse_too() -> None:
    codes = np.zeros((2, 6), np.int8)
    with pytest.raises(TypeError, match=r"out has dtype float64; allowed: float32"):
        dequantize_linear(codes, F32(1), out=np.zeros((2, 6)))
    with pytest.raises(ValueError, match=r"out has shape \[12\]; it must be \[6\]"):
        pack_lowbit(codes.astype(ml_dtypes.int4), out=np.zeros(12, np.uint8))
