"""HTML, Markdown, JUnit and the terminal: the verdict first, everything present, no name ever markup."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantool.errors import ModelError
from quantool.report import html, junit, markdown
from quantool.report.console import COLUMNS, Screen
from quantool.report.model import LatencyInfo, ModelInfo, NodeRow, Report
from quantool.report.summary import headline, kept_groups
from quantool.report.wording import counts, decibel, listing, number, percent, plural, size, visible
from quantool.requests import Inspection, TensorInfo
from quantool.schema import Reason
from report.examples import NASTY, SOFTMAX, comparison, gate_failed, report

VERDICT = "Worth it: 3.7 times smaller and 2.0 times as fast as float at 34.2 dB."
REFUSED = Report.failed("quantize", ModelError("no-model", "m.onnx is no model", where="m.onnx", fix="Give one."))


class Page(HTMLParser):
    """The tags, attributes and visible texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self._void = {"meta", "br"}
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)
        if tag not in self._void:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self._open[-1:] not in (["style"], ["script"]):
            self.texts.append(" ".join(data.split()))


def screen(run: Report, *, terminal: bool = False, verbose: bool = False) -> str:
    """A run's summary as it is printed."""
    page = Screen(terminal=terminal)
    page.summary(run, verbose=verbose)
    return page.text()


# --- HTML -----------------------------------------------------------------------------------------------


def test_html_says_the_verdict_first_and_then_the_data() -> None:
    texts = Page(html.render(report())).texts
    assert texts[0] == f"quantool quantize: {VERDICT}"
    assert texts[1:3] == ["quantool quantize · digits.onnx ·", "done, exit code 0"]
    assert texts[3] == VERDICT
    assert texts[4].startswith("Data: digits.calib.npz beside the model, 128 samples, verified on held-out samples")


def test_html_asks_for_nothing_and_its_policy_allows_its_own_script_alone() -> None:
    text = html.render(report(NASTY))
    page = Page(text)
    assert {"link", "img", "iframe", "object"}.isdisjoint(page.tags)
    assert page.tags.count("script") == 1
    assert {"src", "href"}.isdisjoint(name for name, _ in page.attributes)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "url(" not in text
    assert "@import" not in text
    policy = next(value for name, value in page.attributes if name == "content" and "default-src" in str(value))
    script = text.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )


def test_html_shows_figures_nodes_tensors_reasons_and_recipe() -> None:
    texts = Page(html.render(gate_failed())).texts
    for expected in (
        "2 of 3 nodes", "QLinearConv 12, QGemm 1", "34.2 dB", "digits/logits", "digits/x", "-3 to 3", "-3.1 to 3.4",
        "0.01 to 0.02 (2 values)", "softmax: Softmax amplifies small errors.", "if_1/then_branch", "--min-sqnr",
        "fails",
        "What would change it: Ask for it with --include-op Softmax.", "outlier", "1.23 ms",
        "gate-failed, exit code 1", "over 99.9 %", "3 nodes of the model as given", "mse", "+2.5 dB",
        "--exclude digits/conv", "41.0 dB", "29.5 dB", "A Processor, 2 CPUs, threads chosen by the runtime",
        "quantool 0.1.0, onnx 1.0, Python 3.11.7", "quantool quantize 'digits.onnx' --report r.html", "ab" * 32,
    ):  # fmt: skip
        assert expected in texts, expected
    assert any('exclude = ["digits/x"]' in text for text in texts)


def test_html_has_one_heading_per_section_under_one_title() -> None:
    tags = Page(html.render(gate_failed())).tags
    assert tags.count("h1") == 1
    assert tags.count("h2") == tags.count("section")
    assert tags.count("table") == tags.count("caption")


@given(st.text())
@settings(max_examples=30)
def test_no_name_becomes_html(name: str) -> None:
    plain_page, page = Page(html.render(report("digits"))), Page(html.render(report(name)))
    assert page.tags == plain_page.tags


def test_html_of_a_refusal_names_the_error() -> None:
    texts = Page(html.render(REFUSED)).texts
    assert "m.onnx is no model" in texts
    assert "fix: Give one." in texts


def widths(page: Page) -> list[str | None]:
    """The lengths of the bars."""
    return [value for name, value in page.attributes if name == "style"]


def test_bars_are_relative_to_the_longest_of_their_kind() -> None:
    page = Page(html.render(replace(report(), latency=LatencyInfo(float_ms=1.0, quantized_ms=2.0, speedup=0.5))))
    lengths = ("100.00", "26.73", "50.00", "100.00", "57.00", "50.17", "99.80", "66.67", "99.99", "100.00")
    assert widths(page) == [f"width: {length}%" for length in lengths]


