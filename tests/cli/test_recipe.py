"""quantool recipe show, export and check, on real files and models."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from pipeline.bed import Shell, cnn, save

import quantool
from quantool.cli.options import OPTIONS
from quantool.recipe import from_options

RULES = """
[[rules]]
op_type = "Conv"
weights = "int4"
[[rules]]
tensor = "c2"
activations = "int16"
"""


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell in a folder with ``m.onnx``."""
    monkeypatch.chdir(tmp_path)
    save(cnn(), Path("m.onnx"))
    return Shell(capsys, tmp_path)


# --- show -----------------------------------------------------------------------------------------------


def test_show_prints_what_target_and_mode_decide(shell: Shell) -> None:
    ran = shell("recipe show --target cpu-arm64 --exclude head")
    found = tomllib.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert found.items() >= {
        "mode": "auto", "format": "qdq", "target": "cpu-arm64", "weights": "int8", "activations": "int8",
        "granularity": "channel", "calibrator": "mse", "formula": "onnx", "exclude": ["head"], "no_verify": False,
    }.items()  # fmt: skip
    found = tomllib.loads(shell("recipe show --mode weight-only --weights int4").out)
    assert (found["granularity"], "activations" in found) == ("block:32", False)


def test_show_takes_a_file_under_options_and_counts_what_rules_match(shell: Shell) -> None:
    Path("r.toml").write_text('mode = "static"\nseed = 3\n' + RULES)
    ran = shell("recipe show r.toml --model m.onnx --seed 4")
    found = tomllib.loads(ran.out)
    assert (found["seed"], found["rules"]) == (4, tomllib.loads(RULES)["rules"])
    lines = ran.out.splitlines()
    comments = [lines[i - 1] for i, line in enumerate(lines) if line == "[[rules]]"]
    assert comments == ["# matches 2 nodes and 4 tensors", "# matches 1 tensor"]
    found = shell("recipe show r.toml --model m.onnx --json").document
    assert found["rules"] == [{"nodes": 2, "tensors": 4}, {"nodes": 0, "tensors": 1}]
    assert found["recipe"]["rules"] == tomllib.loads(RULES)["rules"]
    assert shell("recipe show --json").document["rules"] is None


def test_show_refuses_what_quantize_refuses(shell: Shell) -> None:
    assert shell("recipe show --target cpu-mips --json").document["errors"][0]["code"] == "unknown-target"
    assert shell("recipe show --mode weight-only --format qoperator").code == 2
    assert shell("recipe show --model nowhere.onnx").code == 2


# --- export ---------------------------------------------------------------------------------------------


def test_export_writes_what_gives_the_options_back(shell: Shell) -> None:
    line = (
        "--mode static --format qdq --target cpu-arm64 --weights int8 --activations uint16 --granularity tensor "
        "--calibrator percentile --formula tf-scaled --narrow-range --effort max --include a* --include b "
        "--exclude c --include-op Conv --exclude-op Gemm --ranges r.qcal --collect gram --samples 12 --batch-size 3 "
        "--memory 2G --threads 2 --keep --seed 5 --max-size-ratio 0.5 --min-coverage 0.4 --allow-nonfinite "
        "--preprocess imagenet --no-verify"
    )
    assert shell(f"recipe export -o r.toml {line}").out == "Wrote r.toml.\n"
    expected = from_options(
        {
            "mode": "static", "format": "qdq", "target": "cpu-arm64", "weights": "int8", "activations": "uint16",
            "granularity": "tensor", "calibrator": "percentile", "formula": "tf-scaled", "narrow_range": True,
            "effort": "max", "include": ["a*", "b"], "exclude": ["c"], "include_op": ["Conv"],
            "exclude_op": ["Gemm"], "ranges": "r.qcal", "collect": ["gram"], "samples": 12, "batch_size": 3,
            "memory": "2G", "threads": 2, "keep": True, "seed": 5, "max_size_ratio": 0.5, "min_coverage": 0.4,
            "allow_nonfinite": True, "preprocess": "imagenet", "no_verify": True,
        }
    )  # fmt: skip
    assert from_options({}, Path("r.toml")) == expected
    document = shell(f"recipe export -o r2.toml {line} --json").document
    assert (document["recipe"], document["output"]["path"]) == (expected.to_dict(), "r2.toml")


def test_every_key_stands_under_one_line_from_the_help(shell: Shell) -> None:
    shell("recipe export -o r.toml --mode static --exclude a --no-verify")
    lines = Path("r.toml").read_text().splitlines()
    assert lines[0::2] == [f"# {OPTIONS[name].help}" for name in ("mode", "exclude", "no_verify")]
    assert lines[1::2] == ['mode = "static"', 'exclude = ["a"]', "no_verify = true"]


