"""The step for plain shells, and the hooks of pre-commit: what they let pass and what they stop."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from automation.conftest import ROOT, bash, read

SCRIPT = ROOT / ".github/shell/quantize.sh"
HOOKS = {hook["id"]: hook for hook in read(ROOT / ".github/pre-commit/config.yaml")["repos"][0]["hooks"]}


def step(folder: Path, data: str) -> subprocess.CompletedProcess[str]:
    """One run of the pipeline."""
    return bash(f"{SCRIPT} model.onnx {data} eval.npz out.onnx reports", folder)


def test_a_pipeline_passes_then_stops_at_broken_data_and_keeps_the_old_model(workspace: Path) -> None:
    first = step(workspace, "data.npz")
    assert first.returncode == 0, first.stderr
    published, last = (workspace / "out.onnx").read_bytes(), (workspace / "reports/last.json").read_bytes()
    assert not list((workspace / "reports/candidate").iterdir())

    second = step(workspace, "broken.npz")
    assert second.returncode == 1
    assert second.stderr.startswith("error: 2 of 3 gates failed: --min-sqnr is ")
    suite = ET.parse(workspace / "reports/quantization.xml").getroot()
    failed = [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None]
    assert failed == ["min_sqnr", "min_agreement"]
    assert (workspace / "out.onnx").read_bytes() == published
    assert (workspace / "reports/last.json").read_bytes() == last
    assert not list((workspace / "reports/candidate").iterdir())

    third = step(workspace, "data.npz")
    assert third.returncode == 0, third.stderr
    assert "No regression in" in third.stdout
    assert (workspace / "out.onnx").read_bytes() == published


@pytest.mark.full
def test_a_baseline_that_was_better_stops_the_pipeline(workspace: Path) -> None:
    assert step(workspace, "data.npz").returncode == 0
    last = workspace / "reports/last.json"
    document = json.loads(last.read_text())
    for output in document["verification"]["outputs"].values():
        output["sqnr_db"] += 20
    last.write_text(json.dumps(document))
    (workspace / "out.onnx").write_bytes(b"old")
    ran = step(workspace, "data.npz")
    assert ran.returncode == 1
    assert "comparison failed: sqnr" in ran.stderr
    assert (workspace / "out.onnx").read_bytes() == b"old"


def test_the_hook_for_recipes(workspace: Path) -> None:
    (workspace / "quantool.toml").write_text("target = 'cpu-x64'\n")
    (workspace / "quantool-b.toml").write_text("sampels = 3\n")
    entry = HOOKS["quantool-recipe"]["entry"]
    ran = bash(f"{entry} quantool.toml quantool-b.toml", workspace)
    assert ran.returncode == 2
    assert ran.stdout == "No problem found.\n1 problem.\n"
    assert "Did you mean 'samples'" in ran.stderr
    assert re.search(HOOKS["quantool-recipe"]["files"], "models/quantool-b.toml")


@pytest.mark.full
def test_the_hook_for_reports(workspace: Path) -> None:
    hook = HOOKS["quantool-check"]
    assert hook["pass_filenames"] is False
    words = shlex.split(hook["entry"])
    assert words[:2] == ["quantool", "check"]
    assert bash(hook["entry"], workspace).returncode == 2
    quantized = bash("quantool quantize model.onnx --data data.npz --effort fast --report quantization.json", workspace)
    assert quantized.returncode == 0
    assert bash("cp quantization.json last.json", workspace).returncode == 0
    assert bash(hook["entry"], workspace).returncode == 0
