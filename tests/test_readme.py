"""README, CHANGELOG and help say what the program does: examples run, names and numbers exist."""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from calibrators import CALIBRATORS
from quantool.__main__ import main
from quantool.cli.app import COMMANDS, EXIT_CODES
from quantool.cli.tensor import OWN
from quantool.data.images import PRESETS
from quantool.data.source import FILE_READERS, RANDOM
from quantool.elements import ELEMENTS
from quantool.errors import OptionError
from quantool.formulas import FORMULAS
from quantool.measured import Latency, OutputComparison
from quantool.pipeline.refusals import refuse_unmeasured
from quantool.recipe import Algorithm, Calibrator, Effort, Formula, Recipe, Rule, from_options, option_flag
from quantool.regression import QUANTITIES
from quantool.report.write import RENDERERS
from quantool.schema import Format, Mode
from quantool.targets import names as target_names
from quantool.verify import Evidence, verdict
from quantool.version import __version__

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
DOCUMENTS = {"README": README, "CHANGELOG": CHANGELOG}
#: of every command, and therefore in no table
COMMON_OPTIONS = frozenset({"--help", "--version", "--install-completion", "--show-completion"})


def section(heading: str) -> str:
    """The text under a heading, up to the next one of its level or above."""
    level = heading.split(" ", 1)[0]
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{2,{len(level)}}} |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def cells(text: str) -> list[list[str]]:
    """The rows of all tables in a text, without their headers."""
    rows = [line.strip().strip("|").split(" | ") for line in text.splitlines() if line.startswith("|")]
    headers = {number - 1 for number, row in enumerate(rows) if _is_rule(row)}
    body = [row for number, row in enumerate(rows) if number not in headers and not _is_rule(row)]
    return [[cell.strip() for cell in row] for row in body]


def _is_rule(row: list[str]) -> bool:
    return set("".join(row)) <= set("-| ")


