"""What counts as worse than the incumbent, and how the table says it."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

pytest.importorskip("PIL", reason="the zoo draws with Pillow, from the extra `real`")

from tests.real import compare
from tests.real.compare import Comparison, Ours
from tests.real.incumbent import Outcome
from tests.real.measure import Figures
from tests.real.model import RealModel


def _figures(metric: float, sqnr_db: float, speedup: float = 1.5) -> Figures:
    return Figures(metric=metric, sqnr_db=sqnr_db, speedup=speedup, size_ratio=0.3)


def _row(
    ours: Figures | None,
    theirs: Figures | None,
    *,
    status: str = "done",
    verdict: str = "faster",
    higher_is_better: bool = True,
) -> Comparison:
    model = RealModel(
        name="toy",
        path=Path("toy.onnx"),
        calib=list,
        eval_feeds=list,
        evaluate=lambda run: 0.0,
        metric="accuracy",
        higher_is_better=higher_is_better,
        resolution=0.01,
    )
    error = None if theirs is not None else "Fail: does not load"
    report = {"status": status, "verdict": verdict, "coverage": {"nodes": 0.5}, "errors": []}
    return Comparison(
        model=model,
        float_metric=0.9,
        ours=Ours(report=report, figures=ours),
        theirs=(Outcome(config="QDQ", figures=theirs, error=error),),
    )


def test_a_metric_within_the_resolution_is_no_worse() -> None:
    assert compare.metric_shortfall(_row(_figures(0.895, 20.0), _figures(0.9, 20.0))) <= 0
    assert compare.metric_shortfall(_row(_figures(0.88, 20.0), _figures(0.9, 20.0))) > 0


def test_a_lower_perplexity_is_better() -> None:
    worse, better = _figures(4.6, 20.0), _figures(4.5, 20.0)
    assert compare.metric_shortfall(_row(worse, better, higher_is_better=False)) > 0
    assert compare.metric_shortfall(_row(better, worse, higher_is_better=False)) <= 0


def test_sqnr_may_be_half_a_decibel_lower() -> None:
    assert compare.sqnr_shortfall(_row(_figures(0.9, 29.5), _figures(0.9, 30.0))) <= 0
    assert compare.sqnr_shortfall(_row(_figures(0.9, 29.25), _figures(0.9, 30.0))) > 0


def test_a_dynamic_best_is_held_against_the_same_mode_and_gets_a_row() -> None:
    default = _row(_figures(0.9, 29.0), _figures(0.9, 31.0))
    same_mode = Ours(report=default.ours.report, figures=_figures(0.9, 31.0))
    row = dataclasses.replace(default, same_mode=same_mode)
    assert compare.sqnr_shortfall(default) > 0
    assert compare.sqnr_shortfall(row) <= 0
    assert compare.table([row]).count("| toy") == 2
    assert "**31.0**" in compare.table([row])


def test_an_incumbent_that_fails_cannot_be_fallen_short_of() -> None:
    row = _row(_figures(0.9, 20.0), None)
    assert max(compare.metric_shortfall(row), compare.sqnr_shortfall(row)) <= 0
    assert "Fail: does not load" in compare.table([row])


def test_only_the_verdict_itself_excuses_a_shortfall() -> None:
    low = _figures(0.5, 5.0, speedup=0.5)
    assert not compare.is_declared_not_worth_it(_row(low, low))
    assert compare.is_declared_not_worth_it(_row(low, low, verdict="Not worth it: slower than float (0.8x)."))
    assert compare.is_declared_not_worth_it(_row(None, low, status="nothing-quantized"))


def test_a_failed_run_falls_short_and_the_table_shows_its_error() -> None:
    report = {
        "status": "failed",
        "verdict": None,
        "coverage": None,
        "errors": [{"code": "runs-as-differs", "what": "ran in float"}],
    }
    row = dataclasses.replace(_row(None, _figures(0.9, 30.0)), ours=Ours(report=report, figures=None))
    assert min(compare.metric_shortfall(row), compare.sqnr_shortfall(row)) > 0
    assert not compare.is_declared_not_worth_it(row)
    assert "| - | - | - | - | - | **0.9000** |" in compare.table([row])
    assert "| runs-as-differs: ran in float |" in compare.table([row])


def test_the_table_marks_what_the_incumbent_does_better() -> None:
    text = compare.table([_row(_figures(0.8, 20.0), _figures(0.9, 30.0, speedup=1.75), verdict="a | b")])
    header, _, row = text.splitlines()
    assert "**0.9000**" in row
    assert "**30.0**" in row
    assert "**1.75**" in row
    assert "**0.30**" not in row
    assert "0.8000" in row
    assert r"a \| b" in row
    assert row.replace(r"\|", "").count("|") == header.count("|")
    assert "**" not in compare.table([_row(_figures(0.9, 30.0), _figures(0.9, 30.0))])


def test_the_json_beside_the_table_is_strict(tmp_path: Path) -> None:
    compare.write([_row(_figures(0.9, math.inf), None)], tmp_path / "table.md")
    assert "exact" in (tmp_path / "table.md").read_text(encoding="utf-8")
    (entry,) = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    assert entry["quantool"]["figures"]["sqnr_db"] is None
    assert entry["incumbent"] == [{"config": "QDQ", "figures": None, "error": "Fail: does not load"}]
    assert entry["incumbent_best"] is None
