"""Packing below 8 bits: unpacking undoes it, and the bits lie where ONNX's raw_data holds them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantool.kernels import pack_lowbit, unpack_lowbit

BITS = {
    "uint4": 4,
    "int4": 4,
    "uint2": 2,
    "int2": 2,
    "float4_e2m1fn": 4,
    "float6_e2m3fn": 6,
    "float6_e3m2fn": 6,
}
names = st.sampled_from(sorted(BITS))


def as_type(codes: np.ndarray, name: str) -> np.ndarray:
    return (codes & ((1 << BITS[name]) - 1)).astype(np.uint8).view(getattr(ml_dtypes, name))


@given(names, hnp.arrays(np.uint8, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9)))
def test_unpacking_undoes_packing(name: str, codes: np.ndarray) -> None:
    x = as_type(codes, name)
    packed = pack_lowbit(x)
    assert packed.dtype == np.uint8
    assert packed.shape == (-(-BITS[name] * x.size // 8),)
    back = unpack_lowbit(packed, dtype=name, shape=x.shape)
    assert back.dtype == x.dtype
    np.testing.assert_array_equal(back.view(np.uint8), x.view(np.uint8))


@given(names, hnp.arrays(np.uint8, st.integers(0, 40)))
def test_the_bits_form_a_little_endian_stream(name: str, codes: np.ndarray) -> None:
    x, bits = as_type(codes, name), BITS[name]
    stream = sum(int(code) << (bits * i) for i, code in enumerate(x.view(np.uint8)))
    assert pack_lowbit(x).tobytes() == stream.to_bytes(-(-bits * x.size // 8), "little")


@pytest.mark.parametrize("name", sorted(BITS))
def test_pieces_join_without_a_seam(name: str) -> None:
    codes = np.random.default_rng(2).integers(0, 256, (1 << 17) + 4099, dtype=np.uint8)
    x = as_type(codes, name)
    packed = pack_lowbit(x)
    np.testing.assert_array_equal(unpack_lowbit(packed, dtype=name, shape=x.shape).view(np.uint8), x.view(np.uint8))


def test_a_strided_tensor_is_packed_in_c_order() -> None:
    x = np.arange(-8, 7).astype(np.int8).reshape(3, 5).astype(ml_dtypes.int4).T
    np.testing.assert_array_equal(pack_lowbit(x), pack_lowbit(x.copy()))


def test_bad_requests_are_refused_in_words() -> None:
    with pytest.raises(TypeError, match=r"x has dtype int8; allowed: uint4, int4"):
        pack_lowbit(np.zeros(3, np.int8))
    with pytest.raises(TypeError, match=r"packed has dtype int8; allowed: uint8\."):
        unpack_lowbit(np.zeros(2, np.int8), dtype="int4", shape=(3,))
    with pytest.raises(TypeError, match=r"dtype is int8; allowed: uint4"):
        unpack_lowbit(np.zeros(2, np.uint8), dtype="int8", shape=(3,))
    with pytest.raises(ValueError, match=r"packed has shape \[3\]; 3 elements of int4 need \[2\] bytes"):
        unpack_lowbit(np.zeros(3, np.uint8), dtype="int4", shape=(3,))