@pytest.mark.parametrize(
    ("speedup", "interval", "words"),
    [
        (2.0, None, "2.00x faster"), (0.5, (0.4, 0.6), "2.00x slower"), (1.1, (0.9, 1.3), "no significant difference"),
        (0.98, (0.97, 0.99), "as fast as float"), (1.02, None, "as fast as float"),
    ],
)  # fmt: skip
def test_the_tile_of_time_claims_no_more_than_its_interval(
    speedup: float, interval: tuple[float, float] | None, words: str
) -> None:
    found = LatencyInfo(float_ms=1.0, quantized_ms=2.0, speedup=speedup, interval=interval, rounds=50)
    assert words in Page(html.render(replace(report(), latency=found))).texts


def test_the_tile_of_accuracy_is_that_of_the_worst_output_with_its_perplexity() -> None:
    run = report()
    assert run.verification is not None
    outputs = {
        "good": comparison(sqnr_db=50.0),
        "bad": comparison(sqnr_db=20.0, perplexity=4.5, float_perplexity=4.25),
        "same": comparison(sqnr_db=None, exact=True),
    }
    found = replace(run, verification=replace(run.verification, outputs=outputs))
    texts = Page(html.render(found)).texts
    assert "worst output bad, 16 held-out samples, perplexity 4.25 to 4.5" in texts
    assert texts[texts.index("Accuracy") + 1] == "20.0 dB"


def test_a_long_table_is_folded_behind_its_worst_rows_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    row = report().tensors[0]
    rows = tuple(replace(row, name=f"t{i}", sqnr_db=10.0 + i) for i in range(100))
    texts = Page(html.render(replace(report(), tensors=rows))).texts
    assert "All 100 quantized tensors" in texts
    assert "The 20 whose rounding loses most" in texts
    assert texts.count("t0") == 2
    assert texts.count("t99") == 1
    monkeypatch.setattr(html, "MOST_ROWS", 70)
    texts = Page(html.render(replace(report(), tensors=rows))).texts
    assert "30 more are left out here: see the JSON report" in texts
    assert "t99" not in texts


def test_long_names_lose_their_middle() -> None:
    texts = Page(html.render(report("n" * 3000))).texts
    assert max(len(text) for text in texts if text.endswith("/conv") and text.startswith("n")) < 200


# --- Markdown -------------------------------------------------------------------------------------------


def test_markdown_says_the_data_first_and_then_the_verdict() -> None:
    lines = markdown.render(report()).splitlines()
    assert lines[0].startswith("Data: digits.calib.npz beside the model")
    assert lines[2] == f"## {VERDICT}"
    assert "| coverage | 66.7 % of nodes, over 99.9 % of multiply-adds, 100 % of weight bytes |" in lines


def test_markdown_groups_kept_nodes_and_names_errors() -> None:
    text = markdown.render(gate_failed())
    assert "| softmax | 1 | Softmax 1 | Softmax amplifies small errors. | Ask for it" in text
    assert "| gate-failed | min-sqnr is 34.2 dB, below 40 dB | --min-sqnr | Lower it. |" in text
    assert "| --min-sqnr | 40 | 34.2 | fails |" in text


def outside_fences(text: str) -> list[str]:
    """The lines of Markdown that are not shown as they stand."""
    lines, fence = [], ""
    for line in text.splitlines():
        if fence:
            fence = "" if line == fence else fence
        elif line.startswith("```"):
            fence = line
        else:
            lines.append(line)
    assert fence == ""
    return lines


def test_markdown_of_any_run_fits_into_a_pull_request(monkeypatch: pytest.MonkeyPatch) -> None:
    many = replace(
        report("|" * 500),
        warnings=report("x" * 5000).warnings * 999,
        tensors=report().tensors * 999,
        nodes=tuple(
            NodeRow(
                name="n" * 900, op_type="X", scope="", decision="kept", reason=Reason(code=f"c{i}", text="t", fix="f")
            )
            for i in range(200)
        ),
    )
    text = markdown.render(many)
    assert len(text.encode()) < 65_536
    assert "and 969 more" in text
    monkeypatch.setattr(markdown, "MOST_BYTES", 5000)
    text = markdown.render(many)
    assert len(text.encode()) < 5100
    assert text.endswith("The rest is left out here: see the JSON or HTML report.\n")


def test_markdown_holds_the_detail() -> None:
    text = markdown.render(report())
    for expected in (
        "### Where the loss starts", "| 2 | digits/softmax | Softmax | float | 41.0 dB | 29.5 dB |",
        "| digits/conv | Conv | +2.5 dB | 2 % | --exclude digits/conv |", "| digits/x | uint8 | -3 to 3 |",
        "### Recipe\n\n```\nmode = \"static\"", "| system | Linux 6.1, x86\\_64 |",
    ):  # fmt: skip
        assert expected in text, expected


