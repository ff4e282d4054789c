"""The lines of figures that every rendering shows."""

from __future__ import annotations

from dataclasses import replace

from quantool.report.model import Report, Trial
from quantool.report.summary import facts


def line(report, label):
    return next((fact.value for fact in facts(report) if fact.label == label), None)


def test_what_was_tried_stands_behind_what_was_chosen():
    trials = (
        Trial(name="mse ranges", score_db=30.0, chosen=False),
        Trial(name="minmax ranges", score_db=34.25, chosen=True),
    )
    report = replace(Report(command="quantize"), trials=trials)
    expected = "minmax ranges 34.2 dB (on the samples; also tried: mse ranges 30.0 dB)"
    assert line(report, "chosen") == expected


def test_a_single_way_is_no_choice():
    report = Report(command="quantize", trials=(Trial(name="mse ranges", score_db=30.0, chosen=True),))
    assert line(report, "chosen") is None
