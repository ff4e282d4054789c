"""Scale formulas: their laws, their edge rows, and TensorFlow's integers out of ONNX's operator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantool.formulas import FORMULAS, SMALLEST_SCALE, compute
from quantool.kernels import dynamic_quantize_linear, quantize_linear, tf_quantize_v2

GRIDS = [(-128, 127), (0, 255), (-64, 63), (-8, 7), (0, 15), (-2, 1), (-32768, 32767), (0, 65535)]
FLOAT_MAX = float(np.finfo(np.float32).max)
# Half a unit in the last place of a float32, relative.
ROUNDING = 2.0**-24

formulas = st.sampled_from(sorted(FORMULAS))
grids = st.sampled_from(GRIDS)
bounds = st.tuples(*[st.floats(-FLOAT_MAX, FLOAT_MAX, width=32)] * 2).map(sorted)


@given(formulas, bounds, grids, st.booleans())
def test_the_scale_is_normal_and_zero_has_a_code(
    formula: str, pair: list[float], grid: tuple[int, int], narrow: bool
) -> None:
    result = compute(formula, pair[0], pair[1], qmin=grid[0], qmax=grid[1], narrow_range=narrow and grid[0] < -2)
    assert result.scale.dtype == np.float32
    assert result.zero_point.dtype == np.int32
    assert np.isfinite(result.scale)
    assert result.scale >= SMALLEST_SCALE
    assert grid[0] <= result.zero_point <= grid[1]
    assert result.lo <= 0 <= result.hi


@given(st.sampled_from(["onnx", "onnx-symmetric", "onnx-power-of-two"]), bounds, grids)
def test_the_range_is_covered_to_half_a_step(formula: str, pair: list[float], grid: tuple[int, int]) -> None:
    result = compute(formula, pair[0], pair[1], qmin=grid[0], qmax=grid[1])
    # The zero point is rounded (half a step), the scale and the quotient are (a few float32 roundings each).
    codes = grid[1] - grid[0]
    slack = float(result.scale) * (0.5 + 4 * codes * ROUNDING)
    assert result.lo - slack <= min(pair[0], 0)
    assert max(pair[1], 0) <= result.hi + slack


@given(formulas, st.floats(-1024, -1, width=32), st.floats(1, 1024, width=32), grids, st.integers(-20, 20))
def test_a_power_of_two_moves_only_the_scale(
    formula: str, lo: float, hi: float, grid: tuple[int, int], exponent: int
) -> None:
    factor = 2.0**exponent
    one = compute(formula, lo, hi, qmin=grid[0], qmax=grid[1])
    other = compute(formula, lo * factor, hi * factor, qmin=grid[0], qmax=grid[1])
    assert other.zero_point == one.zero_point
    assert other.scale == one.scale * np.float32(factor)


@pytest.mark.parametrize("formula", sorted(FORMULAS))
@pytest.mark.parametrize(
    ("lo", "hi"),
    [(0, 0), (0, 1e-39), (1e-39, 1e-39), (-1e-39, 0), (5, 5), (-7, -2), (-3e38, 3e38), (-FLOAT_MAX, FLOAT_MAX)],
)
def test_degenerate_ranges_give_usable_scales(formula: str, lo: float, hi: float) -> None:
    result = compute(formula, lo, hi, qmin=-128, qmax=127)
    assert SMALLEST_SCALE <= result.scale <= FLOAT_MAX
    x = np.array([lo, 0, hi], np.float32)
    codes = quantize_linear(x, result.scale, result.zero_point.astype(np.int8))
    back = (codes.astype(np.float64) - result.zero_point) * result.scale.astype(np.float64)
    assert back[1] == 0
    assert np.all(np.abs(back - x) <= np.maximum(float(result.scale), np.abs(x) / 127))


def test_a_zero_range_has_scale_one() -> None:
    for formula in FORMULAS:
        result = compute(formula, 0.0, 0.0, qmin=-128, qmax=127)
        assert (result.scale, result.residual_shift) == (1, 0)


def test_unsigned_scaled_of_negative_values_has_an_ordinary_scale() -> None:
    result = compute("tf-scaled", -3.0, -1.0, qmin=0, qmax=255)
    assert (result.scale, result.zero_point) == (1, 0)


def test_arrays_keep_their_shape_and_agree_with_scalars() -> None:
    lo = np.array([[-1.0, 0.5, 0.0], [-3e38, -2.0, 1e-39]], np.float32)
    hi = np.array([[2.0, 0.5, 0.0], [3e38, -1.0, 2e-39]], np.float32)
    for formula in FORMULAS:
        whole = compute(formula, lo, hi, qmin=-128, qmax=127)
        assert whole.scale.shape == whole.zero_point.shape == whole.residual_shift.shape == lo.shape
        for i in np.ndindex(lo.shape):
            one = compute(formula, lo[i], hi[i], qmin=-128, qmax=127)
            assert (one.scale, one.zero_point, one.lo, one.hi) == (
                whole.scale[i],
                whole.zero_point[i],
                whole.lo[i],
                whole.hi[i],
            )


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=20))
def test_onnx_is_the_formula_of_dynamic_quantize_linear(values: list[float]) -> None:
    x = np.array(values, np.float32)
    _, scale, zero_point = dynamic_quantize_linear(x)
    result = compute("onnx", x.min(), x.max(), qmin=0, qmax=255)
    if scale >= SMALLEST_SCALE:
        assert (result.scale, result.zero_point) == (scale, zero_point)


def test_worked_examples_of_the_documents() -> None:
    scaled = compute("tf-scaled", -10.0, 9.0, qmin=-128, qmax=127)
    assert (scaled.scale, scaled.lo, scaled.hi) == (np.float32(1 / 12.8), -10.0, 9.921875)
    combined = compute("tf-min-combined", 0.0, 6.0, qmin=0, qmax=255)
    assert (combined.scale, combined.zero_point, combined.residual_shift) == (np.float32(6 / 255), 0, 0)


def test_min_combined_reports_how_far_its_offset_is_from_an_integer() -> None:
    result = compute("tf-min-combined", -10.0, 9.0, qmin=0, qmax=255)
    exact = 10 * 255 / 19
    # One rounding of the factor and one of the product.
    assert abs(result.zero_point + result.residual_shift - exact) <= 2 * ROUNDING * exact
    assert abs(result.residual_shift) <= 0.5


def test_narrow_range_leaves_the_smallest_code_out() -> None:
    result = compute("tf-scaled", -10.0, 9.0, qmin=-128, qmax=127, narrow_range=True)
    assert result.scale == np.float32(1 / np.float32(12.7))
    assert compute("onnx", -10.0, 9.0, qmin=-128, qmax=127, narrow_range=True).lo > -10.1
    assert not FORMULAS["tf-min-first"].uses_narrow_range


def test_the_minimum_range_is_tensorflows() -> None:
    x = np.zeros(1, np.float32)
    _, low, high = tf_quantize_v2(x, np.float32(-3), np.float32(-2), T="qint8", ensure_minimum_range=0.5)
    result = compute("tf-min-first", -3.0, -2.0, qmin=-128, qmax=127, ensure_minimum_range=0.5)
    assert result.scale == np.float32(1 / np.float32(255 / (high - low)))
    assert compute("onnx", 0.0, 0.0, qmin=0, qmax=255, ensure_minimum_range=0.01).scale == np.float32(0.01 / 255)


@dataclass(frozen=True)
class TensorFlowMode:
    formula: str
    mode: str
    round_mode: str
    dtype: str
    narrow: bool = False

    def __str__(self) -> str:
        return f"{self.mode}-{self.round_mode}-{self.dtype}-{'narrow' if self.narrow else 'full'}"


TENSORFLOW_MODES = [
    TensorFlowMode(formula, mode, round_mode, dtype)
    for dtype in ("uint8", "int8")
    for formula, mode, round_mode in (
        ("tf-min-first", "MIN_FIRST", "HALF_AWAY_FROM_ZERO"),
        ("tf-scaled", "SCALED", "HALF_AWAY_FROM_ZERO"),
        ("tf-scaled", "SCALED", "HALF_TO_EVEN"),
    )
] + [
    # Unsigned codes from 1 on have no code for zero.
    TensorFlowMode("tf-scaled", "SCALED", "HALF_TO_EVEN", "int8", narrow=True),
]


@pytest.mark.parametrize("case", TENSORFLOW_MODES, ids=str)
def test_onnx_quantize_linear_gives_tensorflows_integers(case: TensorFlowMode) -> None:
    """Only where TensorFlow's value is a few float32 roundings from a tie can an integer differ, and rarely."""
    info = np.iinfo(case.dtype)
    differing = values = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x = (rng.standard_normal(500_000) * 10.0 ** rng.uniform(-3, 3)).astype(np.float32)
        lo, hi = x.min(), x.max()
        want, *_ = tf_quantize_v2(
            x,
            lo,
            hi,
            T=f"q{case.dtype}",
            mode=case.mode,
            round_mode=case.round_mode,
            narrow_range=case.narrow,
            ensure_minimum_range=0.0,
        )
        made = compute(case.formula, lo, hi, qmin=info.min, qmax=info.max, narrow_range=case.narrow)
        inside = np.clip(x, made.lo, made.hi).astype(np.float32) if case.narrow else x
        got = quantize_linear(inside, made.scale, made.zero_point.astype(case.dtype))
        different = got != want
        steps = x[different].astype(np.float64) / float(made.scale)
        # The scale, TensorFlow's product and ONNX's quotient are rounded once each.
        assert np.all(np.abs(np.abs(steps - np.trunc(steps)) - 0.5) <= 3 * ROUNDING * np.abs(steps))
        assert np.all(np.abs(got[different].astype(int) - want[different]) == 1)
        differing, values = differing + int(different.sum()), values + x.size
    assert values >= 1_000_000
    assert differing * 100_000 < values