def test_export_takes_over_a_recipe_and_replaces_nothing_without_force(shell: Shell) -> None:
    Path("old.toml").write_text("seed = 3\n" + RULES)
    assert shell("recipe export --recipe old.toml -o new.toml --seed 4").code == 0
    assert from_options({}, Path("new.toml")) == from_options({"seed": 4}, Path("old.toml"))
    assert shell("recipe export -o new.toml").code == 2
    assert shell("recipe export -o new.toml --force").code == 0
    assert Path("new.toml").read_text() == ""
    ran = shell("recipe export --recipe old.toml -o old.toml --force --json")
    assert (ran.code, ran.document["errors"][0]["code"]) == (2, "output-is-input")
    assert shell("recipe export -o no/r.toml").code == 2


def test_export_makes_a_recipe_of_a_report(shell: Shell) -> None:
    assert shell("quantize m.onnx --mode weight-only --recipe r.toml").code == 2
    Path("r.toml").write_text('[[rules]]\nname = "head"\nweights = "int4"\n')
    assert shell("quantize m.onnx --mode weight-only --recipe r.toml --report r.json -o first.onnx").code == 0
    assert shell("recipe export --recipe r.json -o again.toml").code == 0
    assert shell("quantize m.onnx --recipe again.toml -o second.onnx").code == 0
    assert Path("first.onnx").read_bytes() == Path("second.onnx").read_bytes()


def test_a_value_that_toml_cannot_hold_is_refused(shell: Shell) -> None:
    ran = shell("recipe export -o r.toml --json --exclude", "\udcff")
    assert (ran.code, ran.document["errors"][0]["code"]) == (2, "not-utf-8")
    assert not Path("r.toml").exists()


# --- check ----------------------------------------------------------------------------------------------


def test_check_praises_what_can_be_used(shell: Shell) -> None:
    Path("r.toml").write_text(RULES)
    assert shell("recipe check r.toml").out == "No problem found.\n"
    ran = shell("recipe check r.toml --model m.onnx")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[1:] == ["rule 1 matches 2 nodes and 4 tensors", "rule 2 matches 1 tensor"]
    found = shell("recipe check r.toml --model m.onnx --json").document
    assert (found["command"], found["status"], found["errors"]) == ("recipe check", "done", [])
    assert found["recipe"] == from_options({}, Path("r.toml")).to_dict()


BAD = """
calibrtor = "mse"
mode = "weight-only"
format = "qoperator"
target = "cpu-x46"
exclude = ["hed"]
[[rules]]
op_type = "Conf"
weights = "int5"
[[rules]]
name = "second"
op_type = "Add"
exclude = true
[[rules]]
tensor = "c9"
activations = "uint16"
"""


def test_check_lists_every_problem_with_near_names(shell: Shell) -> None:
    Path("r.toml").write_text(BAD)
    ran = shell("recipe check r.toml --model m.onnx")
    assert (ran.code, ran.out) == (2, "10 problems.\n")
    assert ran.err.count("error: ") == 10
    errors = shell("recipe check r.toml --model m.onnx --json").document["errors"]
    told = [(error["code"], error["fix"]) for error in errors]
    wanted = [
        ("unknown-key", "'calibrator'"), ("bad-value", "'int8'"), ("impossible-pair", "--mode"),
        ("impossible-pair", "activations"), ("impossible-pair", "activations"), ("unknown-target", "cpu-x64"),
        ("no-such-node", "head"), ("no-such-operator", "Conv"), ("rule-without-effect", "two rules"),
        ("no-such-tensor", "c2"),
    ]  # fmt: skip
    assert [code for code, _ in told] == [code for code, _ in wanted]
    assert all(words in fix for (_, fix), (_, words) in zip(told, wanted, strict=True))
    assert all("r.toml" in error["where"] for error in errors)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("max_drop = 0.1", "not-measured"),
        ('activations = "int8"\nweights = "uint8"\nformat = "qoperator"', "impossible-pair"),
        ('[[rules]]\nname = "head"\nactivations = "float8_e5m2"', "impossible-pair"),
        ('[[rules]]\ntensor = "p"\nactivations = "int16"\n[[rules]]\nname = "head"\nactivations = "uint16"',
         "types-of-one-scale"),
        ("mode = ", "recipe-not-toml"),
    ],
)  # fmt: skip
def test_check_finds_what_quantize_would_refuse(shell: Shell, text: str, code: str) -> None:
    Path("r.toml").write_text(text)
    ran = shell("recipe check r.toml --model m.onnx --json")
    assert (ran.code, [error["code"] for error in ran.document["errors"]]) == (2, [code])
    with pytest.raises(quantool.QuantoolError) as raised:
        quantool.quantize("m.onnx", data="random", recipe="r.toml")
    assert raised.value.code == code


def test_check_needs_files_that_can_be_read(shell: Shell) -> None:
    assert "recipe cannot be read" in shell("recipe check no.toml").err
    Path("r.toml").write_text("")
    assert shell("recipe check r.toml --model no.onnx").code == 2
