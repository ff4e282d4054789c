"""A report read back from its JSON document."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import msgspec

from quantool.errors import DataError
from quantool.report.model import SCHEMA, Report

#: a document larger than this is no report: one of 100,000 tensors takes a tenth
MOST_BYTES: Final = 1 << 30


def read_report(path: Path) -> Report:
    """The Report that a ``.json`` report or the document of ``--json`` holds; unknown keys are passed over.

    Raises:
        DataError: it cannot be read, is no JSON, or no document of this schema.
    """
    try:
        document = msgspec.json.decode(_content(path))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _unusable(path, "report-not-json", f"The report is not JSON: {error}") from None
    found = document.get("schema") if isinstance(document, dict) else None
    if found != SCHEMA:
        shown = "no schema" if found is None else f"the schema {str(found)[:40]!r}"
        raise _unusable(path, "report-unknown", f"The report has {shown}; this version reads '{SCHEMA}'")
    try:
        return msgspec.convert(document, Report)
    except msgspec.ValidationError as error:
        text = str(error).replace("`", "'")
        raise _unusable(path, "report-unknown", f"The report is not as '{SCHEMA}' says: {text}") from None


def _content(path: Path) -> bytes:
    try:
        # A pipe or a device could keep the run waiting, or never end.
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _unusable(path, "report-unreadable", "The report is no ordinary file")
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise _unusable(path, "report-unreadable", f"The report cannot be read: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise _unusable(path, "report-unreadable", f"The report is larger than {MOST_BYTES >> 20} MiB")
    return content


def _unusable(path: Path, code: str, what: str) -> DataError:
    return DataError(code, what, where=str(path), fix="Give the .json report that a run wrote with --report.")
