"""Which groups the highest effort leaves in float: most noise silenced, within a budget of work."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import quantool
from pipeline.bed import SAMPLES
from quantool.pipeline.choice.sources import CONVERSION, Source, spared
from quantool.pipeline.choice.units import FusionGroup

NOTHING = FusionGroup(nodes=("n",), tensors=(), weights=())


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Source], dict[int, float], list[float]]:
    """Sources that one or two of some groups need."""
    count = draw(st.integers(1, 6))
    work = draw(st.lists(st.floats(0, 0.2), min_size=count, max_size=count))
    needs = st.frozensets(st.integers(0, count - 1), min_size=1, max_size=2)
    sources = [Source(part=NOTHING, needed=needed) for needed in draw(st.lists(needs, min_size=1, max_size=10))]
    return sources, {number: draw(st.floats(0.001, 1)) for number in range(len(sources))}, work


@given(problems(), st.floats(0, 0.3), st.frozensets(st.integers(0, 5), max_size=2))
def test_the_budget_and_fixed_groups_hold(
    problem: tuple[list[Source], dict[int, float], list[float]], budget: float, fixed: frozenset[int]
) -> None:
    sources, shares, work = problem
    kept = spared(sources, shares, work, budget=budget, fixed=fixed)
    assert sum(work[number] + CONVERSION for number in kept) <= budget + 1e-9
    assert kept.isdisjoint(fixed)
    silenced = sum(shares[i] for i, source in enumerate(sources) if source.needed <= kept)
    assert not kept or silenced > 0


@given(problems())
def test_with_room_for_all_nothing_that_matters_is_left(
    problem: tuple[list[Source], dict[int, float], list[float]],
) -> None:
    sources, shares, work = problem
    kept = spared(sources, shares, work, budget=100.0)
    total = sum(shares.values())
    assert all(shares[i] <= 0.02 * total for i, source in enumerate(sources) if not source.needed <= kept)


def test_a_tensor_is_silent_only_where_all_that_need_it_are_in_float() -> None:
    sources = [Source(part=NOTHING, needed=frozenset(needed)) for needed in ({0}, {0, 1}, {2})]
    shares = {0: 0.1, 1: 0.8, 2: 0.1}
    assert spared(sources, shares, [0.01, 0.01, 0.5], budget=0.1) == {0, 1}
    assert spared(sources, shares, [0.01, 0.2, 0.5], budget=0.1) == {0}


def test_the_highest_effort_leaves_a_small_group_in_float_where_the_default_is_content() -> None:
    path = SAMPLES / "digits_mlp.onnx"
    data = str(path.with_suffix(".calib.npz"))
    found = {effort: quantool.quantize(path, data=data, effort=effort).report for effort in ("balanced", "max")}
    kept = {
        effort: [row.name for row in report.nodes if row.reason is not None and row.reason.code == "too-lossy"]
        for effort, report in found.items()
    }
    assert kept == {"balanced": [], "max": ["/fc3/Gemm"]}
    best = {effort: report.verification.outputs["scores"].sqnr_db for effort, report in found.items()}
    assert best["max"] > best["balanced"] + 3
    assert found["max"].coverage.macs > 0.9
    assert any(
        trial.chosen and "in float: /fc3/Gemm (3 % of multiply-adds)" in trial.name for trial in found["max"].trials
    )
