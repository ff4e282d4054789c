"""com.microsoft operators that work element by element on quantized tensors.

Each predicts what ONNX Runtime on CPU computes; there is no other implementation. Operands are uint8 or int8,
scales float32, one scale and zero point a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from quantool.kernels.dtypes import FLOAT32, Array, require_dtype
from quantool.kernels.integer_products import require_int8, rescale_after_zero, rescale_before_zero


@dataclass(frozen=True, slots=True)
class Quantized:
    """Scale and zero point of one tensor, checked; 0-d float32 and 0-d of the codes' type."""

    scale: Array
    zero_point: Array

    def real(self, codes: Array) -> Array:
        """The real values of codes, in float32."""
        steps = codes.astype(FLOAT32) - self.zero_point.astype(FLOAT32)
        result: Array = steps * self.scale
        return result

    def codes(self, real: Array) -> Array:
        """The codes of float32 values, rounded before the zero point is added."""
        with np.errstate(all="ignore"):
            return rescale_before_zero(real / self.scale, self.zero_point, self.zero_point.dtype)

    def all_codes(self) -> Array:
        """Every code of the type in the order of its unsigned bit pattern: the index of a table."""
        return np.arange(256, dtype=np.uint8).view(self.zero_point.dtype)


def quantized(scale: Array, zero_point: Array, *, argument: str) -> Quantized:
    """Check the parameters of the tensor ``argument``: one float32 scale, one zero point of 8 bits."""
    scale, zero_point = np.asarray(scale), require_int8(zero_point, argument=f"{argument}_zero_point")
    require_dtype(scale, (FLOAT32,), argument=f"{argument}_scale")
    for name, value in (("scale", scale), ("zero_point", zero_point)):
        if value.size != 1:
            raise ValueError(f"{argument}_{name} has shape {list(value.shape)}; it must be one element.")
    return Quantized(scale.reshape(()), zero_point.reshape(()))


def codes_of(x: Array, parameters: Quantized, *, argument: str) -> Array:
    """The argument as codes of its zero point's type, else TypeError."""
    x = np.asarray(x)
    require_dtype(x, (parameters.zero_point.dtype,), argument=argument)
    return x


def _require_one_type(parameters: dict[str, Quantized]) -> None:
    types = {name: p.zero_point.dtype for name, p in parameters.items()}
    if len(set(types.values())) > 1:
        given = ", ".join(f"{name} {dtype}" for name, dtype in types.items())
        raise TypeError(f"the zero points have dtypes {given}; all must be equal.")


def qlinear_add(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
) -> Array:
    """Add two quantized tensors that broadcast against each other, one type throughout.

    RNE(fma(a, ra, fma(b, rb, c))) with ra = sa / sy, rb = sb / sy, c = zy - (ra * za + rb * zb), all
    float32. A fused multiply-add rounds once; float64 holds the product of a code and a float32 exactly.

    Raises:
        TypeError: a type is not uint8 or int8, or they differ.
        ValueError: a scale or zero point has more than one element.
    """
    pa, pb, py = _binary_parameters(
        a_scale, a_zero_point, b_scale, b_zero_point, y=quantized(y_scale, y_zero_point, argument="y")
    )
    a, b = codes_of(a, pa, argument="a"), codes_of(b, pb, argument="b")
    with np.errstate(all="ignore"):
        ra, rb = pa.scale / py.scale, pb.scale / py.scale
        offset = ra * pa.zero_point.astype(FLOAT32) + rb * pb.zero_point.astype(FLOAT32)
        constant = py.zero_point.astype(FLOAT32) - offset
        inner = _fused(b, rb, constant)
        values = _fused(a, ra, inner)
        return rescale_after_zero(values, np.zeros((), FLOAT32), py.zero_point.dtype)


def _fused(codes: Array, factor: Array, addend: Array) -> Array:
    product = codes.astype(np.float64) * factor.astype(np.float64)
    return np.asarray(product + addend.astype(np.float64)).astype(FLOAT32)


def qlinear_mul(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
) -> Array:
    """Multiply two quantized tensors that broadcast against each other, one type throughout.

    RNE(f32(f32((a - za) * (b - zb)) * s) + zy) with s = f32(f32(sa * sb) / sy): rounded after zy is added.

    Raises:
        TypeError: a type is not uint8 or int8, or they differ.
        ValueError: a scale or zero point has more than one element.
    """
    pa, pb, py = _binary_parameters(
        a_scale, a_zero_point, b_scale, b_zero_point, y=quantized(y_scale, y_zero_point, argument="y")
    )
    a, b = codes_of(a, pa, argument="a"), codes_of(b, pb, argument="b")
    with np.errstate(all="ignore"):
        steps_a = a.astype(FLOAT32) - pa.zero_point.astype(FLOAT32)
        steps_b = b.astype(FLOAT32) - pb.zero_point.astype(FLOAT32)
        values = np.asarray(steps_a * steps_b * (pa.scale * pb.scale / py.scale))
        return rescale_after_zero(values, py.zero_point, py.zero_point.dtype)


def _binary_parameters(
    a_scale: Array, a_zero_point: Array, b_scale: Array, b_zero_point: Array, *, y: Quantized
) -> tuple[Quantized, Quantized, Quantized]:
    pa = quantized(a_scale, a_zero_point, argument="a")
    pb = quantized(b_scale, b_zero_point, argument="b")
    _require_one_type({"a": pa, "b": pb, "y": y})
    return pa, pb, y