def quoted(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`\n]+)`", text)


def commands(text: str) -> Iterator[list[str]]:
    """The words of each `quantool` command line in the shell blocks of a text."""
    for block in blocks(text, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("quantool "):
                yield shlex.split(line)[1:]


# --- examples run ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the sample models, and one of them under the name that examples give it."""
    shutil.copytree(ROOT / "sample_models", tmp_path / "sample_models", ignore=shutil.ignore_patterns("*.int8.onnx"))
    for suffix in (".onnx", ".calib.npz"):
        shutil.copy(ROOT / f"sample_models/digits_cnn{suffix}", tmp_path / f"model{suffix}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def facts_of(text: str) -> dict[str, str]:
    """The figures of a summary by label, lines joined that were broken for 80 columns."""
    facts: dict[str, str] = {}
    label = ""
    for line in text.splitlines():
        found = re.match(
            r"(model|output|quantized|coverage|latency|integer operators|left at run time|chosen|recipe) {2,}", line
        )
        if found:
            label = found[1]
            facts[label] = line[found.end() :].strip()
        elif label and line.startswith(" " * 10):
            facts[label] += " " + line.strip()
        else:
            label = ""
    return facts


def test_the_first_command_prints_what_the_readme_shows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (words,) = commands(section("## Two commands"))
    (shown,) = blocks(section("## Two commands"), "text")
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert (folder / "sample_models/digits_cnn.int8.onnx").is_file()
    assert printed.splitlines()[:2] == shown.splitlines()[:2]
    # Times and decibels vary with the machine; what was done does not.
    assert list(facts_of(printed)) == list(facts_of(shown))
    for label in ("model", "quantized", "coverage", "left at run time"):
        assert facts_of(printed)[label] == facts_of(shown)[label]
    pattern = r"3\.4x smaller, .*SQNR [34]\d\.\d dB, top-1 agreement 100\.0 % on 16 held-out samples\."
    assert re.search(pattern, " ".join(printed.split()))
    assert re.search(pattern, " ".join(shown.split()))


def test_the_command_of_the_pipeline_passes_and_writes_its_reports(folder: Path) -> None:
    words, check = commands(section("## Gates and reports in a pipeline"))
    assert main(words) == 0
    assert main(words) == 0  # again, over its own output
    assert (folder / "model.int8.onnx").is_file()
    assert {path.suffix for path in folder.glob("quantization.*")} == {".xml", ".html", ".json"}
    shutil.copy("quantization.json", "last.json")
    assert main(check) == 0
    assert (folder / "regression.xml").is_file()


def test_the_python_example_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = blocks(section("## Python"), "python")
    names: dict[str, object] = {}
    exec(compile(source, "README.md", "exec"), names)
    out = capsys.readouterr().out
    assert "top-1 agreement" in out
    assert "gate-failed [{'name': 'min_sqnr'" in out
    assert (folder / "digits.qcal").is_file()
    assert names["kept"] == []


def test_the_example_recipe_is_one() -> None:
    (text,) = blocks(README, "toml")
    recipe = from_options({}, tomllib.loads(text))
    assert [rule.op_type or rule.tensor or rule.name for rule in recipe.rules] == ["Sigmoid", "/neck/*", "/head/Gemm"]


def test_every_key_of_a_rule_and_algorithm_is_described() -> None:
    rules = section("### Recipes")
    assert {name for row in cells(rules) for name in quoted(row[0])} == {spec.name for spec in fields(Rule)}
    assert all(f'"{name}"' in rules for name in Algorithm)


# --- names exist ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_option_that_is_named_exists(document: str) -> None:
    known = {option_flag(name) for command in COMMANDS.values() for name in command.table}
    text = re.sub(r"^(pip|dask) .*$", "", DOCUMENTS[document], flags=re.MULTILINE)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert named
    assert named <= known | COMMON_OPTIONS


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_is_described_and_no_other(document: str) -> None:
    named = {words.split()[1] for words in quoted(DOCUMENTS[document]) if re.match(r"quantool [a-z]", words)}
    assert named == {name.split()[0] for name in COMMANDS}


def test_exit_codes_are_those_of_the_help() -> None:
    told = [f"  {row[0]}  {row[1]}".replace("`", "") for row in cells(section("### Exit codes"))]
    assert "\n".join(told) == EXIT_CODES.split("Exit codes:\n")[1]


def test_every_quantity_of_check_is_described_with_its_tolerance_there_and_in_help() -> None:
    rows = {quoted(row[0])[0]: (row[1], quoted(row[2])[0]) for row in cells(section("### Against the last run"))}
    assert {name: allowed for name, (_, allowed) in rows.items()} == {q.name: q.tolerance for q in QUANTITIES}
    assert all(rows[q.name][0].replace("`--metric`", "the metric").startswith(q.what) for q in QUANTITIES)
    told = dict(re.findall(r"([a-z-]+)=([\w.]+%?)", COMMANDS["check"].own["tolerance"].help.split("Default: ")[1]))
    assert told == {q.name: q.tolerance for q in QUANTITIES}


def test_every_target_is_described() -> None:
    told = [name for row in cells(section("### Targets")) for name in quoted(row[0])]
    assert sorted(told) == sorted(target_names())


def test_every_mode_format_effort_and_report_is_described() -> None:
    first = {name for row in cells(section("### Modes and formats")) for name in quoted(row[0])}
    assert first == {*map(str, Mode), *map(str, Format)}
    matters = section("## Which options matter")
    assert all(f"`{effort}`" in matters or f"--effort {effort}" in matters for effort in Effort)
    pipeline = section("## Gates and reports in a pipeline")
    assert all(f"`{suffix}`" in pipeline for suffix in RENDERERS)


def test_every_kind_of_data_is_described() -> None:
    told = quoted("".join(row[0] for row in cells(section("### Data"))))
    assert {*FILE_READERS, RANDOM, "package.module:callable"} <= set(told)
    assert set(PRESETS) <= {word for words in told for word in words.split()}


def test_every_formula_and_calibrator_is_described_with_its_source() -> None:
    rows = {name: row for row in cells(section("## Formulas")) for name in quoted(row[0])}
    assert {*map(str, Formula), *CALIBRATORS} <= set(rows)
    assert set(rows) - {"directml", "quantool tensor"} == {*map(str, Formula), *map(str, Calibrator)}
    assert OWN["formula"].metavar.split("|")[-1] == "directml"
    for name in map(str, Formula):
        tail = FORMULAS[name].source.split("(")[0].split(" with ")[0].split(", ")[0].strip()
        assert tail in rows[name][2].replace("`", ""), name


def test_every_element_type_is_named() -> None:
    (sentence,) = re.findall(r"^Weights can be (.*?)\. The opset", README, re.MULTILINE | re.DOTALL)
    told = set(re.findall(r"u?int\d+|float\d", sentence))
    assert told == {re.match(r"u?int\d+|float\d", name)[0] for name in ELEMENTS}  # type: ignore[index]


def test_what_is_refused_for_now_is_said_in_readme_changelog_and_help() -> None:
    refused = {"io": "quantized"}
    for name, value in refused.items():
        with pytest.raises(OptionError, match=option_flag(name)):
            refuse_unmeasured(from_options({name: value}))
    refuse_unmeasured(from_options({"min_sqnr": 20.0, "samples": 3}))
    table = COMMANDS["quantize"].table
    assert {name for name, option in table.items() if "efused for now" in option.help} == set(refused)
    for text in (section("## Limits"), CHANGELOG):
        assert all(option_flag(name) in text for name in refused)


def comparison(db: float, worst: float) -> OutputComparison:
    """One output."""
    return OutputComparison(
        sqnr_db=db, worst_channel_sqnr_db=worst, cosine=1.0, max_abs_error=0.0, top1_agreement=1.0, exact=False
    )


VERDICTS = [
    {"outputs": {"y": comparison(44.7, 40.0)}, "samples": 16, "held_out": True, "latency": (1.9, 1.0)},
    {"outputs": {"y": comparison(44.7, 40.0)}, "samples": 16, "held_out": True, "latency": (0.9, 1.0)},
    {"outputs": {"y": comparison(3.0, 3.0)}, "samples": 16, "held_out": True},
    {"outputs": {"y": replace(comparison(20.0, 20.0), float_perplexity=10.0, perplexity=18.0)}, "samples": 16},
    {"weights_db": 42.9},
    {"outputs": {"y": comparison(44.7, 40.0)}, "samples": 8, "held_out": False},
    {"outputs": {"y": comparison(44.7, 3.0)}, "samples": 16, "held_out": True},
    {"outputs": {"y": comparison(44.7, 40.0)}, "samples": 16, "coverage": 0.12},
    {"outputs": {"y": comparison(44.7, 40.0)}, "samples": 16, "held_out": True, "latency": (0.8, 1.0, 0.6, 1.3)},
]


def test_verdicts_read_as_the_readme_says() -> None:
    rows = cells(section("## How to read a verdict"))
    assert len(rows) == len(VERDICTS)
    for row, given in zip(rows, VERDICTS, strict=True):
        times = given.pop("latency", None)
        latency = (
            None if times is None else Latency(float_ms=times[0], quantized_ms=times[1], quartiles=times[2:] or None)
        )
        said = verdict(Evidence(mode=Mode.STATIC, float_bytes=340, quantized_bytes=100, latency=latency, **given))
        for words in quoted(row[0]):
            assert words in said
    assert quoted(rows[4][1])[0] in verdict(
        Evidence(mode=Mode.STATIC, float_bytes=340, quantized_bytes=100, weights_db=42.9)
    )


# --- places exist ---------------------------------------------------------------------------------------


def test_the_map_names_every_package_and_nothing_else() -> None:
    told = [quoted(row[0])[0] for row in cells(section("## Map of the code"))]
    assert all((ROOT / path).exists() for path in told)
    packages = {f"quantool/{path.parent.name}/" for path in (ROOT / "quantool").glob("*/__init__.py")}
    assert packages == {path for path in told if path.startswith("quantool/") and path.endswith("/")}


def test_every_path_and_link_leads_somewhere() -> None:
    paths = {
        words for words in quoted(README) if re.fullmatch(r"(quantool|calibrators|tests|sample_models)/[\w./-]+", words)
    }
    links = set(re.findall(r"\]\(([^)#]+)\)", README)) - set(re.findall(r"\]\((https?://[^)]+)\)", README))
    assert paths
    assert [path for path in sorted(paths | links) if not (ROOT / path).exists() and ".int8." not in path] == []


def test_continuous_integration_runs_the_blocks_of_the_readme() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    for heading in re.findall(r'block_under "([^"]+)"', script):
        assert blocks(section(f"## {heading}"), "sh")
    assert blocks(section("## Tests"), "sh")[0].splitlines()[-1].startswith("pytest ")


def test_the_comparison_has_a_row_for_every_real_model() -> None:
    source = (ROOT / "tests/real/zoo.py").read_text(encoding="utf-8")
    models = re.findall(r'^    "(\w+)": ', source, re.MULTILINE)
    rows = [row[0] for row in cells(section("### On real models"))]
    assert [name for name in rows if " (`--mode" not in name] == models


def test_the_changelog_tells_this_version() -> None:
    versions = re.findall(r"^## \[([^\]]+)\]", CHANGELOG, re.MULTILINE)
    assert versions[0] in ("Unreleased", __version__)
    assert __version__ in versions
    kinds = set(re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_defaults_that_the_readme_tells_are_those_of_the_recipe() -> None:
    recipe = Recipe()
    assert f"`{recipe.mode}` (default)" in section("### Modes and formats")
    assert f"By default (`{recipe.effort}`)" in section("## Which options matter")
    assert "`qdq` (default)" in section("### Modes and formats")
