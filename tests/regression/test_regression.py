"""What makes a run worse than an earlier one: every quantity, its tolerance, and what is no comparison at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report.examples import SOFTMAX, comparison, report

from quantool.errors import DataError, OptionError
from quantool.measured import Latency
from quantool.regression import QUANTITIES, Tolerance, changes_between, refuse_other_run, run_notes, tolerances_of
from quantool.regression.tolerances import parse_tolerance
from quantool.report.model import Change, LatencyInfo, MetricInfo, Outcome, Report, Status, Verification

DEFAULTS = {quantity.name: quantity.tolerance for quantity in QUANTITIES}
TOLERANCES = tolerances_of((), DEFAULTS)
KL = 0.1
METRIC = MetricInfo(
    name="top1", float_value=0.9, quantized_value=0.89, drop=0.01, interval=None, resolved=True, rows=100
)  # fmt: skip
OUTPUT = "digits/logits"
BASE = replace(
    report(), metric=METRIC, verification=Verification(samples=16, outputs={OUTPUT: comparison(kl=KL)}),
)  # fmt: skip


def compared(now: Report, *given: str, before: Report = BASE) -> dict[str, Change]:
    """The comparisons of two runs by quantity."""
    return {change.quantity: change for change in changes_between(before, now, tolerances_of(given, DEFAULTS))}


def with_output(**changed: object) -> Report:
    """The run with other figures of its output."""
    return replace(BASE, verification=Verification(samples=16, outputs={OUTPUT: comparison(**{"kl": KL, **changed})}))


def with_size(size: int) -> Report:
    """The run with another size of its result."""
    assert BASE.output is not None
    return replace(BASE, output=replace(BASE.output, size_bytes=size))


def with_latency(float_ms: float, quantized_ms: float) -> Report:
    """The run with other times."""
    return replace(BASE, latency=LatencyInfo.of(Latency(float_ms=float_ms, quantized_ms=quantized_ms)))


def with_coverage(**changed: float) -> Report:
    """The run with other shares."""
    assert BASE.coverage is not None
    return replace(BASE, coverage=replace(BASE.coverage, **changed))


def with_conv(**changed: object) -> Report:
    """The run with another row for its Conv."""
    first, *others = BASE.nodes
    return replace(BASE, nodes=(replace(first, **changed), *others))  # type: ignore[arg-type]


def with_drop(drop: float) -> Report:
    """The run with another drop of its metric."""
    return replace(BASE, metric=replace(METRIC, drop=drop))


#: quantity -> a run that is worse by more than is allowed, one that is worse by less, and one that is better
CASES: dict[str, tuple[Report, Report | None, Report]] = {
    "sqnr": (with_output(sqnr_db=33.6), with_output(sqnr_db=33.8), with_output(sqnr_db=35.0)),
    "channel-sqnr": (
        with_output(worst_channel_sqnr_db=29.0), with_output(worst_channel_sqnr_db=29.2),
        with_output(worst_channel_sqnr_db=32.0),
    ),
    "agreement": (with_output(top1_agreement=0.99), with_output(top1_agreement=0.994), with_output(top1_agreement=1.0)),
    "kl": (with_output(kl=0.12), with_output(kl=0.104), with_output(kl=0.05)),
    "metric": (with_drop(0.016), with_drop(0.014), with_drop(0.0)),
    "size": (with_size(112_000), with_size(111_000), with_size(50_000)),
    "speedup": (with_latency(1.0, 0.61), with_latency(1.15, 0.61), with_latency(2.0, 0.61)),
    "coverage": (with_coverage(macs=0.99), None, with_coverage(macs=1.0)),
    "weight-coverage": (with_coverage(weight_bytes=0.9), None, BASE),
}  # fmt: skip
TINY = {"agreement": "0.001", "weight-coverage": "0"}


@pytest.mark.parametrize("name", CASES)
def test_a_figure_fails_beyond_its_tolerance_alone(name: str) -> None:
    worse, little, better = CASES[name]
    found = compared(worse)
    assert (found[name].passed, found[name].outcome) == (False, Outcome.REGRESSED)
    assert [change.quantity for change in found.values() if not change.passed] == [name]
    assert next(iter(found)) == name  # what fails stands first
    if little is not None:
        assert (compared(little)[name].passed, compared(little)[name].outcome) == (True, Outcome.WITHIN)
    if better is not BASE:
        gained = compared(better, f"{name}={TINY.get(name, '0')}")[name]
        assert (gained.passed, gained.outcome) == (True, Outcome.IMPROVED)
    assert compared(worse, f"{name}=99999999")[name].passed
    assert compared(worse, f"{name}=off")[name].outcome is Outcome.NOT_JUDGED


def test_every_quantity_has_a_case() -> None:
    assert {quantity.name for quantity in QUANTITIES} - CASES.keys() == {"nodes", "integer-nodes", "latency"}


def test_a_run_is_no_worse_than_itself() -> None:
    changes = changes_between(BASE, BASE, TOLERANCES)
    assert {change.quantity for change in changes} == set(DEFAULTS)
    assert all(change.passed for change in changes)
    assert {change.outcome for change in changes} == {Outcome.WITHIN, Outcome.NOT_JUDGED}


@given(st.floats(-50, 200), st.floats(-50, 200), st.floats(0, 10))
def test_a_drop_fails_exactly_beyond_its_tolerance(was: float, now: float, allowed: float) -> None:
    found = compared(with_output(sqnr_db=now), f"sqnr={allowed!r}", before=with_output(sqnr_db=was))["sqnr"]
    assert found.passed == (was - now <= allowed)
    assert (found.outcome is Outcome.REGRESSED) == (not found.passed)
    back = compared(with_output(sqnr_db=was), f"sqnr={allowed!r}", before=with_output(sqnr_db=now))["sqnr"]
    assert (found.outcome is Outcome.IMPROVED) == (back.outcome is Outcome.REGRESSED)


def test_a_node_that_stays_in_float_now_is_named_with_its_reason() -> None:
    found = compared(with_conv(decision="kept", reason=SOFTMAX, runs_as="float"))
    assert [(change.quantity, change.passed) for change in found.values()][:2] == [
        ("nodes", False), ("integer-nodes", False),
    ]  # fmt: skip
    assert [node.name for node in found["nodes"].nodes] == ["digits/conv"]
    assert (found["nodes"].baseline, found["nodes"].current, found["nodes"].nodes[0].reason) == (2, 1, SOFTMAX)
    assert compared(with_conv(decision="kept", reason=SOFTMAX, runs_as="float"), "nodes=1")["nodes"].passed


def test_a_node_that_runs_in_float_now_is_a_loss_although_it_is_quantized() -> None:
    found = compared(with_conv(runs_as="float"))
    assert [change.quantity for change in found.values() if not change.passed] == ["integer-nodes"]


def test_a_gained_node_does_not_make_up_for_a_lost_one() -> None:
    first, second, third = BASE.nodes
    lost = replace(first, decision="kept", runs_as="float", reason=SOFTMAX)
    now = replace(BASE, nodes=(lost, second, replace(third, decision="quantized", runs_as="integer", reason=None)))
    found = compared(now)["nodes"]
    assert (found.baseline, found.current, found.outcome) == (2, 2, Outcome.REGRESSED)


def test_nodes_are_matched_by_name_and_those_that_are_gone_do_not_count() -> None:
    now = replace(BASE, nodes=BASE.nodes[1:])
    assert compared(now)["nodes"].passed
    reordered = replace(BASE, nodes=BASE.nodes[::-1])
    assert compared(reordered)["nodes"].outcome is Outcome.WITHIN


@pytest.mark.parametrize("field", ["verification", "latency", "output", "coverage", "metric"])
def test_what_is_not_measured_any_more_fails(field: str) -> None:
    found = [
        change for change in changes_between(BASE, replace(BASE, **{field: None}), TOLERANCES) if not change.passed
    ]
    assert found
    assert {change.outcome for change in found} == {Outcome.UNKNOWN}
    assert all(change.current is None for change in found)
    names = [f"{change.quantity}=off" for change in found]
    assert all(
        change.passed
        for change in changes_between(BASE, replace(BASE, **{field: None}), tolerances_of(names, DEFAULTS))
    )


def test_what_the_baseline_did_not_measure_is_told_and_does_not_fail() -> None:
    found = compared(BASE, before=replace(BASE, metric=None))["metric"]
    assert (found.passed, found.outcome, found.baseline, found.current) == (True, Outcome.UNKNOWN, None, 0.01)


def test_another_metric_or_output_is_not_taken_for_the_old_one() -> None:
    other = replace(BASE, metric=replace(METRIC, name="f1"))
    failed = [change.subject for change in changes_between(BASE, other, TOLERANCES) if not change.passed]
    assert failed == ["top1"]


def test_outputs_that_were_equal_must_stay_equal_within_any_finite_tolerance() -> None:
    equal = with_output(sqnr_db=None, worst_channel_sqnr_db=None, top1_agreement=None, exact=True)
    assert all(change.passed for change in changes_between(equal, equal, TOLERANCES))
    found = compared(BASE, "sqnr=50%", "channel-sqnr=9", before=equal)
    assert (found["sqnr"].passed, found["channel-sqnr"].passed, found["sqnr"].baseline) == (False, False, math.inf)
    assert compared(equal)["sqnr"].outcome is Outcome.IMPROVED


def test_speeds_whose_intervals_overlap_do_not_differ() -> None:
    def timed(speedup: float, interval: tuple[float, float] | None) -> Report:
        assert BASE.latency is not None
        return replace(BASE, latency=replace(BASE.latency, speedup=speedup, interval=interval))

    before = timed(2.0, (1.5, 2.5))
    assert compared(timed(1.2, (0.9, 1.5)), before=before)["speedup"].outcome is Outcome.WITHIN
    assert compared(timed(1.2, (0.9, 1.4)), before=before)["speedup"].outcome is Outcome.REGRESSED
    assert compared(timed(1.2, None), before=before)["speedup"].outcome is Outcome.REGRESSED
    assert compared(timed(4.0, (2.5, 5.0)), before=before)["speedup"].outcome is Outcome.WITHIN
    assert compared(timed(4.0, (2.6, 5.0)), before=before)["speedup"].outcome is Outcome.IMPROVED


# --- tolerances -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0.5", Tolerance(amount=0.5)),
        ("0", Tolerance(amount=0)),
        ("10%", Tolerance(amount=0.1, relative=True)),
        (" 2.5% ", Tolerance(amount=0.025, relative=True)),
        ("off", None),
    ],
)
def test_tolerances_are_amounts_shares_or_off(text: str, found: Tolerance | None) -> None:
    assert parse_tolerance(text) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sqnr", "--tolerance is 'sqnr'"),
        ("sqnr=", "--tolerance sqnr is ''"),
        ("sqnr=-1", "--tolerance sqnr is '-1'"),
        ("sqnr=nan", "--tolerance sqnr is 'nan'"),
        ("sqnr=inf%", "--tolerance sqnr is 'inf%'"),
        ("sqnr=1dB", "--tolerance sqnr is '1dB'"),
        ("snqr=1", "Unknown quantity 'snqr'.*Did you mean 'sqnr'"),
        ("=1", "Unknown quantity ''"),
    ],
)
def test_any_other_tolerance_is_refused(text: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        tolerances_of((text,), DEFAULTS)


def test_the_last_tolerance_of_a_quantity_wins() -> None:
    assert tolerances_of(("sqnr=1", "sqnr=2"), DEFAULTS)["sqnr"] == Tolerance(amount=2)


# --- whether two runs can be compared -------------------------------------------------------------------


def renamed(run: Report, count: int) -> Report:
    """A run of a model of which so many nodes have other names, and of other bytes."""
    nodes = tuple(
        replace(node, name=f"new{number}") if number < count else node for number, node in enumerate(run.nodes)
    )
    assert run.model is not None
    return replace(run, nodes=nodes, model=replace(run.model, sha256="ef" * 32))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda run: renamed(run, 3), "other-model"),
        (lambda run: renamed(run, 2), "other-model"),
        (lambda run: replace(run, command="tune"), "other-command"),
        (lambda run: replace(run, status=Status.REFUSED), "report-of-failure"),
        (lambda run: replace(run, status=Status.NOTHING_QUANTIZED), "report-of-failure"),
    ],
)
def test_a_run_of_something_else_is_refused(change: Callable[[Report], Report], code: str) -> None:
    for before, now in ((BASE, change(BASE)), (change(BASE), BASE)):
        with pytest.raises(DataError) as caught:
            refuse_other_run(before, now, where="last.json")
        assert (caught.value.code, caught.value.where) == (code, "last.json")


def test_without_nodes_the_outputs_tell_the_model() -> None:
    bare = replace(BASE, nodes=(), command="compare")
    refuse_other_run(bare, renamed(bare, 0), where="-")
    other = replace(renamed(bare, 0), verification=Verification(samples=1, outputs={"boxes": comparison()}))
    with pytest.raises(DataError, match="other-model"):
        refuse_other_run(bare, other, where="-")


def test_a_new_version_of_the_model_is_compared_with_a_warning() -> None:
    four = replace(BASE, nodes=(*BASE.nodes, replace(BASE.nodes[0], name="fourth")))
    now = renamed(four, 1)
    refuse_other_run(four, now, where="-")
    (note,) = run_notes(four, now, where="-")
    assert (note.code, note.what) == (
        "model-changed", "the float model is not the baseline's: 1 node gone, 1 node new",
    )  # fmt: skip


def test_other_targets_and_samples_are_warned_of() -> None:
    assert BASE.recipe is not None
    now = replace(
        BASE, recipe={**BASE.recipe, "target": "generic"},
        verification=Verification(samples=7, outputs={OUTPUT: comparison()}),
    )  # fmt: skip
    assert [note.code for note in run_notes(BASE, now, where="-")] == ["target-changed", "samples-changed"]
    assert list(run_notes(BASE, BASE, where="-")) == []
