"""com.microsoft MatMulNBits and GatherBlockQuantized: weights of 2, 4 and 8 bits in blocks."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from quantool.kernels.dtypes import FLOAT32, Array, require_dtype

UINT8 = np.dtype(np.uint8)
UINT4, INT4 = np.dtype(ml_dtypes.uint4), np.dtype(ml_dtypes.int4)
INDEX_TYPES = (np.dtype(np.int32), np.dtype(np.int64))
BIT_WIDTHS = (2, 4, 8)


def matmul_nbits(
    a: Array,
    b: Array,
    scales: Array,
    zero_points: Array | None = None,
    bias: Array | None = None,
    *,
    K: int,
    N: int,
    bits: int,
    block_size: int,
) -> Array:
    """Multiply float32 a by a weight kept in 2, 4 or 8 bits: a @ dequantize(b).T + bias.

    a: float32 [*, K]; b: uint8 [N, ceil(K / block_size), block_size * bits / 8], low bits first; scales:
        float32
    [N, blocks] or flat. zero_points: uint8 packed like b with each row padded to a byte, or float32 of the
    scales' shape (not for 8 bits); default 2**(bits - 1). Returns float32 [*, N]. The products are added in
    float64: ONNX Runtime's order of additions is its own (1e-5 on values of 50 at accuracy levels 0 and 1).

    Raises:
        TypeError: a type is not one of those allowed.
        ValueError: a shape or an attribute does not fit.
    """
    a, b, scales = np.asarray(a), np.asarray(b), np.asarray(scales)
    require_dtype(a, (FLOAT32,), argument="a")
    require_dtype(b, (UINT8,), argument="b")
    require_dtype(scales, (FLOAT32,), argument="scales")
    _check_nbits(bits, block_size)
    blocks = -(-K // block_size)
    if a.ndim == 0 or a.shape[-1] != K:
        raise ValueError(f"a has shape {list(a.shape)}; its last axis must be K = {K}.")
    if b.shape != (N, blocks, block_size * bits // 8):
        raise ValueError(
            f"b has shape {list(b.shape)}; it must be {[N, blocks, block_size * bits // 8]} for N = {N}, K = {K}, "
            f"{bits} bits in blocks of {block_size}."
        )
    if scales.size != N * blocks:
        raise ValueError(f"scales has shape {list(scales.shape)}; it must hold {[N, blocks]} elements.")
    codes = _unpack(b, bits).reshape(N, blocks, block_size).astype(FLOAT32)
    zero = _nbits_zero(zero_points, bits, (N, blocks))
    weight = ((codes - zero[..., None]) * scales.reshape(N, blocks, 1)).reshape(N, -1)[:, :K]
    values = (a.astype(np.float64) @ weight.T.astype(np.float64)).astype(FLOAT32)
    if bias is None:
        return values
    bias = np.asarray(bias)
    require_dtype(bias, (FLOAT32,), argument="bias")
    if bias.shape != (N,):
        raise ValueError(f"bias has shape {list(bias.shape)}; it must be [{N}].")
    result: Array = values + bias
    return result


def _check_nbits(bits: int, block_size: int) -> None:
    if bits not in BIT_WIDTHS:
        raise ValueError(f"bits is {bits}; allowed: {', '.join(map(str, BIT_WIDTHS))}.")
    if block_size < 16 or block_size & (block_size - 1):
        raise ValueError(f"block_size is {block_size}; it must be a power of two from 16 on.")


def _nbits_zero(zero_points: Array | None, bits: int, shape: tuple[int, int]) -> Array:
    """The zero points as float32 [N, blocks]."""
    if zero_points is None:
        return np.full(shape, 1 << (bits - 1), FLOAT32)
    zero_points = np.asarray(zero_points)
    require_dtype(zero_points, (UINT8, FLOAT32), argument="zero_points")
    rows, blocks = shape
    if zero_points.dtype == FLOAT32:
        if bits == 8:
            raise TypeError("zero_points has dtype float32; for 8 bits it must be uint8.")
        wanted = rows * blocks
    else:
        wanted = rows * -(-blocks * bits // 8)
    if zero_points.size != wanted:
        raise ValueError(f"zero_points has shape {list(zero_points.shape)}; it must hold {wanted} elements.")
    if zero_points.dtype == FLOAT32:
        return zero_points.reshape(shape)
    return _unpack(zero_points.reshape(rows, -1), bits)[:, :blocks].astype(FLOAT32)


def _unpack(packed: Array, bits: int) -> Array:
    """The codes of each byte along the last axis, low bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    result: Array = codes.reshape(*packed.shape[:-1], -1)
    return result


