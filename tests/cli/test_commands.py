"""What each command asks of the pipeline, prints and exits with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from report.examples import gate_failed, report

from cli.fake_pipeline import FakePipeline
from quantool.__main__ import main
from quantool.cli.app import COMMANDS
from quantool.errors import DataError, GateError, NothingQuantizedError, QuantoolError, VerificationError
from quantool.recipe import from_options
from quantool.report.model import Report
from quantool.report.read import read_report
from quantool.report.write import RENDERERS
from quantool.schema import Mode
from quantool.version import __version__

SAVED = Path(__file__).parents[1] / "report" / "saved.json"
ENVELOPE = {"schema", "command", "status", "exit_code", "errors"}
CALLS = {
    "quantize": ["quantize", "m.onnx"],
    "explain": ["explain", "m.onnx"],
    "inspect": ["inspect", "m.onnx"],
    "compare": ["compare", "m.onnx", "q.onnx"],
    "check": ["check", "r.json", "--baseline", "b.json"],
    "report": ["report", str(SAVED), "-o", "r.html"],
    "sensitivity": ["sensitivity", "m.onnx", "--data", "d.npz"],
    "calibrate": ["calibrate", "m.onnx", "-o", "m.qcal"],
    "merge": ["merge", "a.qcal", "b.qcal", "-o", "m.qcal"],
    "recipe show": ["recipe", "show"],
    "recipe export": ["recipe", "export", "-o", "r.toml"],
    "recipe check": ["recipe", "check", "r.toml"],
    "tune": ["tune", "m.onnx"],
    "targets": ["targets"],
    "tensor": ["tensor", "w.npy", "--formula", "onnx", "--type", "int8"],
}


@pytest.fixture(autouse=True)
def _fake(pipeline: FakePipeline) -> None:
    """Every test of this file runs on the fake pipeline."""


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What stands on stdout, which must be one JSON document."""
    return dict(json.loads(capsys.readouterr().out))


def call(line: str) -> int:
    """Run a command line and give its exit code."""
    return main(line.split())


# --- requests -------------------------------------------------------------------------------------------


def test_quantize_asks_with_every_option(pipeline: FakePipeline) -> None:
    line = (
        "quantize m.onnx -o out.onnx --data a.npz --data b.npz --verify-data v.npz --mode static --format qdq "
        "--target cpu-arm64 --weights int8 --activations uint8 --granularity tensor --calibrator percentile "
        "--formula tf-scaled --narrow-range --effort max --include a* --include b --exclude c --include-op Conv "
        "--exclude-op Gemm --io float --ranges r.qcal --samples 12 --batch-size 3 --memory 2G --threads 2 "
        "--report r.json --keep --seed 5 --min-sqnr 20 --min-agreement 0.9 --min-speedup 1.1 --max-size-ratio 0.5 "
        "--min-coverage 0.4 --max-drop 0.01 --metric top1 --force --allow-nonfinite --preprocess imagenet --quiet"
    )
    assert call(line) == 0
    request = pipeline.asked[0]
    assert request.recipe == from_options(
        {
            "mode": "static", "format": "qdq", "target": "cpu-arm64", "weights": "int8", "activations": "uint8",
            "granularity": "tensor", "calibrator": "percentile", "formula": "tf-scaled", "narrow_range": True,
            "effort": "max", "include": ["a*", "b"], "exclude": ["c"], "include_op": ["Conv"], "exclude_op": ["Gemm"],
            "io": "float", "ranges": "r.qcal", "samples": 12, "batch_size": 3, "memory": 2**31, "threads": 2,
            "keep": True, "seed": 5, "min_sqnr": 20, "min_agreement": 0.9, "min_speedup": 1.1,
            "max_size_ratio": 0.5, "min_coverage": 0.4, "max_drop": 0.01, "metric": "top1", "allow_nonfinite": True,
            "preprocess": "imagenet",
        }
    )  # fmt: skip
    assert (request.model, request.data, request.verify_data) == ("m.onnx", ("a.npz", "b.npz"), "v.npz")
    assert (request.output, request.write, request.force) == (Path("out.onnx"), True, True)
    assert {Path("m.onnx"), Path("a.npz"), Path("b.npz"), Path("v.npz"), Path("r.qcal")} == set(request.reads)
    assert (request.reports, request.progress) == ((Path("r.json"),), False)


