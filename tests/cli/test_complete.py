"""Completion: what each shell offers behind Tab, from its own script."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quantool.cli.app import COMMANDS
from quantool.cli.complete import completion_of
from quantool.elements import ELEMENTS
from quantool.schema import Mode
from quantool.targets import names

ROOT = Path(__file__).parents[2]

#: what is typed -> what is offered
TYPED = {
    "quantool qu": {"quantize"},
    "quantool recipe sh": {"show"},
    "quantool quantize --target cpu-x": {"cpu-x64", "cpu-x64-avx2"},
    "quantool check --base": {"--baseline"},
    "quantool explain --mode st": {"static"},
}
SCRIPTS = {
    "bash": 'eval "$(_QUANTOOL_COMPLETE=source_bash quantool)"; COMP_WORDS=(%s); '
    'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _quantool_completion quantool; printf "%%s\\n" "${COMPREPLY[@]}"',
    "zsh": 'autoload -Uz compinit; compinit -u -D; eval "$(_QUANTOOL_COMPLETE=source_zsh quantool)"; '
    '[ -n "$_comps[quantool]" ]; export _TYPER_COMPLETE_ARGS="%s"; _QUANTOOL_COMPLETE=complete_zsh quantool',
    "fish": '_QUANTOOL_COMPLETE=source_fish quantool | source; complete -C "%s"',
}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_shells_complete_commands_options_and_values(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for typed, offered in TYPED.items():
        done = subprocess.run(
            [shell, "-c", SCRIPTS[shell] % typed],
            cwd=tmp_path, env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        plain = {line.split("\t")[0] for line in done.stdout.splitlines()}
        words = set(re.findall(r'(?:\(\(|^)"([^"]+)"', done.stdout, re.MULTILINE)) if shell == "zsh" else plain
        assert words == offered, (typed, done.stdout, done.stderr)


def test_choices_targets_and_types_are_offered() -> None:
    def offers(name: str, metavar: str, incomplete: str = "") -> set[str]:
        completion = completion_of(name, metavar)
        assert completion is not None
        return set(completion(incomplete))

    options = COMMANDS["quantize"].table
    assert offers("mode", options["mode"].metavar) == set(Mode)
    assert offers("target", options["target"].metavar) == set(names())
    assert offers("weights", "TYPE") == set(ELEMENTS)
    assert offers("weights", "TYPE", "float4") == {name for name in ELEMENTS if name.startswith("float4")}
    assert offers("granularity", options["granularity"].metavar) == {"tensor", "channel"}
    for name in ("data", "output", "samples"):
        assert completion_of(name, options[name].metavar) is None
