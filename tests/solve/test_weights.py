"""Scales, codes and biases of weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quantool.errors import ModelError
from quantool.kernels import dequantize_linear
from quantool.schema import AnyArray, QuantParams, WeightParams, WeightSpec
from quantool.solve.weights import BIAS_LIMIT, SMALLEST_WEIGHT_SCALE, solve_weight

SPEC = WeightSpec(node="n", index=1, tensor="w", dtype="int8", axis=0)
WEIGHT = np.random.default_rng(0).standard_normal((6, 10)).astype(np.float32)


def activation(scale: float) -> dict[str, QuantParams]:
    return {"x": QuantParams(dtype="uint8", scale=np.float32(scale), zero_point=np.int32(0))}


def solved(
    weight: AnyArray = WEIGHT, bias: AnyArray | None = None, *, input_scale: float = 0.01, **fields: object
) -> WeightParams:
    spec = replace(SPEC, **fields)
    if bias is not None:
        spec = replace(spec, bias="b", activation="x")
    constants = {"w": weight, "b": bias}
    return solve_weight(spec, constants.__getitem__, activations=activation(input_scale))


def restored(params: WeightParams) -> AnyArray:
    p = params.params
    codes = params.codes()
    axis = 0 if p.axis is None else p.axis
    return dequantize_linear(codes, p.scale, p.zero_point.astype(codes.dtype), axis=axis, block_size=p.block_size)


GRANULARITIES = pytest.mark.parametrize(
    ("axis", "block_size", "shape"),
    [(None, 0, ()), (0, 0, (6,)), (1, 0, (10,)), (-1, 0, (10,)), (1, 4, (6, 3)), (0, 32, (1, 10))],
    ids=["tensor", "rows", "columns", "last axis", "blocks", "a block beyond the end"],
)


@GRANULARITIES
@pytest.mark.parametrize(
    ("dtype", "bits", "symmetric"),
    [
        ("int8", 8, True),
        ("int8", 7, True),
        ("uint8", 8, False),
        ("uint8", 8, True),
        ("uint8", 7, False),
        ("int16", 16, True),
        ("int4", 4, True),
        ("uint4", 4, False),
    ],
)
def test_codes_lie_on_the_grid_and_cost_half_a_step(dtype, bits, symmetric, axis, block_size, shape):
    found = solved(axis=axis, block_size=block_size, dtype=dtype, bits=bits, symmetric=symmetric)
    codes = found.codes()
    assert (found.params.scale.shape, found.params.zero_point.shape) == (shape, shape)
    assert (found.params.scale.dtype, str(codes.dtype), codes.shape, found.shape) == (
        "float32",
        dtype,
        (6, 10),
        (6, 10),
    )
    width = 2**bits
    wide = codes.astype(np.int64)
    assert wide.max() - wide.min() < width
    assert wide.min() >= (0 if dtype.startswith("u") else -(width // 2))
    if symmetric:
        assert np.unique(found.params.zero_point).tolist() == [width // 2 if dtype.startswith("u") else 0]
    step = restored_steps(found)
    assert np.all(np.abs(restored(found) - WEIGHT) <= step / 2 * (1 + 1e-5))


def restored_steps(found: WeightParams) -> AnyArray:
    """The scale of every element."""
    p = found.params
    ones = replace(SPEC, axis=p.axis)
    if p.axis is None:
        return np.broadcast_to(p.scale, found.shape)
    scale = np.repeat(p.scale, p.block_size, axis=p.axis) if p.block_size else p.scale
    if not p.block_size:
        shape = [1, 1]
        shape[ones.axis or 0] = -1
        return np.broadcast_to(scale.reshape(shape), found.shape)
    return scale[tuple(slice(0, n) for n in found.shape)]


def test_symmetric_scale_is_the_largest_magnitude_over_qmax():
    expected = (np.abs(WEIGHT).max(axis=1).astype(np.float64) / 127).astype(np.float32)
    np.testing.assert_array_equal(solved().params.scale, expected)
    narrow = (np.abs(WEIGHT).max(axis=1).astype(np.float64) / 63).astype(np.float32)
    np.testing.assert_array_equal(solved(bits=7).params.scale, narrow)


@pytest.mark.parametrize("weight", [np.full((6, 10), 0.3), np.full((6, 10), -0.3), np.abs(WEIGHT), -np.abs(WEIGHT)])
@pytest.mark.parametrize("dtype", ["int4", "uint4", "uint8"])
def test_zero_is_representable_whatever_the_sign_of_a_block(dtype, weight):
    weight = weight.astype(np.float32)
    weight[0, 0] = 0
    bits = 8 if dtype == "uint8" else 4
    found = solved(weight, axis=1, block_size=5, dtype=dtype, bits=bits, symmetric=dtype == "int4")
    assert restored(found)[0, 0] == 0


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_zero_weights_have_a_positive_scale(dtype, axis):
    weight = WEIGHT.copy()
    weight[2 if axis == 0 else slice(None)] = 0
    found = solved(weight, axis=axis, dtype=dtype, symmetric=dtype == "int8")
    assert np.all(np.isfinite(found.params.scale))
    assert np.all(found.params.scale > 0)
    assert not restored(found)[2].any()


def test_scales_stay_large_enough_to_multiply():
    found = solved(WEIGHT * np.float32(1e-36))
    np.testing.assert_array_equal(found.params.scale, np.full(6, SMALLEST_WEIGHT_SCALE, np.float32))


# --- biases ---------------------------------------------------------------------------------------------

BIAS = np.linspace(-2, 3, 6).astype(np.float32)


def test_bias_codes_are_on_the_scale_of_both_operands():
    found = solved(bias=BIAS)
    np.testing.assert_array_equal(found.bias_scale, np.float32(0.01) * found.params.scale)
    np.testing.assert_array_equal(found.bias, np.rint(BIAS / found.bias_scale.astype(np.float64)))
    assert found.bias.dtype == np.int32


def test_one_scale_for_the_whole_weight_serves_the_whole_bias():
    found = solved(bias=BIAS, axis=None)
    assert (found.bias_scale.shape, found.bias.shape) == ((), (6,))
    np.testing.assert_allclose(found.bias * found.bias_scale, BIAS, atol=float(found.bias_scale) / 2)


@pytest.mark.parametrize("axis", [None, 0])
def test_bias_that_would_overflow_raises_its_scale_only(axis):
    weight = WEIGHT * np.float32(1e-9) if axis is None else np.where(np.arange(6)[:, None] == 2, 1e-9, 1) * WEIGHT
    found = solved(weight.astype(np.float32), np.full(6, 5, np.float32), axis=axis)
    assert np.abs(found.bias).max() <= BIAS_LIMIT
    raised = found.bias_scale if axis is None else found.bias_scale[2]
    code = found.bias if axis is None else found.bias[2]
    np.testing.assert_allclose(code * raised.astype(np.float64), 5, rtol=2**-23)
    if axis == 0:
        usual = solved(WEIGHT, np.full(6, 5, np.float32))
        others = np.arange(6) != 2
        np.testing.assert_array_equal(found.params.scale[others], usual.params.scale[others])
        assert np.abs(found.codes()[2]).max() == 0  # negligible beside its bias


@pytest.mark.parametrize("axis", [None, 0])
def test_bias_beside_zero_weights_is_kept(axis):
    weight = np.zeros((6, 10), np.float32) if axis is None else np.where(np.arange(6)[:, None] == 2, 0, WEIGHT)
    found = solved(weight.astype(np.float32), BIAS, axis=axis)
    np.testing.assert_allclose(found.bias * found.bias_scale.astype(np.float64), BIAS, atol=1e-3)


def test_zero_bias_beside_zero_weights_needs_no_scale_of_its_own():
    found = solved(np.zeros((6, 10), np.float32), np.zeros(6, np.float32))
    np.testing.assert_array_equal(found.params.scale, np.ones(6, np.float32))
    assert not found.bias.any()


def test_full_scale_weights_are_no_empty_channel():
    weight = np.rint(WEIGHT * 30).astype(np.float32)
    weight[:, 0] = 127
    np.testing.assert_array_equal(solved(weight, BIAS).params.scale, np.ones(6, np.float32))


def test_bias_scale_is_positive_where_both_scales_are_tiny():
    found = solved(WEIGHT * np.float32(1e-36), np.zeros(6, np.float32), input_scale=2.0**-126)
    assert np.all(found.bias_scale > 0)
    assert not found.bias.any()


# --- refusals, sharing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_and_biases_that_are_not_finite_are_refused_by_name(value):
    weight, bias = WEIGHT.copy(), BIAS.copy()
    weight[3, 4] = bias[1] = value
    for tensor, arguments in (("w", (weight, BIAS)), ("b", (WEIGHT, bias))):
        with pytest.raises(ModelError, match="holds NaN or infinity") as raised:
            solved(*arguments)
        assert (raised.value.code, raised.value.where) == ("nonfinite-weight", tensor)


def test_key_tells_codes_apart():
    keys = {
        solved().key,
        solved(axis=1).key,
        solved(axis=None).key,
        solved(dtype="uint8", symmetric=False).key,
        solved(bits=7).key,
        solved(axis=1, block_size=5).key,
        solved(WEIGHT * 2).key,
    }
    assert len(keys) == 7
    assert solved().key == solved(node="other").key


def test_codes_are_made_when_asked_for():
    loads = []

    def load(name: str) -> AnyArray:
        loads.append(name)
        return WEIGHT

    found = solve_weight(SPEC, load, activations={})
    assert loads == ["w"]
    found.codes()
    found.codes()
    assert loads == ["w"] * 3
