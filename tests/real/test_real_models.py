"""Every real model: quantool's default against the float model and against the incumbent's best."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.real import compare
from tests.real.compare import Comparison
from tests.real.zoo import SLOW, ZOO

pytestmark = [
    pytest.mark.real,
    # The incumbent divides by zero ranges and uses what NumPy and onnx have deprecated; none of it is ours.
    pytest.mark.filterwarnings("ignore::RuntimeWarning:onnxruntime"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:onnxruntime"),
]


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.full] if name in SLOW else []) for name in ZOO])
def row(request: pytest.FixtureRequest, comparisons: Callable[[str], Comparison]) -> Comparison:
    return comparisons(request.param)


def test_result_loads_runs_and_covers_nodes_or_says_that_nothing_was_quantized(row: Comparison) -> None:
    report = row.ours.report
    if report["status"] == compare.NOTHING_QUANTIZED:
        assert row.ours.verdict
    else:
        assert report["status"] == "done", row.ours.verdict
        assert row.ours.coverage
        assert any(node["decision"] == "quantized" for node in report["nodes"])


def test_task_metric_is_no_worse_than_the_incumbents(row: Comparison) -> None:
    fine = compare.metric_shortfall(row) <= 0 or compare.is_declared_not_worth_it(row)
    assert fine, compare.table([row])


def test_sqnr_is_within_half_a_decibel_of_the_incumbents_or_the_verdict_says_not_worth_it(row: Comparison) -> None:
    fine = compare.sqnr_shortfall(row) <= 0 or compare.is_declared_not_worth_it(row)
    assert fine, compare.table([row])


def test_every_node_is_decided_and_every_kept_node_has_a_reason(row: Comparison) -> None:
    nodes = row.ours.report["nodes"]
    assert nodes
    undecided = [node["name"] for node in nodes if node["decision"] not in ("quantized", "kept")]
    unexplained = [
        node["name"]
        for node in nodes
        if node["decision"] == "kept" and not (node["reason"] and node["reason"]["code"] and node["reason"]["text"])
    ]
    assert (undecided, unexplained) == ([], [])