def qlinear_sigmoid(x: Array, x_scale: Array, x_zero_point: Array, y_scale: Array, y_zero_point: Array) -> Array:
    """Sigmoid by a table of 256 codes: Quantize(1 / (1 + exp(-Dequantize(x)))).

    ONNX Runtime approximates exp, so a code may differ from its by one.

    Raises:
        TypeError: a type is not uint8 or int8, or they differ.
        ValueError: a scale or zero point has more than one element.
    """
    return _by_table(
        x,
        quantized(x_scale, x_zero_point, argument="x"),
        quantized(y_scale, y_zero_point, argument="y"),
        lambda real: (1 / (1 + np.exp(-real.astype(np.float64)))).astype(FLOAT32),
    )


def qlinear_leaky_relu(
    x: Array, x_scale: Array, x_zero_point: Array, y_scale: Array, y_zero_point: Array, *, alpha: float = 0.01
) -> Array:
    """LeakyRelu by a table of 256 codes: Quantize(v if v >= 0 else alpha * v), v = Dequantize(x).

    Raises:
        TypeError: a type is not uint8 or int8, or they differ.
        ValueError: a scale or zero point has more than one element.
    """
    return _by_table(
        x,
        quantized(x_scale, x_zero_point, argument="x"),
        quantized(y_scale, y_zero_point, argument="y"),
        lambda real: np.where(real >= 0, real, real * np.float32(alpha)),
    )


def _by_table(x: Array, px: Quantized, py: Quantized, function: Callable[[Array], Array]) -> Array:
    _require_one_type({"x": px, "y": py})
    x = codes_of(x, px, argument="x")
    with np.errstate(all="ignore"):
        table = py.codes(function(px.real(px.all_codes())))
    result: Array = table[x.view(np.uint8)]
    return result


def qlinear_softmax(
    x: Array, x_scale: Array, x_zero_point: Array, y_scale: Array, y_zero_point: Array, *, axis: int = -1
) -> Array:
    """Softmax along one axis of Dequantize(x), quantized again.

    ONNX Runtime adds integer tables of exp, so a code may differ from its by one.

    Raises:
        TypeError: a type is not uint8 or int8, or they differ.
        ValueError: a scale or zero point has more than one element, or axis is out of range.
    """
    px = quantized(x_scale, x_zero_point, argument="x")
    py = quantized(y_scale, y_zero_point, argument="y")
    _require_one_type({"x": px, "y": py})
    x = codes_of(x, px, argument="x")
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis is {axis}; for rank {x.ndim} it must be in [{-x.ndim}, {x.ndim - 1}].")
    with np.errstate(all="ignore"):
        real = px.real(x).astype(np.float64)
        powers = np.exp(real - real.max(axis=axis, keepdims=True, initial=-np.inf))
        return py.codes((powers / powers.sum(axis=axis, keepdims=True)).astype(FLOAT32))


def qlinear_concat(
    y_scale: Array, y_zero_point: Array, inputs: Sequence[tuple[Array, Array, Array]], *, axis: int
) -> Array:
    """Concatenate quantized tensors (x, scale, zero point), each requantized to the output's parameters.

    Raises:
        TypeError: a type is not uint8 or int8, or they differ.
        ValueError: no inputs, a scale or zero point of more than one element, or shapes that do not
            concatenate.
    """
    if not inputs:
        raise ValueError("inputs is empty; it needs at least one (x, scale, zero_point).")
    py = quantized(y_scale, y_zero_point, argument="y")
    parts = []
    for i, (x, scale, zero_point) in enumerate(inputs):
        px = quantized(scale, zero_point, argument=f"inputs[{i}]")
        _require_one_type({f"inputs[{i}]": px, "y": py})
        parts.append(_requantize(codes_of(x, px, argument=f"inputs[{i}]"), px, py))
    return np.concatenate(parts, axis=axis)


def qlinear_where(
    condition: Array,
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    y: Array,
    y_scale: Array,
    y_zero_point: Array,
    z_scale: Array,
    z_zero_point: Array,
) -> Array:
    """Take x where the condition holds, else y, both requantized to z's parameters; all three broadcast.

    Raises:
        TypeError: the condition is not bool, or a type is not uint8 or int8, or they differ.
        ValueError: a scale or zero point has more than one element.
    """
    condition = np.asarray(condition)
    require_dtype(condition, (np.dtype(np.bool_),), argument="condition")
    px = quantized(x_scale, x_zero_point, argument="x")
    py = quantized(y_scale, y_zero_point, argument="y")
    pz = quantized(z_scale, z_zero_point, argument="z")
    _require_one_type({"x": px, "y": py, "z": pz})
    x, y = codes_of(x, px, argument="x"), codes_of(y, py, argument="y")
    return np.where(condition, _requantize(x, px, pz), _requantize(y, py, pz))


def _requantize(x: Array, px: Quantized, py: Quantized) -> Array:
    if px.scale == py.scale and px.zero_point == py.zero_point:
        return x
    table = py.codes(px.real(px.all_codes()))
    result: Array = table[x.view(np.uint8)]
    return result
