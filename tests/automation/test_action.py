"""The action: its steps run, gates and baselines fail them, and no input is ever run as code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from automation.conftest import ACTION, ROOT, Runner, bash, read

GIVEN = {"model": "model.onnx", "output": "out.onnx", "verify_data": "eval.npz", "install": "false"}


def failed_cases(path: Path) -> list[str | None]:
    """The names of the test cases that failed."""
    return [case.get("name") for case in ET.parse(path).getroot().iter("testcase") if case.find("failure") is not None]


def test_a_run_that_goes_well_leaves_model_reports_output_and_summary(runner: Runner) -> None:
    assert runner(**GIVEN, data="data.npz", options="--min-sqnr 25 --effort fast") == 0
    assert runner.ran == ["Quantize"]
    assert (runner.folder / "out.onnx").is_file()
    assert runner.outputs == {"report": "quantool-reports/quantization.json"}
    reports = runner.folder / "quantool-reports"
    assert sorted(path.name for path in reports.iterdir()) == [
        "quantization.html", "quantization.json", "quantization.xml",
    ]  # fmt: skip
    assert "SQNR" in runner.summary
    assert "::notice title=quantool quantize::" in runner.done[0].stderr


def test_broken_data_fails_the_gate_and_leaves_the_old_model(runner: Runner) -> None:
    assert runner(**GIVEN, data="data.npz", options="--min-sqnr 25 --effort fast") == 0
    published = (runner.folder / "out.onnx").read_bytes()
    assert runner(**GIVEN, data="broken.npz", options="--min-sqnr 25 --effort fast") == 1
    assert (runner.folder / "out.onnx").read_bytes() == published
    assert failed_cases(runner.folder / "quantool-reports/quantization.xml") == ["min_sqnr"]
    assert "::error title=gate-failed::" in runner.done[-1].stderr
    assert "### Errors" in runner.summary


def test_a_run_that_is_worse_than_the_baseline_fails_and_publishes_nothing(runner: Runner) -> None:
    options = "--effort fast"
    assert runner(**GIVEN, data="data.npz", options=options) == 0
    published = (runner.folder / "out.onnx").read_bytes()
    last = runner.folder / "last.json"
    (runner.folder / runner.outputs["report"]).rename(last)
    given = {**GIVEN, "baseline": "last.json", "tolerance": "speedup=off\nlatency=off"}
    assert runner(**given, data="broken.npz", options=options) == 1
    assert runner.ran == ["Quantize", "Check against the baseline, then publish"]
    assert "sqnr" in " ".join(filter(None, failed_cases(runner.folder / "quantool-reports/regression.xml")))
    assert (runner.folder / "out.onnx").read_bytes() == published
    (runner.folder / "out.onnx").unlink()
    assert runner(**given, data="data.npz", options=options) == 0
    assert (runner.folder / "out.onnx").read_bytes() == published
    assert list((runner.folder / "quantool-reports/candidate").iterdir()) == []


@pytest.mark.full
def test_weights_beside_the_model_are_published_with_it(runner: Runner) -> None:
    assert runner(**GIVEN, data="data.npz", options="--effort fast") == 0
    (runner.folder / runner.outputs["report"]).rename(runner.folder / "last.json")
    candidate = runner.folder / "quantool-reports/candidate"
    candidate.mkdir()
    (candidate / "weights of another.data").write_bytes(b"w")
    given = {**GIVEN, "baseline": "last.json", "tolerance": "speedup=off"}
    assert runner(**given, data="data.npz", options="--effort fast") == 0
    assert (runner.folder / "weights of another.data").read_bytes() == b"w"


@pytest.mark.full
def test_several_sources_one_a_line(runner: Runner) -> None:
    assert runner(**GIVEN, data="data.npz\nbroken.npz\n", options="--effort fast") == 0
    document = json.loads((runner.folder / runner.outputs["report"]).read_text())
    assert document["data"]["source"].count("npz") == 2


def test_inputs_are_words_and_never_code(runner: Runner) -> None:
    evil = "$(touch pwned) `touch pwned`; touch pwned *"
    for given in ({"model": evil}, {"options": evil}):
        assert runner(**{**GIVEN, "data": "data.npz", **given}) == 2
    assert runner(**{**GIVEN, "data": "data.npz", "options": "--effort fast", "output": evil}) == 0
    assert (runner.folder / evil).is_file()
    assert not (runner.folder / "pwned").exists()
    assert all("${{" not in step["run"] for step in read(ACTION)["runs"]["steps"])


def test_every_input_is_used_and_described() -> None:
    action = read(ACTION)
    text = ACTION.read_text(encoding="utf-8")
    for name, spec in action["inputs"].items():
        assert spec["description"]
        assert f"inputs.{name}" in text
        assert spec.get("required") or "default" in spec


def test_workflows_use_the_action_as_it_is() -> None:
    inputs = read(ACTION)["inputs"]
    steps = read(ROOT / ".github/workflows/quantize.yml")["jobs"]["quantize"]["steps"]
    (step,) = [step for step in steps if step.get("uses") == "./.github/actions/quantool"]
    assert step["with"].keys() <= inputs.keys()
    assert {name for name, spec in inputs.items() if spec.get("required")} <= step["with"].keys()
    for name in ("model", "data", "verify-data"):
        assert (ROOT / step["with"][name]).is_file()


@pytest.mark.full
def test_the_workflow_example_passes_as_it_is_written(tmp_path: Path) -> None:
    steps = read(ROOT / ".github/workflows/quantize.yml")["jobs"]["quantize"]["steps"]
    (step,) = [step for step in steps if step.get("uses") == "./.github/actions/quantool"]
    (tmp_path / "sample_models").symlink_to(ROOT / "sample_models")
    given = {name.replace("-", "_"): value for name, value in step["with"].items() if name != "baseline"}
    runner = Runner(tmp_path)
    assert runner(**given, install="false") == 0, runner.done[-1].stderr


def test_the_project_runs_its_own_script() -> None:
    workflow = read(ROOT / ".github/workflows/ci.yml")
    runs = [step["run"] for step in workflow["jobs"]["run"]["steps"] if "run" in step]
    assert runs == ["bash .ci/run"]
    assert (ROOT / ".ci/run").is_file()


@pytest.mark.full
def test_the_action_installs_what_it_stands_in(workspace: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "venv"], cwd=workspace, check=True)
    install = read(ACTION)["runs"]["steps"][0]
    path = f"{workspace / 'venv/bin'}{os.pathsep}{os.environ['PATH']}"
    source = f"{ACTION.parent}/../../.."
    done = bash(
        f"PATH={path}; unset PYTHONPATH; {install['run']}; quantool --version", workspace, QUANTOOL_SOURCE=source
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("quantool ")