def gather_block_quantized(
    data: Array,
    indices: Array,
    scales: Array,
    zero_points: Array | None = None,
    *,
    block_size: int,
    gather_axis: int,
    quantize_axis: int,
    bits: int,
) -> Array:
    """Gather slices of a block-quantized table and dequantize them: (q - zp) * s in float32.

    data: uint4 or int4 [*S], or uint8 that holds 8-bit codes or, along the last axis, packed 2- or 4-bit
        ones;
    scales: float32, S with S[quantize_axis] divided by block_size, rounded up; zero_points: of the scales'
        shape,
    packed like data; default 0 for uint4 and int4 data, 2**(bits - 1) for uint8. indices: int32 or int64,
    negative ones from the end. Returns float32, S with S[gather_axis] replaced by the indices' shape.

    Raises:
        TypeError: a type is not one of those allowed.
        ValueError: a shape or an attribute does not fit, or an index is out of range.
    """
    data, indices, scales = np.asarray(data), np.asarray(indices), np.asarray(scales)
    require_dtype(data, (UINT8, UINT4, INT4), argument="data")
    require_dtype(indices, INDEX_TYPES, argument="indices")
    require_dtype(scales, (FLOAT32,), argument="scales")
    _check_nbits(bits, block_size)
    if data.dtype != UINT8 and bits != 4:
        raise ValueError(f"bits is {bits}; {data.dtype} data has 4.")
    if data.dtype == UINT8 and gather_axis != 0:
        raise ValueError(f"gather_axis is {gather_axis}; for uint8 data it must be 0.")
    codes = _table_codes(data, bits)
    quantize_axis = _axis(quantize_axis, codes.ndim, argument="quantize_axis")
    gather_axis = _axis(gather_axis, codes.ndim, argument="gather_axis")
    blocks = -(-codes.shape[quantize_axis] // block_size)
    wanted = (*codes.shape[:quantize_axis], blocks, *codes.shape[quantize_axis + 1 :])
    if scales.shape != wanted:
        raise ValueError(f"scales has shape {list(scales.shape)}; it must be {list(wanted)}.")
    rows = codes.shape[gather_axis]
    if indices.size and not -rows <= int(indices.min()) <= int(indices.max()) < rows:
        raise ValueError(f"indices reach from {indices.min()} to {indices.max()}; allowed: {-rows} to {rows - 1}.")
    zero = _gather_zero(zero_points, data, bits, wanted)
    block_of = np.arange(codes.shape[quantize_axis]) // block_size
    steps = codes - np.take(zero, block_of, axis=quantize_axis)
    real = steps * np.take(scales, block_of, axis=quantize_axis)
    return np.asarray(np.take(real, indices, axis=gather_axis))


def _table_codes(values: Array, bits: int) -> Array:
    if values.dtype == UINT8 and bits < 8:
        return _unpack(values, bits).astype(FLOAT32)
    return values.astype(FLOAT32)


def _gather_zero(zero_points: Array | None, data: Array, bits: int, shape: tuple[int, ...]) -> Array:
    if zero_points is None:
        return np.full(shape, 1 << (bits - 1) if data.dtype == UINT8 else 0, FLOAT32)
    zero_points = np.asarray(zero_points)
    require_dtype(zero_points, (data.dtype,), argument="zero_points")
    packed = data.dtype == UINT8 and bits < 8
    wanted = (*shape[:-1], -(-shape[-1] * bits // 8)) if packed else shape
    if zero_points.shape != wanted:
        raise ValueError(f"zero_points has shape {list(zero_points.shape)}; it must be {list(wanted)}.")
    return _table_codes(zero_points, bits)[..., : shape[-1]]


def _axis(axis: int, rank: int, *, argument: str) -> int:
    if not -rank <= axis < rank:
        raise ValueError(f"{argument} is {axis}; for rank {rank} it must be in [{-rank}, {rank - 1}].")
    return axis % rank
