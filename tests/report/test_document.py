"""The JSON document and its published schema, and reports read back."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from quantool.errors import GateError, ModelError, NothingQuantizedError, VerificationError
from quantool.report.json import render
from quantool.report.json_schema import ENVELOPE, document_schema, published_schema
from quantool.report.model import Report
from quantool.report.read import read_report
from report.examples import NASTY, gate_failed, report

VALIDATOR = jsonschema.Draft202012Validator(published_schema())
FAILURES = [
    kind("a-code", "what", where="where", fix="fix")
    for kind in (GateError, ModelError, NothingQuantizedError, VerificationError)
]
REPORTS = [report(), report(NASTY), gate_failed(), Report(command="x"), *(Report.failed("x", e) for e in FAILURES)]


def saved(run: Report, folder: Path) -> Path:
    """A report as --report writes it."""
    path = folder / "r.json"
    path.write_text(render(run), encoding="utf-8")
    return path


def test_the_published_schema_is_that_of_the_code() -> None:
    assert published_schema() == document_schema(), "write it anew: python -m quantool.report.json_schema > the file"
    jsonschema.Draft202012Validator.check_schema(published_schema())


@pytest.mark.parametrize("run", REPORTS)
def test_every_report_is_valid_and_reads_back_equal(run: Report, tmp_path: Path) -> None:
    document = json.loads(render(run))
    VALIDATOR.validate(document)
    assert set(ENVELOPE) <= set(document)
    assert read_report(saved(run, tmp_path)).to_dict() == run.to_dict()


@pytest.mark.parametrize(
    "spoil",
    [
        {"schema": "quantool/2"}, {"status": "fine"}, {"exit_code": "0"}, {"nodes": [{}]}, {"coverage": {"nodes": "x"}},
        {"tensors": [{"name": "t", "dtype": "int8"}]}, {"fixes": None},
    ],
)  # fmt: skip
def test_the_schema_refuses_what_is_no_report(spoil: dict[str, object]) -> None:
    assert not VALIDATOR.is_valid({**json.loads(render(report())), **spoil})
    lacking = json.loads(render(report()))
    del lacking["layers"]
    assert not VALIDATOR.is_valid(lacking)


def test_a_report_of_an_older_version_reads_with_defaults(tmp_path: Path) -> None:
    document = json.loads(render(report()))
    for key in ("layers", "fixes", "environment", "command_line"):
        del document[key]
    document["newer"] = 1
    (tmp_path / "old.json").write_text(json.dumps(document))
    found = read_report(tmp_path / "old.json")
    assert (found.layers, found.fixes, found.verdict) == (None, (), report().verdict)
