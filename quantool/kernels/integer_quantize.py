"""Quantize to integer codes with a float32 division: the hot loop of every command.

Each slab makes four or five passes over scratch that stays in cache: divide, rint, add, clip, cast.
Dividing, not multiplying by a reciprocal: the reciprocal differs after rounding on ties. np.clip, not
np.minimum with a scalar, which NumPy does not vectorize. A NaN costs nothing where there is none: it raises
the processor's invalid flag in the cast (or, as 0/0 and Inf/Inf, in the division), and only then the slab
is done again with NaN set to ``qmin``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

# The ufunc below np.clip: its two wrappers in Python cost a slab one fiftieth of its time.
from numpy._core.umath import clip  # type: ignore[attr-defined]  # not in the stubs

from quantool.kernels.dtypes import FLOAT16, FLOAT32, Array, IntegerGrid
from quantool.kernels.flat_reader import FlatReader
from quantool.kernels.granularity import SLAB_ELEMENTS, Layout, Slab, per_tensor_layout
from quantool.kernels.parameter_source import BROADCAST_RUN, ParameterSource
from quantool.kernels.slab_runner import run_over_slabs

# NumPy's ufuncs buffer a broadcast operand; a buffer no longer than a run spares the copies.
BROADCAST_BUFFER = 1024

# np.take makes 8-byte indices of a slab: of so few, they stay in the second-level cache.
TABLE_SLAB = 1 << 15


@dataclass(frozen=True, slots=True)
class IntegerJob:
    """One call: the tensor and its codes, both flat, and the float32 parameters.

    Attributes:
        x: the tensor, flat.
        codes: where the codes go, flat, in the grid's carrier type.
        scale: float32, in the layout's parameter shape.
        zero_point: float32, of the scale's shape or one element; None for zero.
        layout: which parameter belongs to which element.
        grid: the range of the codes.
        half_quotient: round the quotient to float16, as a division in that type does; x is float16 too.
    """

    x: Array | FlatReader
    codes: Array
    scale: Array
    zero_point: Array | None
    layout: Layout
    grid: IntegerGrid
    half_quotient: bool = False


def quantize_integer(job: IntegerJob, *, threads: int = 1) -> None:
    """Write clip(rint(x / scale) + zero_point, qmin, qmax) into ``job.codes``.

    x: float32[n] (float16, bfloat16, int32 are converted slab by slab). Ties go to even, Inf saturates, NaN
        becomes
    qmin: ONNX QuantizeLinear as ONNX Runtime computes it. Clamping before the zero point is added, as it
        does, and
    after, as here, is the same: both bounds are integers, and beyond 2**24 the sum saturates anyway.
    """

    def work(pieces: Iterable[Slab]) -> None:
        _quantize_slabs(job, pieces)

    run_over_slabs(job.layout, work, threads=threads)


class _Operands(NamedTuple):
    """What the passes over a slab take besides x: a thread's own sources, and the bounds.

    The bounds are 0-d arrays, which a ufunc takes without a conversion.
    """

    scales: ParameterSource
    zeros: ParameterSource | None
    low: Array
    high: Array


def _quantize_slabs(job: IntegerJob, pieces: Iterable[Slab]) -> None:
    operands = _Operands(
        ParameterSource(job.scale, job.layout),
        None if job.zero_point is None else ParameterSource(job.zero_point, job.layout),
        np.array(job.grid.qmin, FLOAT32),
        np.array(job.grid.qmax, FLOAT32),
    )
    scratch = np.empty(min(job.codes.size, SLAB_ELEMENTS), FLOAT32)
    with np.errstate(all="ignore", invalid="raise"):
        if job.layout.inner >= BROADCAST_RUN and job.scale.size > 1:
            np.setbufsize(BROADCAST_BUFFER)
        for slab in pieces:
            if slab.stop - slab.start > scratch.size:
                scratch = np.empty(slab.stop - slab.start, FLOAT32)
            _quantize_slab(job, slab, operands, scratch[: slab.stop - slab.start])


def _quantize_slab(job: IntegerJob, slab: Slab, operands: _Operands, scratch: Array) -> None:
    codes = job.codes[slab.start : slab.stop]
    try:
        _passes(job, slab, operands, scratch)
        codes[...] = scratch
    except FloatingPointError:
        with np.errstate(all="ignore"):
            _passes(job, slab, operands, scratch)
            scratch[np.isnan(scratch)] = job.grid.qmin
            codes[...] = scratch
    if job.grid.dtype != job.grid.carrier and job.grid.qmin < 0:
        # ml_dtypes keeps a code below 8 bits in the low bits of its byte, the rest zero.
        np.bitwise_and(codes, codes.dtype.type(job.grid.qmax - job.grid.qmin), out=codes)


def _passes(job: IntegerJob, slab: Slab, operands: _Operands, scratch: Array) -> None:
    """Everything but the cast: scratch holds integral float32 inside the grid, or NaN."""
    scales, zeros, low, high = operands
    x = job.x[slab.start : slab.stop]
    if x.dtype != FLOAT32:
        _widen(x, scratch)
        x = scratch
    scales.apply(np.divide, x, slab, scratch)
    if job.half_quotient:
        _round_to_half(scratch)
    np.rint(scratch, scratch)
    if zeros is not None:
        zeros.apply(np.add, scratch, slab, scratch)
    clip(scratch, low, high, scratch)


def _round_to_half(values: Array) -> None:
    """Round float32 in place to the 11 significant bits of float16, ties to even.

    A quotient of two float16 rounded to float32 first rounds to the same float16 (24 >= 2 * 11 + 2 bits). Values
    below float16's normal range stay below one half and values above it beyond every code, so their exact float16
    does not matter; NaN and Inf have no low bits to carry.
    """
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(13)) & np.uint32(1)
    odd += np.uint32(0x0FFF)
    np.add(bits, odd, out=bits)
    np.bitwise_and(bits, np.uint32(0xFFFFE000), out=bits)


def divisions_of(x: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
    """The types of the quotient that :func:`quantize_integer` can round to for an x of this type."""
    return (FLOAT32, FLOAT16) if x == FLOAT16 else (FLOAT32,)


@cache
def _half_to_single() -> Array:
    """float32 of each of the 65,536 float16 bit patterns: reading it is twice as fast as NumPy's cast."""
    table = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    table.flags.writeable = False
    return table


def _widen(x: Array, out: Array) -> None:
    """Convert a slab to float32, exactly but for int32, which rounds."""
    if x.dtype == FLOAT16:
        np.take(_half_to_single(), x.view(np.uint16), out=out, mode="clip")
    else:
        np.copyto(out, x, casting="unsafe")


def quantize_by_table(x: Array | FlatReader, codes: Array, *, table: Array, threads: int = 1) -> None:
    """Write ``table[bits of x]`` into ``codes``: x float16[n], table of 65,536 codes."""

    def work(pieces: Iterable[Slab]) -> None:
        for slab in pieces:
            bits = x[slab.start : slab.stop].view(np.uint16)
            np.take(table, bits, out=codes[slab.start : slab.stop], mode="clip")

    run_over_slabs(per_tensor_layout(codes.size), work, threads=threads, limit=TABLE_SLAB)
