"""What GitHub's runner reads: its escapes, its limits, and no command that a name gave."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from quantool.report import markdown
from quantool.report.github import annotated, document_without_commands, summary, without_commands
from quantool.report.json import document
from quantool.report.model import Failure
from quantool.schema import Note
from report.examples import NASTY, gate_failed, report


def note(text: str) -> Note:
    """A warning of one text."""
    return Note(code="c", what=text, where="w", fix="f")


def test_errors_warnings_and_the_verdict_are_one_line_each() -> None:
    assert annotated(gate_failed()).splitlines() == [
        "::error title=gate-failed::min-sqnr is 34.2 dB, below 40 dB (--min-sqnr) Lower it.",
        "::warning title=outlier::digits/x has 1 outlier (digits/x) Look at the data.",
        "::notice title=quantool quantize::Fails --min-sqnr. Worth it: 3.7 times smaller and 2.0 times as fast as "
        "float at 34.2 dB.",
    ]
    assert annotated(gate_failed(), quiet=True).count("\n") == 1
    assert annotated(replace(report(), warnings=()), quiet=True) == ""


def test_the_runner_reads_the_text_back() -> None:
    run = replace(report(), warnings=(note("100 % : a, b\r\n::error::x"),))
    (line,) = [line for line in annotated(run).splitlines() if line.startswith("::warning")]
    assert line == r"::warning title=c::100 %25 : a, b\r\n::error::x (w) f"
    titled = replace(report(), errors=(Failure(code="a:b,c%", what="x", where="y", fix="z"),))
    assert annotated(titled).startswith("::error title=a%3Ab%2Cc%25::x (y) z\n")


@given(st.text())
def test_no_text_breaks_out_of_its_line(text: str) -> None:
    lines = annotated(replace(report(), warnings=(note(text),))).splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::warning", "::notice"]


def test_of_many_annotations_the_last_tells_how_many_there_are() -> None:
    lines = annotated(replace(report(), warnings=tuple(note(str(i)) for i in range(25)))).splitlines()
    found = [line for line in lines if line.startswith("::warning")]
    assert (len(found), found[-1]) == (10, "::warning title=quantool::and 16 more: see the report")
    exact = replace(report(), warnings=tuple(note(str(i)) for i in range(10)))
    assert "more" not in annotated(exact)


def test_the_summary_is_the_markdown_report_cut_to_its_room() -> None:
    whole = markdown.render(report(NASTY)).encode() + b"\n"
    assert summary(report(NASTY)) == whole
    assert summary(report(NASTY), room=len(whole)) == whole
    for room in range(0, len(whole), 37):
        cut = summary(report(NASTY), room=room)
        assert len(cut) <= room
        if cut:
            head, _, tail = cut.decode().partition("\n\n*The rest")
            assert whole.startswith(head.encode() + b"\n")
            assert "--report" in tail
    assert summary(report(), room=-5) == b""


@given(st.text(alphabet=":#[] a\n\t\\"))
def test_a_page_gives_no_commands(text: str) -> None:
    shown = without_commands(text)
    assert not re.search(r"^\s*::", shown, re.MULTILINE)
    assert "##[" not in shown
    assert without_commands("a::b # [x] ##") == "a::b # [x] ##"


@given(st.text(alphabet=':#[] a\n\\"'))
def test_a_document_gives_no_commands_and_stays_equal(text: str) -> None:
    content = {"name": text, text: [text]}
    shown = document_without_commands(document(content))
    assert json.loads(shown) == content
    assert "##[" not in shown
    assert not re.search(r"^\s*::", shown, re.MULTILINE)