@given(st.text())
def test_no_name_breaks_out_of_a_markdown_cell(name: str) -> None:
    plain_lines, lines = (outside_fences(markdown.render(report(n))) for n in ("digits", name))
    bars = [len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines]
    assert bars == [line.count("|") for line in plain_lines]
    assert not re.search(r"(?<!\\)(?:\\\\)*<", "".join(lines))


# --- JUnit ----------------------------------------------------------------------------------------------


def test_each_gate_is_a_test_case_and_a_failed_one_a_failure() -> None:
    root = ET.fromstring(junit.render(gate_failed()))
    suite = root[0]
    cases = {case.get("name"): case for case in suite.findall("testcase")}
    assert list(cases) == ["quantize", "min_sqnr", "max_size_ratio"]
    failure = cases["min_sqnr"].find("failure")
    assert failure is not None
    assert failure.get("message") == "--min-sqnr is 34.2, the limit is 40"
    assert cases["max_size_ratio"].find("failure") is None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "0")


def test_a_refusal_is_an_error_of_the_run() -> None:
    suite = ET.fromstring(junit.render(REFUSED))[0]
    error = suite.find("testcase/error")
    assert error is not None
    assert (error.get("type"), error.get("message")) == ("no-model", "m.onnx is no model")
    assert error.text == "where: m.onnx\nfix: Give one."
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "0", "1")


@given(st.text())
def test_any_name_gives_xml_that_parses(name: str) -> None:
    root = ET.fromstring(junit.render(report(name)))
    shown = {p.get("name"): p.get("value") for p in root.iter("property")}
    assert shown["model"] == f"{visible(name)}.onnx, 412 kB, opset 13"


# --- terminal -------------------------------------------------------------------------------------------


def test_the_summary_says_the_data_first_and_then_the_verdict() -> None:
    lines = screen(report()).splitlines()
    assert lines[0].startswith("Data: digits.calib.npz beside the model, 128 samples")
    assert lines[2] == VERDICT


@pytest.mark.parametrize("run", [report(), report("n" * 200), report("ä b" * 99), gate_failed(NASTY), REFUSED])
@pytest.mark.parametrize("verbose", [False, True])
def test_the_summary_fits_80_columns_and_is_plain_when_piped(run: Report, verbose: bool) -> None:
    text = screen(run, verbose=verbose)
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert "\x1b" not in text
    assert all(line == line.rstrip(" ") for line in text.splitlines())


def test_a_terminal_gets_colour_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;32m" in screen(report(), terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in screen(report(), terminal=True)


def test_markup_and_escapes_in_names_are_shown_as_text() -> None:
    text = "".join(screen(gate_failed(NASTY), verbose=True).split())
    assert "".join(visible(f"{NASTY}/softmax").split()) in text
    assert "\x1b" not in text


def test_a_verdict_against_the_result_is_no_success_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    against = replace(report(), verdict="Not worth it: slower than float (0.90x); 3.6x smaller.")
    assert "\x1b[1;33mNot worth it" in screen(against, terminal=True)
    assert ("class", "doubt") in Page(html.render(against)).attributes
    assert ("class", "done") in Page(html.render(report())).attributes
    assert ("class", "trouble") in Page(html.render(gate_failed())).attributes


@pytest.mark.parametrize(
    ("command", "absent"),
    [("compare", ("verified on", "recipe")), ("calibrate", ("quantized  ", "of the model"))],
)
def test_a_command_tells_only_what_it_decided(command: str, absent: tuple[str, ...]) -> None:
    text = screen(replace(report(), command=command, nodes=report().nodes[:2]))
    whole = screen(replace(report(), nodes=report().nodes[:2]))
    for words in absent:
        assert words in whole
        assert words not in text


def test_failing_gates_come_before_the_verdict() -> None:
    assert headline(gate_failed()) == f"Fails --min-sqnr. {VERDICT}"


def test_a_run_without_a_verdict_is_headed_by_its_error_or_its_end() -> None:
    assert headline(REFUSED) == "m.onnx is no model"
    assert headline(Report(command="inspect")) == "Done."


def test_few_names_are_shown_unless_verbose() -> None:
    rows = tuple(NodeRow(name=f"s{i}", op_type="Softmax", scope="", decision="kept", reason=SOFTMAX) for i in range(9))
    run = replace(report(), nodes=rows)
    assert "s0, s1, s2 and 6 more" in screen(run)
    assert "s7, s8" in screen(run, verbose=True)


