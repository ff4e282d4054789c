"""check: what it accepts, how it fails, and that a pipeline can act on it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import quantool
from pipeline.bed import Shell, cnn, feeds
from quantool.errors import DataError, GateError
from quantool.regression import QUANTITIES


@pytest.fixture
def runs(ready: Shell) -> Shell:
    """Two reports of one model: good.json, and worse.json, in which a layer more stays in float."""
    assert ready("quantize m.onnx --data d.npz -o g.onnx --effort fast --report good.json").code == 0
    assert ready("quantize m.onnx --data d.npz -o w.onnx --effort fast --exclude second --report worse.json").code == 0
    return ready


def edited(source: str, target: str, **changes: object) -> None:
    """Write a report with some keys changed."""
    document: dict[str, Any] = json.loads(Path(source).read_text())
    Path(target).write_text(json.dumps({**document, **changes}))


def test_a_run_passes_against_itself_and_fails_where_a_layer_is_lost(runs: Shell) -> None:
    ran = runs("check good.json --baseline good.json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("No regression in ")
    ran = runs("check worse.json --baseline good.json --tolerance speedup=off")
    assert ran.code == 1
    assert ran.out.startswith("Worse than the baseline: nodes, ")
    assert "Conv second: excluded" in ran.out
    assert "nodes newly in float: " in ran.err
    assert "  fix: Find what changed, allow more with --tolerance NAME=VALUE" in ran.err
    words = [word for name in ("speedup", "size", "sqnr", "channel-sqnr") for word in ("--tolerance", f"{name}=off")]
    back = runs("check good.json --baseline worse.json", *words)
    assert back.code == 0
    assert "Improved: nodes, " in " ".join(back.out.split())


def test_the_document_tells_every_comparison_on_failure_too(runs: Shell) -> None:
    ran = runs("check worse.json --baseline good.json --tolerance speedup=off --json --report c.json --report c.xml")
    found = ran.document
    assert json.loads(Path("c.json").read_text()) == found
    assert (found["command"], found["status"], found["exit_code"], ran.code) == ("check", "gate-failed", 1, 1)
    assert (found["check"]["of"], found["check"]["baseline"]) == ("quantize", "good.json")
    changes = found["check"]["changes"]
    assert {change["quantity"] for change in changes} == {q.name for q in QUANTITIES} - {"metric", "kl"}
    (nodes,) = [change for change in changes if change["quantity"] == "nodes"]
    assert "second" in [node["name"] for node in nodes["nodes"]]
    assert found["errors"][0]["code"] == "regression"
    suite = ET.parse("c.xml").getroot()
    cases = {case.get("name"): case.find("failure") is not None for case in suite.iter("testcase")}
    titles = {f"{change['quantity']} {change['subject']}".rstrip(): not change["passed"] for change in changes}
    assert cases == {"check": False, **titles}
    assert (suite.get("tests"), suite.get("failures")) == (str(len(cases)), str(sum(titles.values())))


def test_tolerances_decide(runs: Shell) -> None:
    loose = [f"{q.name}=off" for q in QUANTITIES]
    words = [word for text in loose for word in ("--tolerance", text)]
    assert runs("check worse.json --baseline good.json", *words).code == 0
    assert runs("check worse.json --baseline good.json", *words, "--tolerance", "nodes=0").code == 1
    assert runs("check worse.json --baseline good.json", *words, "--tolerance", "nodes=80%").code == 0


def test_a_compared_pair_can_be_checked_too(runs: Shell) -> None:
    for name in "gw":
        assert runs(f"compare m.onnx {name}.onnx --data d.npz --report {name}.json").code == 0
    assert runs("check g.json --baseline g.json").code == 0
    assert runs("check g.json --baseline good.json").code == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is not JSON"),
        (b"\x80", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"schema": "quantool/1", "command": NaN}', "is not JSON"),
        (b"{}", "has no schema"),
        (b"[]", "has no schema"),
        (b'{"schema": "quantool/9"}', "the schema 'quantool/9'; this version reads 'quantool/1'"),
        (b'{"schema": "quantool/1"}', "missing required field 'command'"),
        (b'{"schema": "quantool/1", "command": "quantize", "nodes": 3}', r"Expected 'array', got 'int' - at '$.nodes'"),
        (b'{"schema": "quantool/1", "command": "quantize"}', "has no figure to compare"),
    ],
)
def test_what_is_no_report_is_one_clear_error(runs: Shell, content: bytes | None, words: str) -> None:
    if content is not None:
        Path("bad.json").write_bytes(content)
    given = "bad.json" if content and b"quantize" in content and b"nodes" not in content else "good.json"
    ran = runs(f"check {given} --baseline bad.json --report c.md")
    assert ran.code == 2
    assert words in ran.err
    assert ran.out == ""


def test_a_pipe_is_not_waited_for(runs: Shell) -> None:
    os.mkfifo("pipe.json")
    assert runs("check pipe.json --baseline good.json").code == 2
    assert runs("check . --baseline good.json").code == 2


def test_reports_of_failures_and_of_other_models_are_refused(runs: Shell) -> None:
    edited("good.json", "refused.json", status="refused", exit_code=2)
    assert "ended as 'refused'" in runs("check good.json --baseline refused.json").err
    nodes = [{"name": "n", "op_type": "Conv", "scope": "", "decision": "quantized"}]
    edited("good.json", "other.json", nodes=nodes, model={"path": "other.onnx", "sha256": "00"})
    ran = runs("check good.json --baseline other.json")
    assert ran.code == 2
    assert "another model: 'other.onnx'" in ran.err


def test_neither_report_may_be_replaced(runs: Shell) -> None:
    before = Path("good.json").read_bytes()
    assert runs("check worse.json --baseline good.json --report good.json --force").code == 2
    assert Path("good.json").read_bytes() == before


def test_python_checks_reports_in_memory_and_files(runs: Shell) -> None:
    good = quantool.quantize(cnn(), data=feeds(), effort="fast").report
    worse = quantool.quantize(cnn(), data=feeds(), effort="fast", exclude=["second"]).report
    assert quantool.check(good, baseline=good).exit_code == 0
    with pytest.raises(GateError, match=r"regression: .* second") as caught:
        quantool.check(worse, baseline=good, tolerance={"speedup": "off", "sqnr": 0.5})
    assert caught.value.report is not None
    assert caught.value.report.check is not None
    assert caught.value.report.check.report == "in memory"
    with pytest.raises(DataError, match="report-unreadable"):
        quantool.check(good, baseline="none.json")
