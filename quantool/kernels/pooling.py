"""com.microsoft QLinearAveragePool and QLinearGlobalAveragePool."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from quantool.kernels.dtypes import FLOAT32, Array
from quantool.kernels.integer_products import rescale_after_zero, rescale_before_zero
from quantool.kernels.microsoft_elementwise import Quantized, codes_of, quantized
from quantool.kernels.windows import Windows, per_axis, resolve_windows


def qlinear_global_average_pool(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    *,
    channels_last: int = 0,
) -> Array:
    """Mean over the spatial axes: RNE(f32(sum(x - zx)) * m) + zy with m = f32(sx / f32(sy * n)), saturated.

    x: uint8 or int8 [N, C, *D], or [N, *D, C] with channels_last. Returns the same rank with spatial sizes 1.

    Raises:
        TypeError: a type is not uint8 or int8, or they differ.
        ValueError: x has no spatial axis, or a scale or zero point more than one element.
    """
    x, px, py = _operands(x, quantized(x_scale, x_zero_point, argument="x"), y_scale, y_zero_point)
    axes = tuple(range(1, x.ndim - 1)) if channels_last else tuple(range(2, x.ndim))
    count = math.prod(x.shape[i] for i in axes)
    total = np.sum(x.astype(np.int64) - px.zero_point.astype(np.int64), axis=axes, keepdims=True)
    with np.errstate(all="ignore"):
        multiplier = px.scale / np.asarray(py.scale * np.float32(count))
        return rescale_before_zero(total.astype(FLOAT32) * multiplier, py.zero_point, py.zero_point.dtype)


def qlinear_average_pool(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int] | None = None,
    count_include_pad: int = 0,
    ceil_mode: int = 0,
) -> Array:
    """Mean over sliding windows: dequantize, add in window order in float32, divide, quantize.

    x: uint8 or int8 [N, C, *D]. Returns [N, C, *out]. With count_include_pad every sum is divided by the full
    kernel size, also where ceil_mode runs past the padded edge, else by the elements inside x.
    Rounded after zy is added.

    Raises:
        TypeError: a type is not uint8 or int8, or they differ.
        ValueError: a shape or an attribute does not fit.
    """
    x, px, py = _operands(x, quantized(x_scale, x_zero_point, argument="x"), y_scale, y_zero_point)
    sizes = x.shape[2:]
    kernel = per_axis(kernel_shape, len(sizes), argument="kernel_shape", default=1)
    windows = resolve_windows(sizes, kernel, strides=strides, pads=pads, dilations=None)
    out = tuple(_outputs(windows, i, size, ceil_mode) for i, size in enumerate(sizes))
    with np.errstate(all="ignore"):
        total = _window_sums(px.real(x), windows, out)
        if count_include_pad:
            count = np.full((), math.prod(kernel), FLOAT32)
        else:
            count = _window_sums(np.ones((1, 1, *sizes), FLOAT32), windows, out)
        return rescale_after_zero(total / count / py.scale, py.zero_point, py.zero_point.dtype)


def _operands(x: Array, px: Quantized, y_scale: Array, y_zero_point: Array) -> tuple[Array, Quantized, Quantized]:
    py = quantized(y_scale, y_zero_point, argument="y")
    if px.zero_point.dtype != py.zero_point.dtype:
        raise TypeError(f"y_zero_point has dtype {py.zero_point.dtype}; it must be x's, {px.zero_point.dtype}.")
    x = codes_of(x, px, argument="x")
    if x.ndim < 3:
        raise ValueError(f"x has shape {list(x.shape)}; it needs [N, C, *spatial].")
    return x, px, py


def _outputs(windows: Windows, axis: int, size: int, ceil_mode: int) -> int:
    room = size + windows.pads_begin[axis] + windows.pads_end[axis] - windows.extent(axis)
    step = windows.strides[axis]
    count = (-(-room // step) if ceil_mode else room // step) + 1
    # A window that would start in the padding behind is not one.
    if ceil_mode and (count - 1) * step >= size + windows.pads_begin[axis]:
        count -= 1
    return count


def _window_sums(values: Array, windows: Windows, out: tuple[int, ...]) -> Array:
    """Sums over the windows, element after element in row-major window order, zeros outside."""
    edges = []
    for axis, (size, count) in enumerate(zip(values.shape[2:], out, strict=True)):
        begin = windows.pads_begin[axis]
        reach = (count - 1) * windows.strides[axis] + windows.extent(axis)
        edges.append((begin, max(windows.pads_end[axis], reach - size - begin)))
    padded = np.pad(values, [(0, 0), (0, 0), *edges])
    total = np.zeros((*values.shape[:2], *out), FLOAT32)
    for offset in itertools.product(*(range(k) for k in windows.kernel)):
        picks = [slice(o, o + (n - 1) * s + 1, s) for o, n, s in zip(offset, out, windows.strides, strict=True)]
        total += padded[(slice(None), slice(None), *picks)]
    return total
