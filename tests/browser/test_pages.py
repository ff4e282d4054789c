"""Reports in headless Chromium: of a sample model, of a run with hostile names, of 5,000 tensors, and of failures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from report.examples import NASTY, gate_failed, report

import quantool
from browser.chromium import Tab
from browser.pages import SCREENS, asked_elsewhere, chain, large, overflow, problems, saved
from quantool.errors import ModelError
from quantool.report.model import Report

pytestmark = pytest.mark.browser
SAMPLES = Path(__file__).parents[2] / "sample_models"
#: a page of 5,000 tensors may take so many bytes, and so many seconds to open on a slow machine
MOST_BYTES = 15_000_000
MOST_SECONDS = 10.0


@pytest.fixture(scope="module", params=["sample", "hostile", "gate-failed", "refused", "explained", "large"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report as it would be opened."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "sample":
        for suffix in (".onnx", ".calib.npz"):
            shutil.copy(SAMPLES / f"digits_transformer{suffix}", folder / f"m{suffix}")
        quantool.quantize(folder / "m.onnx", report=folder / "report.html")
        return folder / "report.html"
    if request.param == "explained":
        return saved(quantool.explain(SAMPLES / "digits_cnn.onnx"), folder)
    refused = ModelError("no-model", "m.onnx is no model", where="m.onnx", fix="Give one.")
    made = {
        "hostile": lambda: report(NASTY),
        "gate-failed": gate_failed,
        "refused": lambda: Report.failed("quantize", refused),
        "large": large,
    }
    return saved(made[request.param](), folder)


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_a_page_opens_without_complaint_and_asks_for_nothing(tab: Tab, page: Path, width: int, dark: bool) -> None:
    assert tab.open(page, width=width, dark=dark) < MOST_SECONDS
    assert tab.console == []
    assert asked_elsewhere(tab) == []
    assert overflow(tab) <= 0
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") != dark


@pytest.mark.parametrize("dark", [False, True])
def test_contrast_headings_and_structure_are_as_axe_wants_them(
    tab: Tab, page: Path, axe: str, dark: bool, tmp_path: Path
) -> None:
    if page.parent.name.startswith("large"):  # as large as shows everything that is folded and marked
        page = saved(large(120), tmp_path)
    tab.open(page, dark=dark)
    assert problems(tab, axe) == []


def test_axe_finds_what_is_wrong(tab: Tab, axe: str, tmp_path: Path) -> None:
    tab.open(saved(report(), tmp_path))
    tab.evaluate("document.querySelector('h1').style.color = '#eeeeee'")
    tab.evaluate("document.querySelector('h1').insertAdjacentHTML('afterend', '<h4>4</h4>')")
    assert {found.split(":")[0] for found in problems(tab, axe)} == {"color-contrast", "heading-order"}


def test_everything_is_there_where_scripts_are_blocked(tab: Tab, page: Path) -> None:
    tab.open(page)
    words = tab.evaluate("document.querySelector('main').textContent.length")
    tab.open(page, scripts=False)
    text = tab.text()
    assert "<h1" in text
    assert 'class="filter"' not in text
    tab.call("Emulation.setScriptExecutionDisabled", value=False)
    # The script adds the labels of filters, and nothing else.
    assert abs(tab.evaluate("document.querySelector('main').textContent.length") - words) < 100


def test_it_prints(tab: Tab, page: Path) -> None:
    tab.open(page)
    assert len(tab.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"]) > 10_000
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tab.call("Emulation.setEmulatedMedia", media="")


def test_names_with_html_in_them_are_text(tab: Tab, tmp_path: Path) -> None:
    tab.open(saved(report('<img src=x onerror="alert(1)"><script>document.title="owned"</script>'), tmp_path))
    assert tab.evaluate("document.images.length") == 0
    assert tab.evaluate("document.scripts.length") == 1
    assert "owned" in tab.evaluate("document.querySelector('td.name').textContent + document.body.textContent")
    assert tab.evaluate("document.title").startswith("quantool quantize: Worth it")
    assert tab.console == []


def test_tables_sort_by_number_and_text_and_filter_by_words(tab: Tab, tmp_path: Path) -> None:
    tab.open(saved(large(40), tmp_path))
    assert tab.evaluate("Boolean(window.table = document.querySelector('table.tight'))")
    first = "table.querySelector('tbody tr:not([hidden]) td').textContent"
    column = "Array.from(table.tBodies[0].rows, (row) => parseFloat(row.cells[6].textContent))"

    def click(title: str) -> None:
        buttons = "Array.from(table.querySelectorAll('th button'))"
        tab.evaluate(f"{buttons}.find((button) => button.textContent === '{title}').click()")

    click("SQNR")
    values = tab.evaluate(column)
    assert values == sorted(values)
    click("SQNR")
    assert tab.evaluate(column) == sorted(values, reverse=True)
    assert tab.evaluate("table.querySelector('th[aria-sort]').ariaSort") == "descending"
    click("tensor")
    assert "MatMul_0_" in tab.evaluate(first)
    tab.evaluate(
        "(() => { const box = table.closest('section').querySelector('input');"
        "box.value = 'uint8 MatMul_39'; box.dispatchEvent(new Event('input')); })()"
    )
    assert "MatMul_39_" in tab.evaluate(first)
    assert tab.evaluate("table.closest('section').querySelector('[role=status]').textContent") == "1 of 40"


def test_a_report_of_5000_tensors_is_small_and_unfolds_quickly(tab: Tab, tmp_path: Path) -> None:
    page = saved(large(), tmp_path)
    assert page.stat().st_size < MOST_BYTES
    tab.open(page)
    assert tab.evaluate("document.querySelectorAll('svg.spread').length") >= 5000
    took = tab.evaluate(
        "(() => { const start = performance.now();"
        "document.querySelectorAll('details').forEach((part) => { part.open = true; });"
        "document.body.getBoundingClientRect(); return performance.now() - start; })()"
    )
    assert took < 1000 * MOST_SECONDS
    assert tab.console == []


def test_a_model_of_5000_tensors_makes_a_report_that_opens(tab: Tab, tmp_path: Path) -> None:
    model, feeds = chain(2500)
    page = tmp_path / "report.html"
    report = quantool.quantize(model, feeds, effort="fast", report=page).report
    assert len(report.tensors) == 5000
    assert report.layers is not None
    assert report.layers.measured == 2500
    assert page.stat().st_size < MOST_BYTES
    for width, dark in SCREENS:
        assert tab.open(page, width=width, dark=dark) < MOST_SECONDS
        assert (tab.console, asked_elsewhere(tab)) == ([], [])
        assert overflow(tab) <= 0
    assert tab.evaluate("document.querySelectorAll('svg.spread').length") >= 5000
