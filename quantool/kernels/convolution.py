"""ONNX ConvInteger-10 and QLinearConv-10."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantool.kernels.dtypes import FLOAT32, INT32, Array, require_dtype, require_profile
from quantool.kernels.integer_products import (
    centered,
    require_int8,
    rescale_after_zero,
    rescale_before_zero,
    wrap_int32,
)
from quantool.kernels.windows import resolve_windows, window_view


@dataclass(frozen=True, slots=True)
class ConvAttributes:
    """The attributes of ONNX Conv; None takes the operator's default."""

    strides: Sequence[int] | None
    pads: Sequence[int] | None
    dilations: Sequence[int] | None
    group: int
    auto_pad: str
    kernel_shape: Sequence[int] | None


def conv_integer(
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
    *,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    auto_pad: str = "NOTSET",
    kernel_shape: Sequence[int] | None = None,
) -> Array:
    """Convolve integers in int32, wrapping: conv(x - x_zero_point, w - w_zero_point).

    x: uint8 or int8 [N, C, *D]; w: uint8 or int8 [M, C / group, *K]. x_zero_point: []; w_zero_point: [] or
        [M].
    Returns int32 [N, M, *out]. Padding is zero after centering, that is, x_zero_point before.

    Raises:
        TypeError: an operand is not of 8 bits, or a zero point not of its operand's type.
        ValueError: a shape or an attribute does not fit.
    """
    attributes = ConvAttributes(strides, pads, dilations, group, auto_pad, kernel_shape)
    return _accumulate(x, w, x_zero_point, w_zero_point, attributes=attributes)


def qlinear_conv(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: Array,
    w_scale: Array,
    w_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    B: Array | None = None,
    *,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    auto_pad: str = "NOTSET",
    kernel_shape: Sequence[int] | None = None,
    profile: str = "ort",
) -> Array:
    """Convolve quantized tensors and quantize the result.

    Operands as :func:`conv_integer`; scales float32, w_scale [] or [M]; B: int32 [M] with scale x_scale *
    w_scale. Returns [N, M, *out] in y_zero_point's type. Rescaled as :func:`qlinear_matmul` does for the
    same profile. The reference puts a per-channel w_scale on a wrong axis unless the convolution is 2-D;
    here it is on axis 1.

    Raises:
        TypeError: a type is not one of those allowed.
        ValueError: a shape, an attribute or the profile does not fit.
    """
    require_profile(profile)
    attributes = ConvAttributes(strides, pads, dilations, group, auto_pad, kernel_shape)
    y_zero = require_int8(y_zero_point, argument="y_zero_point")
    acc = _accumulate(x, w, x_zero_point, w_zero_point, attributes=attributes)
    channels, spatial = acc.shape[1], acc.ndim - 2
    if B is not None:
        bias = np.asarray(B)
        require_dtype(bias, (INT32,), argument="B")
        if bias.shape != (channels,):
            raise ValueError(f"B has shape {list(bias.shape)}; it must be [{channels}].")
        acc = wrap_int32(acc.astype(np.int64) + bias.reshape(-1, *(1,) * spatial))
    scales = [
        _scale(x_scale, 1, argument="x_scale"),
        _scale(w_scale, channels, argument="w_scale"),
        _scale(y_scale, 1, argument="y_scale"),
    ]
    with np.errstate(all="ignore"):
        multiplier = (scales[0] * scales[1] / scales[2]).reshape(-1, *(1,) * spatial)
        if profile == "ort":
            return rescale_before_zero(acc.astype(FLOAT32) * multiplier, y_zero, y_zero.dtype)
        return rescale_after_zero(acc * multiplier.astype(np.float64), y_zero, y_zero.dtype)


def _scale(scale: Array, channels: int, *, argument: str) -> Array:
    scale = np.asarray(scale)
    require_dtype(scale, (FLOAT32,), argument=argument)
    if scale.size != 1 and scale.shape != (channels,):
        wanted = "one element" if channels == 1 else f"[] or [{channels}]"
        raise ValueError(f"{argument} has shape {list(scale.shape)}; it must be {wanted}.")
    return scale.reshape(-1)


def _accumulate(
    x: Array,
    w: Array,
    x_zero_point: Array | None,
    w_zero_point: Array | None,
    *,
    attributes: ConvAttributes,
) -> Array:
    x, w = require_int8(x, argument="x"), require_int8(w, argument="w")
    if x.ndim < 3 or x.ndim != w.ndim:
        raise ValueError(
            f"x has shape {list(x.shape)} and w {list(w.shape)}; both need [N or M, C, *spatial] of equal rank."
        )
    group = attributes.group
    if group < 1 or x.shape[1] != w.shape[1] * group or w.shape[0] % group:
        raise ValueError(
            f"group is {group}; x of shape {list(x.shape)} and w of shape {list(w.shape)} need C = {w.shape[1]} * "
            "group and M divisible by group."
        )
    kernel = w.shape[2:]
    if attributes.kernel_shape is not None and tuple(attributes.kernel_shape) != kernel:
        raise ValueError(f"kernel_shape is {list(attributes.kernel_shape)}; w has {list(kernel)}.")
    x_zero = None if x_zero_point is None else np.asarray(x_zero_point)
    if x_zero is not None and x_zero.size != 1:
        raise ValueError(f"x_zero_point has shape {list(x_zero.shape)}; it must be one element.")
    w_zero = None if w_zero_point is None else np.asarray(w_zero_point)
    if w_zero is not None and w_zero.ndim == 1:
        w_zero = w_zero.reshape(-1, *(1,) * (w.ndim - 1))
    return _convolve(
        centered(x, x_zero, argument="x_zero_point"),
        centered(w, w_zero, argument="w_zero_point"),
        attributes,
    )


def _convolve(x: Array, w: Array, attributes: ConvAttributes) -> Array:
    """Convolution of exact float64 integers by one matrix product a group; int32, wrapping."""
    kernel, group = w.shape[2:], attributes.group
    windows = resolve_windows(
        x.shape[2:],
        kernel,
        strides=attributes.strides,
        pads=attributes.pads,
        dilations=attributes.dilations,
        auto_pad=attributes.auto_pad,
    )
    edges = list(zip(windows.pads_begin, windows.pads_end, strict=True))
    view = window_view(np.pad(x, [(0, 0), (0, 0), *edges]), windows)
    batch, channels = x.shape[:2]
    out = view.shape[2 : 2 + len(kernel)]
    depth = channels // group * math.prod(kernel)
    columns = np.moveaxis(view.reshape(batch, group, -1, math.prod(out), math.prod(kernel)), 3, 2)
    rows = w.reshape(group, -1, depth)
    product = rows @ np.swapaxes(columns.reshape(batch, group, -1, depth), 2, 3)
    return wrap_int32(product).reshape(batch, -1, *out)
