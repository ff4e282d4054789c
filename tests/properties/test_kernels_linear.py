"""Laws of QuantizeLinear and DequantizeLinear, and equality with a slow, obvious implementation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantool.kernels import dequantize_linear, quantize_linear

RANGES = {
    "uint8": (0, 255),
    "int8": (-128, 127),
    "uint16": (0, 65535),
    "int16": (-32768, 32767),
    "uint4": (0, 15),
    "int4": (-8, 7),
    "uint2": (0, 3),
    "int2": (-2, 1),
}
# Half a unit in the last place of a float32, relative.
ROUNDING = 2.0**-24
SCALES = st.floats(2.0**-20, 2.0**20, width=32)


def typed(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


@dataclass(frozen=True)
class Call:
    """One call of quantize_linear, and for each element the index of its parameter."""

    x: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray
    axis: int
    block_size: int
    name: str

    def parameter_index(self, at: tuple[int, ...]) -> tuple[int, ...]:
        if self.scale.ndim == 0:
            return ()
        if not self.block_size:
            return (at[self.axis],)
        return tuple(i // self.block_size if a == self.axis % self.x.ndim else i for a, i in enumerate(at))

    def codes(self, x: np.ndarray | None = None, **options: Any) -> np.ndarray:
        return quantize_linear(
            self.x if x is None else x,
            self.scale,
            self.zero_point,
            axis=self.axis,
            block_size=self.block_size,
            **options,
        )

    def back(self, codes: np.ndarray) -> np.ndarray:
        return dequantize_linear(codes, self.scale, self.zero_point, axis=self.axis, block_size=self.block_size)


@st.composite
def calls(draw: st.DrawFn, values: st.SearchStrategy[float], scales: st.SearchStrategy[float] = SCALES) -> Call:
    kind = draw(st.sampled_from(["tensor", "axis", "block"]))
    # A one-element scale of rank 1 is per tensor, and then both oracles refuse a block size.
    shape = draw(hnp.array_shapes(min_dims=2 if kind == "block" else 1, max_dims=4, min_side=0, max_side=6))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    block_size = draw(st.integers(1, 7)) if kind == "block" else 0
    parameters = {"tensor": (), "axis": (shape[axis],), "block": list(shape)}[kind]
    if kind == "block":
        parameters[axis] = -(-shape[axis] // block_size)
    name = draw(st.sampled_from(sorted(RANGES)))
    qmin, qmax = RANGES[name]
    scale = draw(hnp.arrays(np.float32, tuple(parameters), elements=scales))
    zero = draw(hnp.arrays(np.int32, tuple(parameters), elements=st.integers(qmin, qmax)))
    x = draw(hnp.arrays(np.float32, shape, elements=values))
    return Call(x, scale, zero.astype(typed(name)), axis, block_size, name)


any_float = st.floats(width=32)
finite = st.floats(-(2.0**30), 2.0**30, width=32)


def slow_codes(call: Call) -> np.ndarray:
    """Element by element, as QuantizeLinear's document words it."""
    qmin, qmax = RANGES[call.name]
    out = np.zeros(call.x.shape, np.int32)
    with np.errstate(all="ignore"):
        for at in np.ndindex(call.x.shape):
            index = call.parameter_index(at)
            zero = int(call.zero_point[index])
            q = np.float32(call.x[at]) / np.float32(call.scale[index])
            q = qmin - zero if np.isnan(q) else min(max(float(q), qmin - zero), qmax - zero)
            out[at] = round(q) + zero
    return out


@given(calls(any_float, st.floats(width=32)))
def test_quantize_equals_the_slow_formula_for_all_floats(call: Call) -> None:
    codes = call.codes()
    assert codes.dtype == typed(call.name)
    np.testing.assert_array_equal(codes.astype(np.int32), slow_codes(call))


@given(calls(finite))
def test_dequantize_equals_the_slow_formula(call: Call) -> None:
    codes = call.codes()
    back = call.back(codes)
    assert back.dtype == np.float32
    for at in np.ndindex(call.x.shape):
        index = call.parameter_index(at)
        steps = int(codes[at]) - int(call.zero_point[index])
        assert back[at] == np.float32(steps) * call.scale[index]


@given(calls(finite))
def test_a_round_trip_inside_the_range_moves_at_most_half_a_step(call: Call) -> None:
    qmin, qmax = RANGES[call.name]
    codes = call.codes()
    back = call.back(codes).astype(np.float64)
    for at in np.ndindex(call.x.shape):
        index = call.parameter_index(at)
        scale, zero = float(call.scale[index]), int(call.zero_point[index])
        x = float(call.x[at])
        if (qmin - zero) * scale <= x <= (qmax - zero) * scale:
            # The quotient and the product back are rounded once each.
            assert abs(back[at] - x) <= scale / 2 + 2 * ROUNDING * (abs(x) + scale)