def test_unequal_grids_of_min_combined_are_off_by_the_residual_shift() -> None:
    x = np.random.default_rng(5).uniform(-10, 9, 100_000).astype(np.float32)
    made = compute("tf-min-combined", -10.0, 9.0, qmin=0, qmax=255)
    want, *_ = tf_quantize_v2(x, np.float32(-10), np.float32(9), T="quint8", ensure_minimum_range=0.0)
    got = quantize_linear(x, made.scale, made.zero_point.astype(np.uint8))
    share = np.mean(got != want)
    # A value rounds the other way where its fraction lies inside the shift: binomial, four deviations.
    shift = abs(float(made.residual_shift))
    assert abs(share - shift) <= 4 * np.sqrt(shift / x.size) + 2 / 255


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"formula": "tf-scale", "lo": 0, "hi": 1}, "formula is 'tf-scale'; allowed: onnx, onnx-symmetric"),
        ({"formula": "onnx", "lo": np.nan, "hi": 1}, r"range 0 is \[nan, 1.0\]; both bounds must be finite"),
        ({"formula": "onnx", "lo": [0, -1], "hi": [1, np.inf]}, r"range 1 is \[-1.0, inf\]"),
        ({"formula": "onnx", "lo": 0, "hi": 1e39}, r"range 0 is \[0.0, inf\]"),
        ({"formula": "onnx", "lo": 2, "hi": 1}, r"range 0 is \[2.0, 1.0\]; .* lo at most hi"),
        ({"formula": "onnx", "lo": 0, "hi": 1, "qmin": 5, "qmax": 5}, "qmin is 5 and qmax is 5; the grid needs"),
        ({"formula": "onnx", "lo": 0, "hi": 1, "ensure_minimum_range": -1.0}, "ensure_minimum_range is -1.0"),
        (
            {"formula": "tf-scaled", "lo": 0, "hi": 1, "qmin": 0, "narrow_range": True},
            "'tf-scaled' needs a code for zero",
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_a_bad_request_names_argument_value_and_what_is_allowed(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        compute(**{"qmin": -128, "qmax": 127, **arguments})


def test_every_formula_names_its_source() -> None:
    for formula in FORMULAS.values():
        assert formula.source.startswith(("ONNX", "tensorflow/core", "Jain"))
