"""Help: complete, true to the defaults, with an example and the exit codes; and fast."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest

from quantool.__main__ import main
from quantool.cli.app import COMMANDS, GROUPS
from quantool.cli.options import NOT_IN_RECIPE, OPTIONS, PANELS, RECIPE_OPTIONS, RUN
from quantool.recipe import Calibrator, Effort, Formula, GraphIO, Recipe, option_flag
from quantool.report.write import RENDERERS
from quantool.schema import Format, Mode
from quantool.version import __version__

HEAVY = ("numpy", "onnx", "onnx_ir", "onnxruntime", "rich", "jinja2", "msgspec", "tqdm", "ml_dtypes")


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """A command's help on one line."""
    assert main([*command.split(), "--help"]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_the_program_lists_its_commands_verb_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for command in COMMANDS.values():
        group, _, _ = command.name.rpartition(" ")
        assert (GROUPS[group] if group else command.help) in out
        assert not command.help.split()[0].endswith("s")
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_every_option_an_example_and_the_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(command, capsys)
    for name, option in COMMANDS[command].table.items():
        assert " ".join(option.help.split()) in text
        assert option_flag(name) in text
    assert COMMANDS[command].example in text
    assert COMMANDS[command].example.startswith(f"quantool {command}")
    assert "2 usage, or a file, recipe or data that cannot be used" in text


def test_every_field_of_the_recipe_is_an_option_and_no_other() -> None:
    names = {"no_verify" if spec.name == "verify" else spec.name for spec in fields(Recipe)}
    assert names - set(RECIPE_OPTIONS) == {"rules"}
    assert set(RECIPE_OPTIONS) <= names
    assert NOT_IN_RECIPE.isdisjoint(names)


def test_defaults_in_help_are_those_of_the_recipe() -> None:
    shown = {name: option.default for name, option in OPTIONS.items() if option.default}
    assert shown == {name: str(getattr(Recipe(), name)) for name in shown}
    decided = {name for name in RECIPE_OPTIONS if isinstance(getattr(Recipe(), name, None), str | int)}
    flags = {name for name, option in OPTIONS.items() if option.kind is bool}
    assert set(shown) == decided - flags


@pytest.mark.parametrize(
    ("name", "choices"),
    [("mode", Mode), ("format", Format), ("calibrator", Calibrator), ("formula", Formula), ("effort", Effort),
     ("io", GraphIO)],
)  # fmt: skip
def test_choices_in_help_are_those_of_the_recipe(name: str, choices: type) -> None:
    assert OPTIONS[name].metavar == "|".join(choices)


def test_report_suffixes_in_help_are_those_that_can_be_written() -> None:
    assert all(suffix in OPTIONS["report"].help for suffix in RENDERERS)


def test_every_command_takes_json_and_every_writer_output_and_force() -> None:
    for command in COMMANDS.values():
        assert "json" in command.options
        assert ("output" in command.options or "report" in command.options) == ("force" in command.options)
        if "data" in command.options:
            assert "samples" in command.options


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"quantool {__version__}\n"


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import quantool", (*HEAVY, "typing", "dataclasses", "pathlib", "importlib.metadata")),
        ("from quantool.__main__ import main; main(['--version'])", (*HEAVY, "typer", "typing", "dataclasses")),
        ("from quantool.__main__ import main; main(['--help'])", HEAVY),
        (
            "from quantool.__main__ import main; main(['quantize', '--help'])",
            ("numpy", "onnx", "onnxruntime", "msgspec"),
        ),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code: str, absent: tuple[str, ...]) -> None:
    probe = f"import sys\nbefore = set(sys.modules)\n{code}\nprint(*(set(sys.modules) - before), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert set(absent).isdisjoint(done.stdout.splitlines())


@pytest.mark.parametrize("command", COMMANDS)
def test_sections_stand_in_one_order_and_help_is_the_last_option(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [line.removesuffix(":") for line in lines if line.removesuffix(":") in PANELS]
    assert found == [panel for panel in PANELS if panel in found]
    assert found[-1] == RUN
    options = [line for line in lines if line.startswith("  -")]
    assert options[-1].split()[0] == "--help"
    assert max(map(len, lines)) <= 80