@given(calls(finite))
def test_quantizing_again_changes_nothing(call: Call) -> None:
    codes = call.codes()
    np.testing.assert_array_equal(call.codes(call.back(codes)).astype(int), codes.astype(int))


@given(hnp.arrays(np.float32, st.integers(0, 50), elements=any_float), SCALES, st.sampled_from(sorted(RANGES)))
def test_codes_grow_with_the_values(x: np.ndarray, scale: float, name: str) -> None:
    ordered = np.sort(x[~np.isnan(x)])
    codes = quantize_linear(ordered, np.float32(scale), np.zeros((), typed(name)))
    assert np.all(np.diff(codes.astype(int)) >= 0)


@given(calls(st.sampled_from([np.inf, -np.inf, np.nan, 3e38, -3e38]), st.just(1.0)))
def test_values_outside_saturate_and_nan_is_the_smallest_code(call: Call) -> None:
    qmin, qmax = RANGES[call.name]
    np.testing.assert_array_equal(call.codes().astype(int), np.where(call.x > 0, qmax, qmin))


@given(calls(any_float))
def test_per_axis_is_per_tensor_for_each_slice(call: Call) -> None:
    if call.block_size or call.scale.ndim == 0:
        return
    codes = np.moveaxis(call.codes(), call.axis, 0)
    for i, part in enumerate(np.moveaxis(call.x, call.axis, 0)):
        one = quantize_linear(part, call.scale[i], call.zero_point[i])
        np.testing.assert_array_equal(one.astype(int), codes[i].astype(int))


@given(calls(any_float))
def test_blocks_are_per_tensor_for_each_block(call: Call) -> None:
    if not call.block_size:
        return
    codes = call.codes()
    for at in np.ndindex(call.scale.shape):
        piece = tuple(
            slice(i * call.block_size, (i + 1) * call.block_size) if a == call.axis % call.x.ndim else slice(i, i + 1)
            for a, i in enumerate(at)
        )
        one = quantize_linear(call.x[piece], call.scale[at], call.zero_point[at])
        np.testing.assert_array_equal(one.astype(int), codes[piece].astype(int))


@given(calls(any_float), st.randoms(use_true_random=False))
def test_a_transposed_tensor_gives_transposed_codes(call: Call, random: Any) -> None:
    order = list(range(call.x.ndim))
    random.shuffle(order)
    blocked = bool(call.block_size)
    turned = Call(
        call.x.transpose(order),
        call.scale.transpose(order) if blocked else call.scale,
        call.zero_point.transpose(order) if blocked else call.zero_point,
        order.index(call.axis % call.x.ndim),
        call.block_size,
        call.name,
    )
    np.testing.assert_array_equal(turned.codes().astype(int), call.codes().transpose(order).astype(int))
    codes = call.codes()
    np.testing.assert_array_equal(turned.back(codes.transpose(order)), call.back(codes).transpose(order))


@given(calls(any_float))
def test_equal_parameters_make_the_granularity_irrelevant(call: Call) -> None:
    scale = np.full(call.scale.shape, 0.37, np.float32)
    zero = np.full(call.scale.shape, 1, np.int32).astype(typed(call.name))
    fine = quantize_linear(call.x, scale, zero, axis=call.axis, block_size=call.block_size)
    coarse = quantize_linear(call.x, np.float32(0.37), np.ones((), np.int32).astype(typed(call.name)))
    np.testing.assert_array_equal(fine.astype(int), coarse.astype(int))


@given(
    hnp.arrays(np.float16, st.integers(0, 60), elements=st.floats(width=16)),
    st.floats(2.0**-10, 64, width=16),
    st.sampled_from([21, 23]),
)
def test_float16_is_divided_in_the_type_that_the_opset_says(x: np.ndarray, scale: float, opset: int) -> None:
    s = np.float16(scale)
    with np.errstate(all="ignore"):
        q = x.astype(np.float32) / np.float32(s) if opset < 23 else (x / s).astype(np.float32)
        want = np.where(np.isnan(q), -32768, np.clip(np.rint(q), -32768, 32767))
    np.testing.assert_array_equal(quantize_linear(x, s, np.int16(0), opset=opset), want)


@pytest.mark.parametrize("opset", [21, 23])
@pytest.mark.parametrize("name", ["int8", "uint4", "int16"])
def test_all_float16_values_agree_between_table_and_division(opset: int, name: str) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    scale, zero = np.float16(0.0371), np.ones((), np.int32).astype(typed(name))
    few = quantize_linear(x, scale, zero, opset=opset)
    many = quantize_linear(np.tile(x, 5), scale, zero, opset=opset)
    np.testing.assert_array_equal(many.astype(int), np.tile(few, 5).astype(int))
