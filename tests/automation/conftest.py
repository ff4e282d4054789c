"""Steps of pipelines, run as their runners would run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github/actions/quantool/action.yml"
SAMPLES = ROOT / "sample_models"
#: a line of a condition, as far as the action uses the language: inputs.NAME == 'VALUE', or !=
CONDITION = re.compile(r"inputs\.([\w-]+) (==|!=) '(.*)'")


def read(path: Path) -> Any:
    """A YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def bash(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a runner does, with this checkout's quantool on the path."""
    paths = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder, env={**os.environ, **paths, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@dataclass
class Runner:
    """Runs the steps of the action one after the other, until one fails."""

    folder: Path
    ran: list[str] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    done: list[subprocess.CompletedProcess[str]] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """What the job's summary says."""
        path = self.folder / "summary.md"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def __call__(self, **given: str) -> int:
        """Run the action with these inputs (underscores for dashes); gives the exit code of its last step."""
        action = read(ACTION)
        named = {name.replace("_", "-"): value for name, value in given.items()}
        assert named.keys() <= action["inputs"].keys()
        inputs = {name: str(spec.get("default", "")) for name, spec in action["inputs"].items()} | named
        self.ran, self.done = [], []
        for step in action["runs"]["steps"]:
            if self._wanted(step.get("if"), inputs):
                self.ran.append(step["name"])
                self.done.append(self._run(step, inputs))
                if self.done[-1].returncode:
                    break
        return self.done[-1].returncode

    def _wanted(self, condition: str | None, inputs: Mapping[str, str]) -> bool:
        if condition is None:
            return True
        found = CONDITION.fullmatch(condition)
        assert found is not None, condition
        return (inputs[found[1]] == found[3]) == (found[2] == "==")

    def _run(self, step: Mapping[str, Any], inputs: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        assert step["shell"] == "bash"
        values = {f"inputs.{name}": value for name, value in inputs.items()} | {
            "github.action_path": str(ACTION.parent)
        }
        environment = {
            name: re.sub(r"\$\{\{ (.*?) \}\}", lambda found: values[found[1]], text)
            for name, text in step["env"].items()
        }
        outputs, summary = self.folder / "outputs.txt", self.folder / "summary.md"
        done = bash(
            step["run"], self.folder, **environment,
            GITHUB_ACTIONS="true", GITHUB_OUTPUT=str(outputs), GITHUB_STEP_SUMMARY=str(summary),
        )  # fmt: skip
        if outputs.exists():
            self.outputs = dict(line.split("=", 1) for line in outputs.read_text(encoding="utf-8").splitlines())
        return done


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with a trained model, data that calibrates, and the same data broken."""
    shutil.copy(SAMPLES / "digits_mlp.onnx", tmp_path / "model.onnx")
    pixels = np.load(SAMPLES / "digits_mlp.calib.npz")["pixels"][:64]
    np.savez(tmp_path / "data.npz", pixels=pixels)
    np.savez(tmp_path / "broken.npz", pixels=pixels * 0.02)  # somebody divided by 255 once more
    evaluation = np.load(SAMPLES / "digits_mlp.eval.npz")
    np.savez(tmp_path / "eval.npz", **{name: evaluation[name][:32] for name in evaluation.files})
    return tmp_path


@pytest.fixture
def runner(workspace: Path) -> Runner:
    """A runner in that folder."""
    return Runner(workspace)
