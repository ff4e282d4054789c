"""Ranges of activations, and the scales that formulas make of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibrators.histogram import Histogram
from calibrators.moving_average import MovingAverage
from calibrators.registry import CALIBRATORS
from calibrators.tails import estimate_expected
from quantool.errors import DataError
from quantool.recipe import Recipe, Rule
from quantool.schema import ActivationSpec, AnyArray, GraphFacts, Grid, Plan, Range
from quantool.solve import solve, solve_ranges, statistic_kind
from tests.rewrite.flow import draft, normal, parse

PROTO = parse(
    """(float[N,8,6,6] x) => (float[N,8,6,6] y) {
        [c] t = Conv (x, w)
        [p] u = Transpose <perm = [0, 1, 3, 2]> (t)
        [d] y = Conv (u, w)
    }""",
    {"w": normal(8, 8, 1, 1)},
)
START = draft(PROTO)
FACTS: GraphFacts = START.facts
UINT8 = Grid.of("uint8")


def observed(values: AnyArray) -> Histogram:
    return Histogram().observe(values)


def only(**fields: object) -> Plan:
    """The plan with nothing but x, its spec changed."""
    spec = replace(ActivationSpec(name="x", dtype="uint8", group="x", statistic="x"), **fields)
    return replace(START.plan, activations={"x": spec}, weights=())


def range_of(values: AnyArray, recipe: Recipe | None = None, **fields: object) -> Range:
    return solve_ranges(only(**fields), FACTS, {"x": observed(values)}, recipe or Recipe())["x"]


def params_of(values: AnyArray, recipe: Recipe | None = None, **fields: object):
    recipe = recipe or Recipe()
    plan = only(**fields)
    ranges = solve_ranges(plan, FACTS, {"x": observed(values)}, recipe)
    return solve(plan, ranges, load={}.__getitem__, recipe=recipe)


VALUES = normal(20_000, seed=3)


def test_default_is_the_least_error_to_expect_and_exact_tensors_keep_their_extrema():
    chosen, exact = range_of(VALUES), range_of(VALUES, exact=True)
    assert chosen == estimate_expected(observed(VALUES), UINT8)
    assert (exact.lo, exact.hi) == (VALUES.min(), VALUES.max())
    assert (chosen.observed_min, chosen.observed_max) == (VALUES.min(), VALUES.max())


def test_extrema_of_a_few_elements_are_not_taken_at_their_word():
    few = VALUES[:200]
    exact = range_of(few, exact=True)
    assert exact == estimate_expected(observed(few), UINT8, covering=True)
    assert exact.lo <= few.min() < few.max() < exact.hi


@pytest.mark.parametrize("name", ["minmax", "percentile", "entropy", "moving-average"])
def test_recipe_chooses_the_calibrator_for_exact_tensors_too(name):
    state = MovingAverage().observe(VALUES)
    recipe = Recipe(calibrator=name)
    chosen = solve_ranges(only(exact=True), FACTS, {"x": state}, recipe)["x"]
    assert chosen == CALIBRATORS[name].estimate(state, UINT8)


def test_what_is_collected_follows_from_the_calibrators():
    assert statistic_kind(Recipe()) == "histogram"
    assert statistic_kind(Recipe(calibrator="moving-average")) == "moving-average"
    assert statistic_kind(Recipe(rules=(Rule(tensor="x", calibrator="moving-average"),))) == "moving-average"


def test_fixed_ranges_need_no_statistic():
    ranges = solve_ranges(only(fixed=(0.0, 1.0)), FACTS, {}, Recipe())
    assert ranges["x"] == Range(lo=0.0, hi=1.0, observed_min=0.0, observed_max=1.0)
    seen = range_of(VALUES / 10, fixed=(0.0, 1.0))
    assert (seen.lo, seen.hi, seen.observed_max) == (0.0, 1.0, float((VALUES / 10).max()))


def test_tensor_without_statistic_is_refused_by_name():
    with pytest.raises(DataError, match="no statistic was collected") as raised:
        solve_ranges(only(), FACTS, {}, Recipe())
    assert (raised.value.code, raised.value.where) == ("not-calibrated", "x")


@pytest.mark.parametrize(
    ("bounds", "fields", "expected"),
    [
        ((0.0, np.inf), {"exact": True}, (0.0, float(VALUES.max()))),
        ((0.0, 1.0), {"exact": True}, (0.0, 1.0)),
        ((0.0, 0.5), {"fixed": (0.0, 1.0)}, (0.0, 0.5)),
        ((0.0, 6.0), {"exact": True}, (0.0, float(VALUES.max()))),
    ],
)
def test_bounds_of_absorbed_rectifiers_limit_the_range(bounds, fields, expected):
    chosen = range_of(VALUES, bounds=bounds, **fields)
    assert (chosen.lo, chosen.hi) == expected


def test_bounds_limit_what_a_rule_says():
    chosen = range_of(VALUES, Recipe(rules=(Rule(tensor="x", range=(-3, 9)),)), bounds=(0.0, 6.0))
    assert (chosen.lo, chosen.hi) == (0.0, 6.0)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([Rule(tensor="t", range=(-1, 2))], (-1, 2)),
        ([Rule(tensor="?", range=(-1, 2)), Rule(tensor="t", range=(-3, 4))], (-3, 4)),
        ([Rule(name="c", range=(-1, 2))], (-1, 2)),
        ([Rule(op_type="Conv", range=(-1, 2)), Rule(name="d", range=(0, 1))], (-1, 2)),
        ([Rule(name="c", op_type="Conv", tensor="t", range=(-1, 2))], (-1, 2)),
        ([Rule(name="c", op_type="Transpose", range=(-1, 2)), Rule(tensor="t", range=(-5, 5))], (-5, 5)),
    ],
    ids=["tensor", "later wins", "node", "type", "all", "one key does not match"],
)
def test_rules_set_ranges_by_tensor_or_by_the_node_that_writes_it(rules, expected):
    stats = {name: observed(VALUES) for name in ("x", "t", "y")}
    ranges = solve_ranges(START.plan, FACTS, stats, Recipe(rules=tuple(rules)))
    assert (ranges["t"].lo, ranges["t"].hi) == expected
    assert ranges["u"] == ranges["t"]


def test_rules_choose_calibrators():
    recipe = Recipe(calibrator="minmax", rules=(Rule(tensor="x", calibrator="percentile"),))
    assert range_of(VALUES, recipe) == CALIBRATORS["percentile"].estimate(observed(VALUES), UINT8)


def test_group_is_solved_from_its_merged_statistics():
    specs = {
        name: ActivationSpec(name=name, dtype="uint8", group="x", statistic=name, exact=True) for name in ("x", "t")
    }
    plan = replace(START.plan, activations=specs, weights=())
    ranges = solve_ranges(plan, FACTS, {"x": observed(VALUES), "t": observed(VALUES * 3 + 1)}, Recipe())
    assert ranges["x"] == ranges["t"]
    assert (ranges["x"].lo, ranges["x"].hi) == ((VALUES * 3 + 1).min(), (VALUES * 3 + 1).max())


# --- formulas -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [(0.0, 6.0), (0.0, 0.1), (0.0, 1 / 3)])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16"])
def test_largest_code_never_exceeds_a_clip(dtype, bounds):
    values = np.clip(VALUES * 10, *bounds).astype(np.float32)
    found = params_of(values, bounds=bounds, exact=True, dtype=dtype).activations["x"]
    top = np.iinfo(dtype).max
    assert np.float32(top - int(found.zero_point)) * found.scale <= np.float32(bounds[1])
    assert int(found.zero_point) == np.iinfo(dtype).min  # the smallest code is zero


@pytest.mark.parametrize(
    ("formula", "dtype", "zero_point"),
    [
        ("onnx-symmetric", "int8", 0),
        ("onnx-symmetric", "uint8", 128),
        ("tf-scaled", "int8", 0),
        ("tf-min-first", "int8", None),
        ("tf-min-combined", "uint8", None),
    ],
)
def test_formula_makes_the_zero_point(formula, dtype, zero_point):
    found = params_of(VALUES, Recipe(formula=formula, activations=dtype), dtype=dtype, exact=True).activations["x"]
    assert zero_point is None or int(found.zero_point) == zero_point
    assert (abs(found.residual_shift) > 0) == (formula == "tf-min-combined")
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    reach = (low - int(found.zero_point)) * float(found.scale), (high - int(found.zero_point)) * float(found.scale)
    step = float(found.scale)
    assert reach[0] <= VALUES.min() + step
    assert reach[1] >= VALUES.max() - step


def test_narrow_range_leaves_out_the_smallest_code():
    wide = params_of(VALUES, Recipe(formula="tf-scaled"), dtype="int8", exact=True).activations["x"]
    narrow = params_of(VALUES, Recipe(formula="tf-scaled", narrow_range=True), dtype="int8", exact=True).activations[
        "x"
    ]
    assert narrow.scale >= wide.scale


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(100),
        np.full(100, 3),
        np.full(100, -3),
        np.full(100, 1e-39),
        -np.abs(VALUES),
        np.empty(0),
        np.full(9, 3e38),
    ],
    ids=["zero", "constant", "negative constant", "denormal", "all negative", "empty", "huge"],
)
@pytest.mark.parametrize("calibrator", [None, "minmax", "percentile", "entropy"])
def test_degenerate_data_give_a_positive_finite_scale(calibrator, values):
    found = params_of(values.astype(np.float32), Recipe(calibrator=calibrator)).activations["x"]
    assert 0 < float(found.scale) < np.inf
    assert 0 <= int(found.zero_point) <= 255


def test_isolated_outliers_are_left_out_with_a_note_that_names_the_tensor():
    found = params_of(np.append(normal(500_000), np.float32(1e6)))
    assert [(note.code, note.where) for note in found.notes] == [("outliers-clipped", "x")]
    assert "1e+06" in found.notes[0].what
    assert float(found.activations["x"].scale) < 0.1
    assert params_of(VALUES).notes == ()


def test_outliers_of_a_group_are_told_once():
    stats = {name: observed(np.append(normal(500_000), np.float32(1e6))) for name in ("x", "t", "y")}
    recipe = Recipe(rules=(Rule(name="d", calibrator="mse"),))
    ranges = solve_ranges(START.plan, FACTS, stats, recipe)
    found = solve(START.plan, ranges, load={"w": normal(8, 8, 1, 1)}.__getitem__, recipe=recipe)
    assert [note.where for note in found.notes] == ["x", "t", "y"]  # u shares t's
