"""Pack codes below 8 bits into bytes as tensor raw_data holds them, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from quantool.kernels.dtypes import Array, DTypeName, dtype_of, listed, output_array, require_dtype

_BITS: dict[np.dtype[Any], int] = {
    np.dtype(ml_dtypes.uint4): 4,
    np.dtype(ml_dtypes.int4): 4,
    np.dtype(ml_dtypes.float4_e2m1fn): 4,
    np.dtype(ml_dtypes.uint2): 2,
    np.dtype(ml_dtypes.int2): 2,
    np.dtype(ml_dtypes.float6_e2m3fn): 6,
    np.dtype(ml_dtypes.float6_e3m2fn): 6,
}

# Codes handled at once; a multiple of 4, so that a group of codes never spans two pieces.
PIECE = 1 << 17


def pack_lowbit(x: Array, *, out: Array | None = None) -> Array:
    """Pack 2-, 4- or 6-bit codes, low bits first, into ceil(bits * n / 8) bytes.

    x: uint4, int4, float4_e2m1fn, uint2, int2, float6_e2m3fn or float6_e3m2fn [*S], taken in C order. Returns
    uint8[ceil(bits * n / 8)]; the last byte is padded with zero bits. ``out``: where they go instead of a new array.

    Raises:
        TypeError: x has another type, or out is not uint8.
        ValueError: out has not that length, is not contiguous or overlaps x.
    """
    x = np.asarray(x)
    require_dtype(x, _BITS, argument="x")
    bits, codes = _BITS[x.dtype], np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    packed = output_array(out, (-(-bits * codes.size // 8),), np.dtype(np.uint8), inputs=(x,))
    for start in range(0, codes.size, PIECE):
        part = codes[start : start + PIECE]
        if part.size % 4:
            part = np.concatenate([part, np.zeros(-part.size % 4, np.uint8)])
        first = start * bits // 8
        target = packed[first : first + part.size * bits // 8]
        # The cast keeps the low byte of each group, where its codes have been gathered.
        np.copyto(target, _PACK[bits](part)[: target.size], casting="unsafe")
    return packed


def unpack_lowbit(packed: Array, *, dtype: DTypeName, shape: Sequence[int]) -> Array:
    """Undo :func:`pack_lowbit`.

    packed: uint8[ceil(bits * n / 8)]. Returns ``shape`` (n elements) in ``dtype``.

    Raises:
        TypeError: packed is not uint8, or dtype is not a type below 8 bits.
        ValueError: packed has not the length that the shape needs.
    """
    packed = np.asarray(packed)
    require_dtype(packed, (np.dtype(np.uint8),), argument="packed")
    kind = dtype_of(dtype, argument="dtype")
    if kind not in _BITS:
        raise TypeError(f"dtype is {kind}; allowed: {listed(_BITS)}.")
    bits, elements = _BITS[kind], math.prod(shape)
    needed = -(-bits * elements // 8)
    if packed.shape != (needed,):
        raise ValueError(f"packed has shape {list(packed.shape)}; {elements} elements of {kind} need [{needed}] bytes.")
    codes = np.empty(elements, np.uint8)
    for start in range(0, elements, PIECE):
        target = codes[start : start + PIECE]
        part = packed[start * bits // 8 : -(-(start + target.size) * bits // 8)]
        target[...] = _UNPACK[bits](part)[: target.size]
    return codes.view(kind).reshape(tuple(shape))


def _pack4(codes: Array) -> Array:
    pairs = codes.view("<u2") & np.uint16(0x0F0F)
    # Both codes meet in the high byte: 0x0h0l * 0x110 = 0xhl?? modulo 2**16.
    pairs *= np.uint16(0x0110)
    pairs >>= np.uint16(8)
    return pairs


def _pack2(codes: Array) -> Array:
    quads = codes.view("<u4") & np.uint32(0x03030303)
    quads |= quads >> np.uint32(6)
    quads |= quads >> np.uint32(12)
    return quads


def _pack6(codes: Array) -> Array:
    quads = codes.view("<u4")
    stream = np.zeros(quads.size, "<u4")
    for i in range(4):
        stream |= (quads >> np.uint32(8 * i) & np.uint32(0x3F)) << np.uint32(6 * i)
    triples: Array = stream.view(np.uint8).reshape(-1, 4)[:, :3]
    return triples.reshape(-1)


def _unpack4(packed: Array) -> Array:
    pairs = packed.astype("<u2")
    pairs |= pairs << np.uint16(4)
    pairs &= np.uint16(0x0F0F)
    return pairs.view(np.uint8)


def _unpack2(packed: Array) -> Array:
    quads = packed.astype("<u4")
    quads |= quads << np.uint32(12)
    quads |= quads << np.uint32(6)
    quads &= np.uint32(0x03030303)
    return quads.view(np.uint8)


def _unpack6(packed: Array) -> Array:
    padded = np.concatenate([packed, np.zeros(-packed.size % 3, np.uint8)])
    triples = padded.reshape(-1, 3).astype(np.uint32)
    stream = triples[:, 0] | triples[:, 1] << np.uint32(8) | triples[:, 2] << np.uint32(16)
    shifts = np.arange(0, 24, 6, dtype=np.uint32)
    codes: Array = (stream[:, None] >> shifts & np.uint32(0x3F)).astype(np.uint8)
    return codes.reshape(-1)


_PACK = {2: _pack2, 4: _pack4, 6: _pack6}
_UNPACK = {2: _unpack2, 4: _unpack4, 6: _unpack6}
