"""In a step of a workflow: annotations, the job's summary, and nothing of it anywhere else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from report.examples import gate_failed, report

from cli.fake_pipeline import FakePipeline
from quantool.__main__ import main
from quantool.errors import GateError


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch, pipeline: FakePipeline, tmp_path: Path) -> Path:
    """The environment of a step; gives the file of its summary."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    return tmp_path / "summary.md"


def fail(pipeline: FakePipeline) -> None:
    """Let a gate fail."""
    pipeline.error = GateError("gate-failed", "too low", where="--min-sqnr", fix="-", report=gate_failed())


def test_a_step_gets_annotations_and_a_summary(
    step: Path, pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    step.write_text("# what the step wrote before\n")
    fail(pipeline)
    assert main(["quantize", "m.onnx"]) == 1
    captured = capsys.readouterr()
    assert "\n::error title=gate-failed::too low (--min-sqnr) -\n" in captured.err
    assert "\n::warning title=outlier::" in captured.err
    assert "\n::notice title=quantool quantize::Fails --min-sqnr." in captured.err
    assert "::" not in captured.out
    text = step.read_text()
    assert text.startswith("# what the step wrote before\n")
    assert "### Gates" in text


def test_json_stays_one_document_and_quiet_tells_errors_alone(
    step: Path, pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", "m.onnx", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["command"] == "quantize"
    assert captured.err.startswith("::warning ")
    assert main(["quantize", "m.onnx", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["quantize", "--quiet"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("::error title=usage::Missing argument 'MODEL'.")


def test_a_summary_never_grows_beyond_what_the_runner_takes(
    step: Path, pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    step.write_bytes(b"x" * ((1 << 20) - 500))
    assert main(["quantize", "m.onnx"]) == 0
    assert (1 << 20) - 500 < step.stat().st_size <= 1 << 20
    assert "did not fit" in step.read_text()
    step.write_bytes(b"x" * (1 << 20))
    assert main(["quantize", "m.onnx"]) == 0
    assert step.stat().st_size == 1 << 20


def test_a_summary_that_cannot_be_written_is_told_and_changes_nothing(
    step: Path, pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    step.mkdir()
    assert main(["quantize", "m.onnx"]) == 0
    assert f"warning: the job's summary '{step}' cannot be written: Is a directory\n" in capsys.readouterr().err


def test_a_name_gives_the_runner_no_command(
    step: Path, pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "::stop-commands::x"
    nodes = tuple(replace(node, name=evil) for node in report().nodes)
    pipeline.answer = replace(report("##[error]"), nodes=nodes)
    for words in (["quantize", "m.onnx"], ["explain", "m.onnx"], ["quantize", "m.onnx", "--json"]):
        assert main(words) == 0
        captured = capsys.readouterr()
        lines = (captured.out + captured.err).splitlines()
        commands = [line for line in lines if line.strip().startswith("::")]
        assert [line for line in commands if not line.startswith(("::warning title=", "::notice title="))] == []
        assert "##[" not in captured.out


@pytest.mark.parametrize("value", [None, "", "false", "1"])
def test_elsewhere_there_is_nothing_of_it(
    step: Path,
    value: str | None,
    monkeypatch: pytest.MonkeyPatch,
    pipeline: FakePipeline,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if value is None:
        monkeypatch.delenv("GITHUB_ACTIONS")
    else:
        monkeypatch.setenv("GITHUB_ACTIONS", value)
    fail(pipeline)
    assert main(["quantize", "m.onnx"]) == 1
    assert "::" not in "".join(capsys.readouterr())
    assert not step.exists()
