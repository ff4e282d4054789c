"""The report of a real trained model in headless Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest

import quantool
from browser.chromium import Tab
from browser.pages import asked_elsewhere, overflow, problems

pytestmark = [pytest.mark.browser, pytest.mark.real]


def test_a_real_models_report_opens_and_tells_everything(tab: Tab, axe: str, tmp_path: Path) -> None:
    from tests.real.zoo import ZOO

    model = ZOO["magika"]()
    page = tmp_path / "report.html"
    report = quantool.quantize(model.path, model.calib(), report=page).report
    assert report.layers is not None
    assert report.layers.measured > 0.5 * report.layers.candidates
    for dark in (False, True):
        tab.open(page, dark=dark)
        assert tab.console == []
        assert asked_elsewhere(tab) == []
        assert problems(tab, axe) == []
    tab.open(page, width=420)
    assert overflow(tab) <= 0
    text = tab.evaluate("document.body.textContent")
    for row in (*report.tensors[:5], *report.nodes[:5]):
        assert row.name[:80] in text