def test_warnings_are_counted_and_the_rest_is_named() -> None:
    run = replace(report(), warnings=report().warnings * 7)
    assert "7 warnings" in screen(run)
    assert "and 2 more: see -v or --report" in screen(run)
    assert "more: see" not in screen(run, verbose=True)


def test_explain_prints_every_node_with_done_or_reason_and_what_would_change_it() -> None:
    page = Screen(terminal=False)
    page.explanation(report())
    lines = page.text().splitlines()
    assert "quantized  Conv     digits/conv" in lines
    assert "quantized  Relu     digits/relu  into digits/conv" in lines
    assert "kept       Softmax  if_1/then_branch/digits/softmax  softmax: Softmax amplifies small errors." in lines
    assert "  Ask for it with --include-op Softmax." in lines


def test_inspection_is_printed_with_shapes_and_operators() -> None:
    page = Screen(terminal=False)
    page.inspection(
        Inspection(
            model=ModelInfo(path="m.onnx", sha256="0", opset=17, size_bytes=1234),
            inputs=(TensorInfo(name="x", dtype="float32", shape=("N", 3, None)),),
            outputs=(TensorInfo(name="y", dtype="", shape=None),),
            operators={"Conv": 2, "Add": 2, "Abs": 5},
            parameters=123456,
            parameter_bytes=493824,
            quantizable_nodes=1,
            quantizable_share=0.25,
            data_beside=None,
        )
    )
    text = page.text()
    for expected in ("x: float32 [N, 3, ?]", "y: no tensor unknown shape", "Abs 5, Add 2, Conv 2", "123,456"):
        assert expected in text
    assert "1 node with weights, 25 % of all" in text
    assert re.search(r"data beside it +none", text)


def test_an_error_is_printed_with_its_four_texts_unbroken() -> None:
    long = "x" * 300
    error = ModelError("a-code", long, where="here\x1b[2J", fix="fix it")
    page = Screen(terminal=False)
    page.failures(Report.failed("quantize", error).errors)
    assert page.text().splitlines() == [
        f"error: {long}", "  where: here\\x1b[2J", "  fix: fix it", "  code: a-code",
    ]  # fmt: skip


# --- the words ------------------------------------------------------------------------------------------


def test_kept_nodes_are_grouped_by_code_the_largest_group_first_without_absorbed_ones() -> None:
    other = Reason(code="excluded", text="Excluded.", fix="Include it.")
    rows = (
        NodeRow(name="a", op_type="Add", scope="", decision="kept", reason=other),
        NodeRow(name="b", op_type="Softmax", scope="", decision="kept", reason=SOFTMAX),
        NodeRow(name="c", op_type="Softmax", scope="", decision="kept", reason=SOFTMAX),
        NodeRow(name="d", op_type="Relu", scope="", decision="kept", into="a", reason=other),
        NodeRow(name="e", op_type="Conv", scope="", decision="quantized"),
    )
    groups = kept_groups(replace(report(), nodes=rows))
    assert [(g.code, [n.name for n in g.nodes], g.operators) for g in groups] == [
        ("softmax", ["b", "c"], "Softmax 2"),
        ("excluded", ["a"], "Add 1"),
    ]


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (412_345, "412 kB"), (999_700, "1 MB"), (3_220_000_000, "3.22 GB"),
     (12_345_678_901_234, "12346 GB"), (None, "unknown")],
)  # fmt: skip
def test_sizes(size_bytes: int | None, text: str) -> None:
    assert size(size_bytes) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.0, "0 %"), (1.0, "100 %"), (0.99999, "over 99.9 %"), (0.00001, "under 0.1 %"), (0.5, "50 %"), (2.5, "250 %"),
     (None, "unknown")],
)  # fmt: skip
def test_percents_reach_their_ends_only_where_the_fraction_does(fraction: float | None, text: str) -> None:
    assert percent(fraction) == text


def test_numbers_counts_and_lists_in_words() -> None:
    assert [number(None), number(12.34567), decibel(None), decibel(3.14159), decibel(None, exact=True)] == [
        "-", "12.35", "-", "3.1 dB", "exact",
    ]  # fmt: skip
    assert counts({"b": 1, "a": 1, "c": 3}) == "c 3, a 1, b 1"
    assert counts({}) == "none"
    assert listing(["a", "b\n", "c"], most=2) == "a, b\\n and 1 more"
    assert [plural(1, "node"), plural(0, "node")] == ["1 node", "0 nodes"]


@given(st.text())
def test_visible_text_is_one_printable_line(text: str) -> None:
    assert visible(text).isprintable()
    assert not text.isprintable() or visible(text) == text
