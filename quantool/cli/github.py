"""What GitHub's runner is told, and only there: annotations on the stream of messages, and the job's summary."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantool.report.model import Report


def runs_there() -> bool:
    """Whether this process is a step of a workflow."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def safe_page(text: str) -> str:
    """A page to print; there, one in which no name is a command to the runner."""
    if not runs_there():
        return text
    from quantool.report.github import without_commands

    return without_commands(text)


def safe_document(text: str) -> str:
    """A JSON document to print; there, one in which no name is a command to the runner."""
    if not runs_there():
        return text
    from quantool.report.github import document_without_commands

    return document_without_commands(text)


def append_summary(report: Report) -> str | None:
    """Append the Markdown report to the file that GITHUB_STEP_SUMMARY names; gives what is wrong where that fails.

    The runner refuses a summary that is too large as a whole, so what other commands of the step wrote counts too.
    """
    name = os.environ.get("GITHUB_STEP_SUMMARY")
    if not name:
        return None
    from quantool.report.github import SUMMARY_BYTES, summary

    path = Path(name)
    try:
        there = path.stat().st_size if path.exists() else 0
        with path.open("ab") as file:
            file.write(summary(report, room=SUMMARY_BYTES - there))
    except OSError as error:
        return f"the job's summary '{name}' cannot be written: {error.strerror}"
    return None
