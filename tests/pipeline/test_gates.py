"""Gates: what each holds against what was measured, how people and programs read them, and what fails them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantool
from pipeline.bed import SAMPLES, Shell, cnn, feeds, mlp, model, normal
from quantool.errors import GateError

#: gate -> what it is held against, and whether the value must be at least (+1) or at most (-1) the limit
GATES = {
    "min_sqnr": (lambda d: d["verification"]["outputs"]["scores"]["sqnr_db"], 1),
    "min_agreement": (lambda d: d["verification"]["outputs"]["scores"]["top1_agreement"], 1),
    "min_speedup": (lambda d: d["latency"]["speedup"], 1),
    "max_size_ratio": (lambda d: d["output"]["size_bytes"] / d["model"]["size_bytes"], -1),
    "min_coverage": (lambda d: d["coverage"]["macs"], 1),
}


@pytest.mark.parametrize("name", GATES)
def test_a_gate_is_held_against_what_the_report_shows(ready: Shell, name: str) -> None:
    read, sign = GATES[name]
    option = "--" + name.replace("_", "-")
    loose, tight = (0.0, 1e3) if sign > 0 else (1e3, 0.0)
    if name in ("min_agreement", "min_coverage"):
        tight = 1.0
        ready("quantize m.onnx --data d.npz --exclude second -o x.onnx")
    ran = ready(f"quantize m.onnx --data d.npz {option} {loose} --json")
    found = ran.document
    (gate,) = found["gates"]
    assert (ran.code, gate["name"], gate["limit"], gate["passed"]) == (0, name, loose, True)
    assert gate["value"] == pytest.approx(read(found), rel=1e-12)
    ran = ready(f"quantize m.onnx --data d.npz {option} {tight} --exclude second --force --keep --json")
    found = ran.document
    (gate,) = found["gates"]
    assert gate["value"] == pytest.approx(read(found), rel=1e-12)
    assert gate["passed"] == (sign * gate["value"] >= sign * tight)
    assert ran.code == (0 if gate["passed"] else 1)
    if name != "min_agreement":  # whose limit of 1 can hold
        assert ran.code == 1
        assert f"{option} is " in found["errors"][0]["what"]
        assert found["errors"][0]["where"] == option


def test_several_gates_are_all_told_and_people_read_options(ready: Shell) -> None:
    ran = ready("quantize m.onnx --data d.npz --min-sqnr 90 --max-size-ratio 0.01 --min-agreement 0 --report r.md")
    assert ran.code == 1
    assert "2 of 3 gates failed: --min-sqnr is " in ran.err
    assert "Fails --min-sqnr, --max-size-ratio." in ran.out
    assert "min_sqnr" not in ran.out + ran.err
    text = Path("r.md").read_text()
    assert "| --min-sqnr | 90 |" in text
    assert "| --min-agreement | 0 |" in text


def test_a_gate_error_holds_the_figures_and_the_code(ready: Shell) -> None:
    with pytest.raises(GateError) as caught:
        quantool.quantize(cnn(), data=feeds(), min_sqnr=90)
    error = caught.value
    assert (error.code, error.exit_code, error.where) == ("gate-failed", 1, "--min-sqnr")
    assert error.report is not None
    found = error.report.to_dict()
    assert (found["status"], found["exit_code"], found["output"]) == ("gate-failed", 1, None)
    assert found["verification"]["outputs"]["scores"]["sqnr_db"] < 90
    assert all(text in str(error) for text in (error.code, error.what, error.where, error.fix))


def test_the_worst_output_counts(shell: Shell) -> None:
    text = "(float[N,8] x) => (float[N,4] good, float[N,4] bad) { good = MatMul(x, w) r = Relu(x) bad = MatMul(r, v) }"
    weights = normal(8, 4, seed=5)
    weights[0, :] *= 300  # one row of the weight takes the whole grid
    proto = model(text, {"w": normal(8, 4), "v": weights})
    report = quantool.quantize(
        proto, data=[{"x": row[None]} for row in normal(40, 8)], granularity="tensor", min_sqnr=-99
    ).report
    assert report.verification is not None
    ratios = [output.sqnr_db for output in report.verification.outputs.values()]
    assert report.gates[0].value == min(ratio for ratio in ratios if ratio is not None)


def test_equal_outputs_pass_any_gate_on_them(shell: Shell) -> None:
    # Ones and zeros on a grid of exact steps: nothing is lost.
    text = "(float[N,4] x) => (float[N,4] y) { y = MatMul(x, w) }"
    proto = model(text, {"w": np.eye(4, dtype=np.float32) * 127})
    data = [{"x": row[None]} for row in np.random.default_rng(0).integers(0, 256, (40, 4)).astype(np.float32)]
    data.extend({"x": np.array([[0, 255, 0, 255]], np.float32) + 0 * i} for i in range(20))
    result = quantool.quantize(proto, data=data, calibrator="minmax", min_sqnr=200, min_agreement=1.0)
    assert result.report.verification is not None
    assert all(output.exact for output in result.report.verification.outputs.values())
    assert [(gate.name, gate.passed) for gate in result.report.gates] == [("min_sqnr", True), ("min_agreement", True)]
    assert result.report.to_dict()["gates"][0]["value"] is None


def test_a_gate_that_could_not_be_measured_fails(shell: Shell) -> None:
    # A scalar output has no top-1.
    proto = model("(float[N,4] x) => (float y) { h = MatMul(x, w) y = ReduceMean<keepdims=0>(h) }", {"w": normal(4, 4)})
    with pytest.raises(GateError, match="--min-agreement is unknown"):
        quantool.quantize(proto, data=[{"x": row[None]} for row in normal(20, 4)], min_agreement=0.5)


def test_gates_on_size_and_coverage_need_no_data(shell: Shell) -> None:
    for gate, holds in (("max_size_ratio", 9.0), ("min_coverage", 0.5)):
        assert quantool.quantize(mlp(), **{gate: holds}).report.gates[0].passed
        assert quantool.quantize(mlp(), no_verify=True, **{gate: holds}).report.gates[0].passed
    with pytest.raises(GateError, match="--max-size-ratio"):
        quantool.quantize(mlp(), max_size_ratio=0.001)


def test_a_pipeline_whose_data_breaks_stops_at_the_gate_and_publishes_nothing(shell: Shell) -> None:
    model, data = SAMPLES / "digits_mlp.onnx", Path("good.npz")
    pixels: Any = np.load(SAMPLES / "digits_mlp.calib.npz")["pixels"]
    evaluation = SAMPLES / "digits_mlp.eval.npz"
    np.savez(data, pixels=pixels)
    line = f"quantize {model} -o out.onnx --verify-data {evaluation} --min-sqnr 25 --report r.xml --force"
    assert shell(f"{line} --data {data}").code == 0
    published = Path("out.onnx").read_bytes()
    assert 'failures="0"' in Path("r.xml").read_text()
    np.savez("broken.npz", pixels=pixels * 0.02)  # somebody divided by 255 once more
    ran = shell(f"{line} --data broken.npz --effort fast")
    assert ran.code == 1
    assert 'name="min_sqnr"' in Path("r.xml").read_text()
    assert 'failures="1"' in Path("r.xml").read_text()
    assert Path("out.onnx").read_bytes() == published


# --- every command that has gates -----------------------------------------------------------------------

#: gate -> a limit that no model meets
IMPOSSIBLE = {"min-sqnr": 200, "min-speedup": 1e6, "max-size-ratio": 0, "max-drop": 0}


@pytest.fixture
def compared(ready: Shell) -> Shell:
    """A model, its quantized form, and data whose labels the float model always gets right."""
    assert ready("quantize m.onnx --data d.npz -o q.onnx --effort fast").code == 0
    return ready


@pytest.mark.parametrize("gate", IMPOSSIBLE)
def test_compare_holds_gates_too(compared: Shell, gate: str) -> None:
    limit = IMPOSSIBLE[gate]
    metric = ("--metric", "mse") if gate == "max-drop" else ()
    ran = compared(f"compare m.onnx q.onnx --data d.npz --{gate} {limit} --json", *metric)
    found = ran.document
    assert (ran.code, found["status"], found["gates"][0]["passed"]) == (1, "gate-failed", False)
    assert found["gates"][0]["value"] is not None
    assert f"--{gate} is " in found["errors"][0]["what"]
    loose = {"min-sqnr": -99, "min-speedup": 0, "max-size-ratio": 9, "max-drop": 1e9}[gate]
    assert compared(f"compare m.onnx q.onnx --data d.npz --{gate} {loose}", *metric).code == 0


def test_compare_refuses_a_drop_of_nothing(compared: Shell) -> None:
    ran = compared("compare m.onnx q.onnx --data d.npz --max-drop 0.1")
    assert ran.code == 2
    assert "--max-drop 0.1 needs a metric" in ran.err


def test_a_gate_of_python_that_compare_cannot_measure_fails(compared: Shell) -> None:
    with pytest.raises(GateError, match="--min-coverage is unknown"):
        quantool.compare("m.onnx", "q.onnx", data="d.npz", min_coverage=0.0)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--min-sqnr inf", "--min-sqnr is inf"),
        ("--min-agreement 1.01", "--min-agreement is 1.01"),
        ("--min-agreement -0.1", "--min-agreement is -0.1"),
        ("--min-coverage 2", "--min-coverage is 2"),
        ("--min-speedup -1", "--min-speedup is -1"),
        ("--max-size-ratio nan", "--max-size-ratio is nan"),
        ("--max-drop -0.1 --metric mse", "--max-drop is -0.1"),
        ("--max-drop 0.1", "--max-drop 0.1 needs a metric"),
        ("--max-drop 0.1 --metric sqnr", "the float model has no noise"),
        ("--max-drop 0.1 --metric tpo1", "Unknown metric 'tpo1'"),
        ("--min-sqnr 20 --no-verify", "--min-sqnr 20.0 does not go with --no-verify"),
    ],
)
def test_limits_that_mean_nothing_are_refused_before_any_work(ready: Shell, option: str, words: str) -> None:
    ran = ready(f"quantize m.onnx --data d.npz {option}")
    assert ran.code == 2
    assert words in ran.err
    assert "  fix: " in ran.err
    assert ready.files() == ["d.npz", "m.onnx"]


@pytest.mark.parametrize(("gate", "edge"), [("min_agreement", 1.0), ("min_coverage", 1.0), ("max_size_ratio", None)])
def test_a_limit_that_is_met_exactly_holds(shell: Shell, gate: str, edge: float | None) -> None:
    first = quantool.quantize(cnn(), data=feeds(), effort="fast", **{gate: 0.0 if edge else 9.0}).report
    value = first.gates[0].value
    assert value is not None
    again = quantool.quantize(cnn(), data=feeds(), effort="fast", **{gate: value}).report
    assert (again.gates[0].value, again.gates[0].passed) == (value, True)


@pytest.mark.parametrize("option", ["--min-agreement 1 --min-sqnr 90", "--min-speedup 1000000", "--max-size-ratio 0"])
def test_tune_fails_where_no_candidate_meets_the_gates(ready: Shell, option: str) -> None:
    ran = ready(f"tune m.onnx --data d.npz --budget 0.02 -o t.onnx {option} --json")
    found = ran.document
    assert ran.code == 1, ran.err
    assert [gate["passed"] for gate in found["gates"]].count(False) >= 1
    assert not Path("t.onnx").exists()
