from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrators.exact_sum import UNIT_BITS, exact_sum, to_float

finite = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=True)
values = hnp.arrays(np.float32, st.integers(0, 60), elements=finite)


@given(x=values)
@settings(max_examples=200, deadline=None)
def test_sum_equals_rational_arithmetic(x):
    assert Fraction(exact_sum(x), 2**UNIT_BITS) == sum((Fraction(float(v)) for v in x), Fraction(0))


def test_large_arrays_of_one_sign_stay_exact():
    x = np.full(200_000, np.float32(0.1))
    assert exact_sum(x) == 200_000 * exact_sum(x[:1])


def test_order_changes_nothing_where_float_sums_differ():
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(100_000) * 10.0 ** rng.uniform(-30, 30, 100_000)).astype(np.float32)
    assert exact_sum(x) == exact_sum(x[::-1].copy()) == exact_sum(np.sort(x))


def test_to_float_rounds_to_nearest():
    assert to_float(exact_sum(np.array([0.5, 0.25], np.float32))) == 0.75
    # More than any sum reaches: 2^63 times the largest float32.
    assert to_float(1 << (UNIT_BITS + 128 + 63)) == math.ldexp(1.0, 191)
