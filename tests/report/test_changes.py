"""A check in every rendering: what failed, what improved, and no name ever markup."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

from quantool.errors import GateError
from quantool.regression import QUANTITIES, changes_between, tolerances_of
from quantool.report import html, junit, markdown
from quantool.report.changes import change_rows, changed_nodes, changes_of, sentence
from quantool.report.console import COLUMNS, Screen
from quantool.report.model import CheckInfo, Report
from report.examples import NASTY, SOFTMAX, report

TOLERANCES = tolerances_of((), {quantity.name: quantity.tolerance for quantity in QUANTITIES})


def checked(name: str = "digits") -> Report:
    """A check that failed: a layer stays in float, and everything else is as it was."""
    before = report(name)
    lost = replace(before.nodes[0], decision="kept", runs_as="float", reason=SOFTMAX)
    changes = changes_between(before, replace(before, nodes=(lost, *before.nodes[1:])), TOLERANCES)
    found = CheckInfo(of="quantize", report=f"{name}.json", baseline="last.json", changes=changes)
    run = Report(command="check", model=before.model, verdict="Worse than the baseline: nodes.", check=found)
    return Report.failed("check", GateError("regression", "1 failed", where="nodes", fix="Look.", report=run))


def test_the_terminal_shows_comparisons_and_nodes_in_80_columns() -> None:
    page = Screen(terminal=False)
    page.summary(checked())
    lines = page.text().splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert lines[0] == "Worse than the baseline: nodes."
    assert any(line.split() == ["nodes", "2", "1", "0", "regressed"] for line in lines)
    assert "1 node newly in float" in lines
    assert any(
        line.split() == ["sqnr", "digits/logits", "34.2", "dB", "34.2", "dB", "0.5", "dB", "within"] for line in lines
    )
    assert "  Conv digits/conv: softmax: Softmax amplifies small errors." in lines


def test_junit_has_a_case_for_every_comparison() -> None:
    suite = ET.fromstring(junit.render(checked(NASTY)))
    cases = [case for case in suite.iter("testcase") if case.get("classname") == "quantool.check"]
    assert len(cases) == len(changes_of(checked()))
    failed = [case for case in cases if case.find("failure") is not None]
    assert [case.get("name") for case in failed] == ["nodes", "integer-nodes"]
    assert suite.get("failures") == "2"
    assert suite.get("errors") == "0"
    assert "newly in float: <script>" in failed[0].find("failure").get("message")  # type: ignore[union-attr, operator]


def test_markdown_and_html_escape_names() -> None:
    text = markdown.render(checked(NASTY))
    assert "| nodes | 2 | 1 | 0 | regressed |" in text
    assert "### 1 node newly in float" in text
    assert "<script>" not in text
    page = html.render(checked(NASTY))
    assert "<h2>Comparisons</h2>" in page
    assert "<h3>1 node newly in float</h3>" in page
    assert "<script>alert" not in page


def test_what_cannot_be_compared_is_said() -> None:
    before = report()
    gone = replace(before, verification=None)
    rows = {}
    for runs in ((before, gone), (gone, before)):
        found = CheckInfo(of="quantize", report="a", baseline="b", changes=changes_between(*runs, TOLERANCES))
        for row in change_rows(Report(command="check", check=found)):
            rows.setdefault(row[0], []).append(row[1:])
    assert rows["sqnr digits/logits"] == [
        ("34.2 dB", "unknown", "0.5 dB", "unknown now"), ("unknown", "34.2 dB", "unknown", "no baseline"),
    ]  # fmt: skip


def test_equal_outputs_and_losses_read_well() -> None:
    first = changes_of(checked())[0]
    assert sentence(first) == "1 node newly in float: digits/conv"
    better = replace(first, nodes=report().nodes[:1], passed=True)
    assert sentence(better) == "1 node newly quantized: digits/conv"
    size = next(change for change in changes_of(checked()) if change.quantity == "size")
    assert sentence(replace(size, current=200_000.0)) == "size was 110 kB and is 200 kB (1.1 kB allowed)"
    sqnr = next(change for change in changes_of(checked()) if change.quantity == "sqnr")
    assert (
        sentence(replace(sqnr, baseline=float("inf"))) == "sqnr digits/logits was exact and is 34.2 dB (0.5 dB allowed)"
    )
    assert changed_nodes(report()) == {}