def test_quantize_without_options_leaves_every_decision_open(pipeline: FakePipeline) -> None:
    assert main(["quantize", "m.onnx"]) == 0
    request = pipeline.asked[0]
    assert request.recipe == from_options({})
    assert (request.data, request.verify_data, request.output, request.write) == (None, None, None, True)


def test_no_verify_and_a_recipe_file_reach_the_recipe(pipeline: FakePipeline, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("mode = 'static'\nsamples = 3\nnarrow_range = true")
    assert main(["quantize", "m.onnx", "--recipe", "r.toml", "--samples", "4", "--no-verify"]) == 0
    recipe = pipeline.asked[0].recipe
    assert (recipe.mode, recipe.samples, recipe.narrow_range, recipe.verify) == (Mode.STATIC, 4, True, False)


def test_explain_plans_with_a_target(pipeline: FakePipeline) -> None:
    assert main(["explain", "m.onnx", "--target", "generic", "--mode", "dynamic"]) == 0
    assert pipeline.asked[0].recipe == from_options({"target": "generic", "mode": "dynamic"})


def test_compare_and_calibrate_ask_with_models_data_and_output(pipeline: FakePipeline) -> None:
    assert call("compare f.onnx q.onnx --data d.npz --samples 5") == 0
    assert call("calibrate m.onnx --data d.npz -o m.qcal --samples 5 --memory 1G --force") == 0
    compared, calibrated = pipeline.asked
    assert (compared.float_model, compared.quantized_model, compared.data) == ("f.onnx", "q.onnx", "d.npz")
    assert compared.recipe == from_options({"samples": 5})
    assert (calibrated.model, calibrated.output, calibrated.force) == ("m.onnx", Path("m.qcal"), True)
    assert calibrated.recipe == from_options({"samples": 5, "memory": "1G"})


def test_calibrate_asks_how_the_samples_are_divided(pipeline: FakePipeline) -> None:
    assert call("calibrate m.onnx -o m.qcal") == 0
    assert call("calibrate m.onnx -o m.qcal --shard 3/16 --resume") == 0
    assert call("calibrate m.onnx -o m.qcal --workers 2") == 0
    assert call("calibrate m.onnx -o m.qcal --scheduler tcp://host:8786") == 0
    asked = [(request.shard, request.workers, request.scheduler, request.resume) for request in pipeline.asked]
    assert asked == [
        (None, None, None, False),
        ((3, 16), None, None, True),
        (None, 2, None, False),
        (None, None, "tcp://host:8786", False),
    ]


def test_merge_asks_with_the_files_in_their_order(pipeline: FakePipeline) -> None:
    assert call("merge b.qcal a.qcal -o all.qcal --force") == 0
    (request,) = pipeline.asked
    assert (request.parts, request.output, request.force) == (("b.qcal", "a.qcal"), Path("all.qcal"), True)


def test_tune_asks_with_data_to_judge_on_a_target_and_a_budget(pipeline: FakePipeline) -> None:
    line = (
        "tune m.onnx --data d.npz --eval e.npz --metric top1 --max-drop 0.005 --min-speedup 1.2 --budget 2.5 -o t.onnx"
    )
    assert call(line) == 0
    (request,) = pipeline.asked
    assert (request.model, request.data, request.eval_data) == ("m.onnx", "d.npz", "e.npz")
    assert (request.budget, request.output, request.write) == (2.5, Path("t.onnx"), True)
    assert request.recipe == from_options({"metric": "top1", "max_drop": 0.005, "min_speedup": 1.2})
    assert {Path("d.npz"), Path("e.npz")} < set(request.reads)


# --- results --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", CALLS)
def test_json_is_one_document_with_the_envelope_and_nothing_on_stderr(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*CALLS[command], "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert set(found) >= ENVELOPE
    assert (found["schema"], found["command"], found["status"]) == ("quantool/1", command, "done")
    assert (found["exit_code"], found["errors"], captured.err) == (0, [], "")


@pytest.mark.parametrize("command", CALLS)
def test_text_is_plain_and_fits_80_columns(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(CALLS[command]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip()
    assert "\x1b" not in captured.out
    assert captured.err == ""
    if command != "explain":  # names are never cut there
        assert max(map(len, captured.out.splitlines())) <= 80


@pytest.mark.parametrize("command", CALLS)
def test_quiet_prints_nothing(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CALLS[command], "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_targets_lists_each_with_what_it_was_verified_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "--json"]) == 0
    targets = {target["name"]: target for target in document(capsys)["targets"]}
    assert set(targets) >= {"cpu-x64", "cpu-x64-avx2", "cpu-arm64", "generic"}
    assert (targets["cpu-x64"]["activations"], targets["cpu-x64"]["weights"]) == ("uint8", "int8")
    assert all(target["source"] and target["verified_with"] for target in targets.values())


def test_inspect_gives_what_the_model_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "m.onnx", "--json"]) == 0
    found = document(capsys)
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["N", 3]}]
    assert (found["operators"], found["data_beside"]) == ({"Conv": 2}, "m.calib.npz")


def test_sensitivity_asks_and_gives_every_group(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("sensitivity m.onnx --data d.npz -o m.toml --force --samples 9 --top 1 --json") == 0
    asked = pipeline.asked[-1]
    assert (asked.data, asked.output, asked.force, asked.recipe.samples) == ("d.npz", Path("m.toml"), True, 9)
    found = document(capsys)
    assert [group["name"] for group in found["groups"]] == ["a", "b"]
    assert (found["exclude"], found["recipe"]) == (["a"], 'exclude = ["a"]\n')


def test_reports_are_written_beside_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("quantize m.onnx --report r.json --report r.html --report r.md --report r.xml --json") == 0
    assert json.loads((tmp_path / "r.json").read_text()) == document(capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.json", "r.md", "r.xml"]


# --- failures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        (GateError("gate", "min-sqnr fails", where="--min-sqnr", fix="Lower it."), "gate-failed", 1),
        (DataError("bad-data", "x is missing", where="d.npz", fix="Add x."), "refused", 2),
        (NothingQuantizedError("none", "nothing to do", where="m", fix="-"), "nothing-quantized", 3),
        (VerificationError("lossy", "0 dB", where="m", fix="-"), "failed", 3),
    ],
    ids=lambda case: case[1],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_is_on_stderr_in_the_words_of_errors_and_sets_the_exit_code(
    pipeline: FakePipeline, capsys: pytest.CaptureFixture[str], case: tuple[QuantoolError, str, int], as_json: bool
) -> None:
    error, status, exit_code = case
    pipeline.error = error
    line = ["quantize", "m.onnx", "--report", "r.json", *(["--json"] if as_json else [])]
    assert main(line) == exit_code
    captured = capsys.readouterr()
    written = json.loads(Path("r.json").read_text())
    assert (written["status"], written["exit_code"]) == (status, exit_code)
    assert written["errors"] == [error.to_dict()]
    assert all(text in captured.err for text in error.to_dict().values())
    assert "Traceback" not in captured.err
    assert json.loads(captured.out) == written if as_json else captured.out == ""


def test_a_failed_gate_shows_the_figures_and_writes_the_reports(
    pipeline: FakePipeline, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pipeline.error = GateError("gate-failed", "too low", where="--min-sqnr", fix="-", report=gate_failed())
    assert call("quantize m.onnx --min-sqnr 40 --report r.xml") == 1
    captured = capsys.readouterr()
    assert re.search(r"--min-sqnr +40 +34.2 +fails", captured.out)
    assert captured.err.startswith("error: too low\n")
    assert 'failures="1"' in (tmp_path / "r.xml").read_text()


def test_a_model_kept_in_spite_of_a_gate_still_exits_1(pipeline: FakePipeline) -> None:
    pipeline.answer = gate_failed()
    assert call("quantize m.onnx --keep --quiet") == 1


def test_nothing_quantized_lists_the_reasons(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.error = NothingQuantizedError("none", "nothing", where="m", fix="-", report=report())
    assert main(["quantize", "m.onnx"]) == 3
    assert "softmax: Softmax 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (RuntimeError("surprise"), "internal-error", 3),
        (OSError(5, "Input/output error"), "internal-error", 3),
        (PermissionError(13, "Permission denied", "m.onnx"), "file-unusable", 2),
    ],
)
def test_any_other_exception_is_one_clear_error(
    pipeline: FakePipeline, capsys: pytest.CaptureFixture[str], error: Exception, code: str, exit_code: int
) -> None:
    pipeline.error = error
    assert main(["quantize", "m.onnx", "--json", "--report", "r.md"]) == exit_code
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["errors"][0]["code"], found["exit_code"]) == (code, exit_code)
    assert str(error.args[-1]) in captured.err
    assert "Traceback" not in captured.err
    assert Path("r.md").exists()


def test_debug_shows_the_traceback(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.error = RuntimeError("surprise")
    assert main(["quantize", "m.onnx", "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_a_rendering_that_fails_is_told_like_any_defect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Report) -> str:
        raise RuntimeError("no page")

    monkeypatch.setattr("quantool.report.html.render", broken)
    assert main(["quantize", "m.onnx", "--report", "r.html", "--json"]) == 3
    assert document(capsys)["errors"][0]["what"].endswith("RuntimeError: no page")


def test_a_report_that_cannot_be_written_is_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert main(["quantize", "m.onnx", "--report", "r.md", "--json"]) == 2
    assert document(capsys)["errors"][0]["code"] == "output-unwritable"


def test_an_interrupt_exits_130_without_a_traceback(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.error = KeyboardInterrupt()
    assert main(["quantize", "m.onnx"]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_a_signal_that_ends_a_run_gives_its_number_and_what_the_run_says(
    pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline.error = KeyboardInterrupt(15)
    pipeline.error.add_note("Go on with --resume.")
    assert call("calibrate m.onnx -o m.qcal") == 143
    assert capsys.readouterr() == ("", "interrupted\nGo on with --resume.\n")


# --- usage ----------------------------------------------------------------------------------------------

USAGE = [
    ("", "", "Missing command"),
    ("qantize m.onnx", "", "No such command 'qantize'.*quantize"),
    ("quantize", "quantize", "Missing argument 'MODEL'"),
    ("quantize m.onnx --jsn", "quantize", "No such option: --jsn.*--json"),
    ("quantize m.onnx n.onnx", "quantize", "unexpected extra argument.*n.onnx"),
    ("quantize m.onnx --mode", "quantize", "--mode.* requires an argument"),
    ("quantize m.onnx --mode dynamc", "quantize", "mode 'dynamc'"),
    ("quantize m.onnx --weights int5", "quantize", "type 'int5'"),
    ("quantize m.onnx --samples x", "quantize", "--samples is 'x'"),
    ("quantize m.onnx --samples 1.5", "quantize", "--samples is '1.5'"),
    ("quantize m.onnx --min-sqnr high", "quantize", "--min-sqnr is 'high'"),
    ("quantize m.onnx --min-sqnr nan", "quantize", "--min-sqnr is nan"),
    ("quantize m.onnx --memory much", "quantize", "memory size 'much'"),
    ("quantize m.onnx --mode weight-only --format qoperator", "quantize", "weight-only does not go with"),
    ("quantize m.onnx --recipe no.toml", "quantize", "recipe cannot be read"),
    ("quantize m.onnx --report r.pdf", "quantize", "unknown suffix '.pdf'"),
    ("quantize m.onnx --report no/r.md", "quantize", "'no' does not exist"),
    ("calibrate m.onnx", "calibrate", "not told where to write"),
    ("calibrate m.onnx -o m.qcal --shard 3", "calibrate", "--shard is '3'"),
    ("calibrate m.onnx -o m.qcal --workers two", "calibrate", "--workers is 'two'"),
    ("recipe", "recipe", "Missing command|No such option: --json"),
    ("recipe shwo", "recipe", "No such command 'shwo'.*show"),
    ("recipe check", "recipe check", "Missing argument 'RECIPE'"),
    ("recipe export", "recipe export", "not told where to write"),
    ("recipe show --mode dynamc", "recipe show", "mode 'dynamc'"),
    ("recipe show no.toml", "recipe show", "recipe cannot be read"),
    ("merge", "merge", "Missing argument 'FILES...'"),
    ("merge a.qcal", "merge", "not told where to write"),
    ("report r.json", "report", "not told what to write"),
    ("report r.json -o r.pdf", "report", "unknown suffix '.pdf'"),
    ("report none.json -o r.md", "report", "The report cannot be read"),
    ("compare m.onnx", "compare", "Missing argument 'QUANTIZED_MODEL'"),
    ("check r.json", "check", "not told what to compare with"),
    ("check", "check", "Missing argument 'REPORT_FILE'"),
    ("targets extra", "targets", "unexpected extra argument"),
]


@pytest.mark.parametrize(("line", "command", "words"), USAGE, ids=[line or "nothing" for line, _, _ in USAGE])
def test_usage_errors_exit_2_before_any_work_also_as_json(
    pipeline: FakePipeline, capsys: pytest.CaptureFixture[str], line: str, command: str, words: str
) -> None:
    assert call(line) == 2
    plain = capsys.readouterr()
    assert re.search(words, plain.err)
    assert plain.out == ""
    words_given = line.split()
    words_given.insert(2 if words_given[:1] == ["recipe"] else 1, "--json")
    assert main(words_given) == 2
    found = document(capsys)
    assert (found["command"], found["status"], found["exit_code"]) == (command, "refused", 2)
    if line:
        assert re.search(words, found["errors"][0]["what"])
    assert pipeline.asked == []
    assert list(Path().iterdir()) == []


def test_json_is_honoured_even_where_a_mistake_makes_it_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("quantize m.onnx --mode --json") == 2
    assert "mode '--json'" in document(capsys)["errors"][0]["what"]


def test_a_report_may_not_replace_what_the_run_reads(pipeline: FakePipeline) -> None:
    Path("m.json").write_text("model")
    Path("r.json").hardlink_to("m.json")
    assert call("quantize m.json --report r.json --force") == 2
    assert call("quantize m.onnx --data m.json --report r.json --force") == 2
    assert (Path("r.json").read_text(), pipeline.asked) == ("model", [])


@pytest.mark.parametrize("suffix", RENDERERS)
def test_a_saved_report_is_rendered_in_every_form(suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(SAVED), "-o", f"again{suffix}"]) == 0
    assert capsys.readouterr().out == f"Wrote again{suffix}.\n"
    text = Path(f"again{suffix}").read_text(encoding="utf-8")
    assert "Worth it" in text
    if suffix == ".json":  # keys that came since it was saved have their defaults
        assert read_report(Path("again.json")) == read_report(SAVED)
    assert main(["report", str(SAVED), "-o", f"again{suffix}"]) == 2
    assert "--force" in capsys.readouterr().err


def test_a_report_does_not_replace_the_one_it_reads() -> None:
    Path("r.json").write_bytes(SAVED.read_bytes())
    assert call("report r.json -o r.json --force") == 2
    assert Path("r.json").read_bytes() == SAVED.read_bytes()


def test_a_report_says_how_it_was_asked_for_and_on_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "a model.onnx", "--report", "r.json", "--quiet"]) == 0
    found = json.loads(Path("r.json").read_text())
    assert found["command_line"] == "quantool quantize 'a model.onnx' --report r.json --quiet"
    assert main(["quantize", "--json"]) == 2
    refused = document(capsys)
    assert refused["command_line"] == "quantool quantize --json"
    assert refused["environment"]["versions"]["quantool"] == __version__


@pytest.mark.parametrize(("more", "detailed"), [("", False), (" --json", True), (" --report r.md", True)])
def test_detail_is_asked_for_where_a_report_shows_it(pipeline: FakePipeline, more: str, detailed: bool) -> None:
    for line in ("quantize m.onnx", "compare m.onnx q.onnx", "tune m.onnx"):
        assert call(f"{line}{more} --force") == 0
        assert pipeline.asked[-1].detailed == detailed


def test_every_command_of_the_table_is_called_here() -> None:
    assert list(CALLS) == list(COMMANDS)


def test_errors_of_the_pipeline_carry_the_model_even_without_a_report(
    pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline.error = QuantoolError("c", "w", where="x", fix="f")
    assert main(["explain", "dir/m.onnx", "--json"]) == 2
    assert document(capsys)["model"]["path"] == "dir/m.onnx"
