"""A report as GitHub's runner takes it: lines that become annotations, and a page for the summary of the job.

The forms are those of GitHub's documentation, "Workflow commands for GitHub Actions".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from quantool.report import markdown
from quantool.report.model import Report
from quantool.report.summary import headline
from quantool.report.wording import visible

#: the runner shows so many annotations of each kind of a step, and passes over the rest
MOST_ANNOTATIONS: Final = 10
#: and takes so many bytes for the summary of a step
SUMMARY_BYTES: Final = 1 << 20
_CUT: Final = "\n\n*The rest of the report did not fit into this summary: write it to a file with `--report`.*\n"


def annotated(report: Report, *, quiet: bool = False) -> str:
    """The errors, the warnings and the verdict as commands to the runner, one a line. quiet: errors alone."""
    lines = [_command("error", f"{note.what} ({note.where}) {note.fix}", title=note.code) for note in report.errors]
    lines = _at_most(lines, "error")
    if not quiet:
        found = [
            _command("warning", f"{note.what} ({note.where}) {note.fix}", title=note.code) for note in report.warnings
        ]
        lines += _at_most(found, "warning")
        if report.verdict:
            lines.append(_command("notice", headline(report), title=f"quantool {report.command}"))
    return "".join(f"{line}\n" for line in lines)


def summary(report: Report, *, room: int = SUMMARY_BYTES) -> bytes:
    """The Markdown report in at most `room` bytes, cut between two lines; nothing where not even that fits."""
    content = markdown.render(report).encode("utf-8") + b"\n"
    if len(content) <= room:
        return content
    tail = _CUT.encode("utf-8")
    kept = content[: max(room - len(tail), 0)].rpartition(b"\n")[0]
    return kept + tail if kept else b""


def without_commands(text: str) -> str:
    """A page that gives the runner no commands, whatever names are in it: it obeys lines that begin with ``::``."""
    return re.sub(r"^(\s*):(?=:)", r"\1\\:", text, flags=re.MULTILINE).replace("##[", r"#\#[")


def document_without_commands(text: str) -> str:
    """The same for a JSON document, which stays equal: no line begins with ``::`` there."""
    return text.replace("##[", r"#\u0023[")


def _at_most(lines: list[str], kind: str) -> list[str]:
    """The first of many, and how many more there are."""
    if len(lines) <= MOST_ANNOTATIONS:
        return lines
    more = len(lines) - MOST_ANNOTATIONS + 1
    return [*lines[: MOST_ANNOTATIONS - 1], _command(kind, f"and {more} more: see the report", title="quantool")]


def _command(kind: str, text: str, *, title: str) -> str:
    return f"::{kind} title={_escaped(title, ':,')}::{_escaped(text)}"


def _escaped(text: str, more: str = "") -> str:
    """Text on one line, with the signs that the runner reads as its own."""
    return "".join(_codes(visible(text), "%" + more))


def _codes(text: str, signs: str) -> Iterator[str]:
    for sign in text:
        yield f"%{ord(sign):02X}" if sign in signs else sign
