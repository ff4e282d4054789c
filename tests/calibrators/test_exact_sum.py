from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrators.exact_sum import UNIT_BITS, exact_sum, exact_sum_of_squares, to_float

finite = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=True)
values = hnp.arrays(np.float32, st.integers(0, 60), elements=finite)


@given(x=values)
@settings(max_examples=200, deadline=None)
def test_sum_equals_rational_arithmetic(x):
    assert Fraction(exact_sum(x), 2**UNIT_BITS) == sum((Fraction(float(v)) for v in x), Fraction(0))


def rounded_square(value: float) -> Fraction:
    """The square rounded to 24 bits, or to a multiple of 2^-149 where that is coarser; ties to even."""
    exact = Fraction(value) ** 2
    if exact == 0:
        return exact
    exponent = math.frexp(value)[1] * 2
    while Fraction(2) ** (exponent - 1) > exact:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - 24, -UNIT_BITS)
    return round(exact / unit) * unit


@given(x=values)
@settings(max_examples=200, deadline=None)
def test_sum_of_squares_rounds_each_square_once(x):
    expected = sum((rounded_square(float(v)) for v in x), Fraction(0))
    assert Fraction(exact_sum_of_squares(x), 2**UNIT_BITS) == expected


def test_large_arrays_of_one_sign_stay_exact():
    x = np.full(200_000, np.float32(0.1))
    assert exact_sum(x) == 200_000 * exact_sum(x[:1])


def test_order_changes_nothing_where_float_sums_differ():
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(100_000) * 10.0 ** rng.uniform(-30, 30, 100_000)).astype(np.float32)
    assert exact_sum(x) == exact_sum(x[::-1].copy()) == exact_sum(np.sort(x))


def test_to_float_rounds_to_nearest():
    assert to_float(exact_sum(np.array([0.5, 0.25], np.float32))) == 0.75
    # Beyond what any number of squares can reach in practice: 2^63 of the largest.
    assert to_float(1 << (UNIT_BITS + 256 + 63)) == math.ldexp(1.0, 319)
