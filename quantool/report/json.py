"""The report as one strict JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping

from quantool.report.model import Report


def render(report: Report) -> str:
    """The JSON document of a report, in ASCII, so that every stream and tool can carry it."""
    return document(report.to_dict())


def document(content: Mapping[str, object]) -> str:
    """Plain values as JSON with one line break at the end; NaN and infinity never get here."""
    return json.dumps(content, indent=2, allow_nan=False) + "\n"
