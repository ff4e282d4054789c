"""tune: targets that are met, by what, and what the search says of it."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest

import quantool
from pipeline.bed import SAMPLES, Shell, cnn, images, model, normal, save
from quantool.pipeline.choice.knapsack import Group, proposals, spare
from quantool.pipeline.quantize import quantize
from quantool.requests import QuantizeRequest, QuantizeResult
from quantool.schema import AnyArray

LAYERS = """
(float[N,16] x) => (float[N,10] scores) {
    [lower] a = Gemm(x, w1, b1)
    r = Relu(a)
    [upper] c = Gemm(r, w2, b2)
    s = Relu(c)
    [head] scores = Gemm(s, w3, b3)
}
"""


def blinded() -> onnx.ModelProto:
    """A classifier whose classes differ by less than a step of 8 bits in the weights of its head.

    All classes share the large part of the weights, so that the output as a whole reads well while answers are lost.
    """
    w3 = normal(32, 10, seed=3) + 150 * normal(32, 1, seed=5)
    return model(
        LAYERS,
        {
            "w1": normal(16, 32, seed=1, scale=0.3), "b1": normal(32, seed=4, scale=0.1),
            "w2": normal(32, 32, seed=2, scale=0.2), "b2": np.full(32, 0.3, np.float32),
            "w3": w3, "b3": np.zeros(10, np.float32),
        },
    )  # fmt: skip


def rows(proto: onnx.ModelProto, count: int, *, seed: int) -> tuple[AnyArray, AnyArray]:
    """Inputs that the float model decides clearly, and its decisions."""
    session = onnx.reference.ReferenceEvaluator(proto)
    x = normal(4 * count, 16, seed=seed)
    scores = session.run(None, {"x": x})[0]
    best = np.sort(scores, axis=1)
    clear = np.flatnonzero(best[:, -1] - best[:, -2] > 1.0)[:count]
    assert len(clear) == count
    return x[clear], scores[clear].argmax(1)


TUNE = "tune m.onnx --data d.npz --eval e.npz --metric top1"


@pytest.fixture
def ready(shell: Shell) -> Shell:
    """The classifier with data to calibrate and to judge on."""
    proto = blinded()
    save(proto, shell.folder / "m.onnx")
    np.savez(shell.folder / "d.npz", x=normal(64, 16, seed=8))
    x, labels = rows(proto, 400, seed=9)
    np.savez(shell.folder / "e.npz", x=x, labels=labels)
    return shell


def test_a_target_that_the_default_misses_is_met_by_sparing_the_layer_to_blame(ready: Shell) -> None:
    plain = ready("quantize m.onnx --data d.npz --verify-data e.npz --metric top1 --max-drop 0.02 -o p.onnx --json")
    assert (plain.code, plain.document["status"]) == (1, "gate-failed")
    assert plain.document["metric"]["drop"] > 0.02
    assert plain.document["metric"]["resolved"]
    assert [(g["name"], g["passed"]) for g in plain.document["gates"]] == [("max_drop", False)]

    ran = ready(f"{TUNE} --max-drop 0.005 -o t.onnx --json --report r.md --report r.html")
    found = ran.document
    assert (ran.code, found["status"], found["command"]) == (0, "done", "tune")
    assert found["metric"]["drop"] <= 0.005
    assert [row["nodes"][0] for row in found["responsible"]] == ["head"]
    assert found["responsible"][0]["drop"] > 0.02
    rungs = list(dict.fromkeys(row["rung"] for row in found["candidates"]))
    assert rungs == ["mse", "bias correction", "GPTQ", "smoothing", "equalization", "float", "16 bits"]
    meeting = [row for row in found["candidates"] if row["meets"]]
    assert found["chosen"] == max(meeting, key=lambda row: row["latency"]["speedup"])["name"]
    assert all(row["pareto"] for row in meeting if row["name"] == found["chosen"])

    for report in ("r.md", "r.html"):
        text = Path(report).read_text(encoding="utf-8")
        assert "Candidates" in text
        assert re.search(r"head\b.* stays in .*: quantized alone it costs 0\.\d+ of top1", text)

    line = Path("t.toml").read_text().splitlines()[0]
    assert line == "# quantool quantize m.onnx --data d.npz --verify-data e.npz --recipe t.toml"
    again = ready(f"{line[len('# quantool ') :]} -o again.onnx --json")
    assert again.document["trials"] == []
    assert Path("again.onnx").read_bytes() == Path("t.onnx").read_bytes()


def test_a_target_that_nothing_meets_writes_nothing_unless_kept(ready: Shell) -> None:
    line = f"{TUNE} --max-drop 0.005 -o t.onnx --budget 0 --json"
    ran = ready(line)
    found = ran.document
    assert (ran.code, found["status"], len(found["candidates"])) == (1, "gate-failed", 1)  # the budget is used up
    assert [(g["name"], g["passed"]) for g in found["gates"]] == [("max_drop", False)]
    assert ready.files() == ["d.npz", "e.npz", "m.onnx"]
    kept = ready(f"{line} --keep")
    assert (kept.code, kept.document["command"], kept.document["chosen"]) == (1, "tune", found["chosen"])
    assert ready.files() == ["d.npz", "e.npz", "m.onnx", "t.onnx", "t.toml"]


def test_a_model_that_quantizes_well_needs_the_first_rung_alone(shell: Shell) -> None:
    path = SAMPLES / "digits_mlp.onnx"
    ran = shell(f"tune {path} --eval {path.with_suffix('.eval.npz')} --metric top1 --max-drop 0.005 -o t.onnx")
    assert ran.code == 0
    told = ran.err.splitlines()
    assert {line.split(":")[0] for line in told} == {"mse"}
    assert "unresolved" in told[0]
    assert "top1 0.9986 in float" in ran.out
    assert ran.out.count("meets") == len(told)
    assert shell.files() == ["t.onnx", "t.toml"]


def test_few_samples_cannot_tell_a_small_drop(ready: Shell) -> None:
    ran = ready(f"{TUNE} --samples 20 --max-drop 0.005 -o t.onnx --json --format qdq --exclude head")
    found = ran.document
    assert ran.code == 0
    assert (found["metric"]["drop"], found["metric"]["interval"]) == (0.0, [-0.15, 0.15])
    assert not found["metric"]["resolved"]
    assert "unresolved-drop" in {note["code"] for note in found["warnings"]}


def test_a_target_in_decibels_spares_by_noise_and_the_gate_is_that_of_the_model_written(shell: Shell) -> None:
    path = SAMPLES / "digits_mlp.onnx"
    found = shell(f"tune {path} --min-sqnr 52 --format qdq -o t.onnx --json --report r.md").document
    assert found["status"] == "done"
    assert found["responsible"]
    assert all(row["drop"] is None and row["sqnr_db"] > 40 for row in found["responsible"])
    (gate,) = found["gates"]
    assert gate["value"] == found["verification"]["outputs"]["scores"]["sqnr_db"] >= 52
    assert re.search(r"stays in .*: quantized alone it leaves \d+\.\d dB", Path("r.md").read_text(encoding="utf-8"))


def test_a_winner_that_misses_the_target_when_it_is_made_leaves_it_to_the_next(
    ready: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def failing_once(request: QuantizeRequest) -> QuantizeResult:
        asked.append(str(request.recipe.format))
        return quantize(
            replace(request, recipe=replace(request.recipe, max_size_ratio=0.01 if len(asked) == 1 else None))
        )

    monkeypatch.setattr(sys.modules["quantool.pipeline.tuning.tune"], "quantize", failing_once)
    ran = ready("tune m.onnx --data d.npz --min-sqnr 20 -o t.onnx --json --keep")
    assert (ran.code, ran.document["status"], len(asked)) == (0, "done", 2)
    chosen = [row for row in ran.document["candidates"] if row["name"] == ran.document["chosen"]]
    assert [row["meets"] for row in chosen] == [True]
    assert ready.files() == ["d.npz", "e.npz", "m.onnx", "t.onnx", "t.toml"]


def test_a_model_that_is_there_is_measured_by_compare(ready: Shell) -> None:
    assert ready("quantize m.onnx --data d.npz -o q.onnx").code == 0
    found = ready("compare m.onnx q.onnx --data e.npz --metric top1 --json").document["metric"]
    assert (found["name"], found["float_value"], found["rows"]) == ("top1", 1.0, 400)
    assert found["quantized_value"] < 0.98
    assert ready("compare m.onnx q.onnx --data d.npz --metric top1").code == 2  # no labels


def test_the_command_in_the_recipe_holds_whatever_the_names_are(ready: Shell) -> None:
    Path("my data.npz").write_bytes(Path("d.npz").read_bytes())
    line = "tune m.onnx --min-sqnr 20 --format qdq -o t.onnx --data"
    assert ready(line, "my data.npz").code == 0
    first = Path("t.toml").read_text().splitlines()[0]
    assert first == "# quantool quantize m.onnx --data 'my data.npz' --recipe t.toml"
    again = ready("", *shlex.split(first)[2:], "-o", "again.onnx")
    assert again.code == 0
    assert Path("again.onnx").read_bytes() == Path("t.onnx").read_bytes()


def test_python_tunes_models_and_samples_in_memory() -> None:
    feeds = [{"image": image[None]} for image in images(40)]
    result = quantool.tune(cnn(), data=iter(feeds), min_sqnr=20.0, format="qdq")
    assert result.output is None
    assert result.report.chosen in {row.name for row in result.report.candidates if row.rung == "mse"}  # by time
    again = quantool.quantize(cnn(), data=feeds, recipe=result.recipe)
    assert again.model.SerializeToString(deterministic=True) == result.model.SerializeToString(deterministic=True)


REFUSED = {
    "no labels": ("tune m.onnx --data d.npz --eval d.npz --metric top1 --max-drop 0.01", "labels-missing"),
    "no labels, quantizing": ("quantize m.onnx --data d.npz --metric top1 --max-drop 0.01", "labels-missing"),
    "an unknown metric": ("tune m.onnx --data d.npz --metric top2 --max-drop 0.01", "bad-value"),
    "no metric": ("tune m.onnx --data d.npz --max-drop 0.01", "not-measured"),
    "no data": ("tune m.onnx", "gate-without-data"),
    "an output that exists": ("tune m.onnx --data d.npz -o m.onnx", "output-is-input"),
    "a mode": ("tune m.onnx --data d.npz --recipe dynamic.toml", "not-tunable"),
    "a metric that is no function": ("tune m.onnx --data d.npz --metric os:sep", "metric-callable"),
    "labels of another shape": ("tune m.onnx --data d.npz --eval wrong.npz --metric top1", "labels-shape"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_judged_is_refused(ready: Shell, name: str) -> None:
    line, code = REFUSED[name]
    Path("dynamic.toml").write_text('mode = "dynamic"')
    np.savez("wrong.npz", x=normal(4, 16), labels=np.zeros((4, 3), int))
    files = ready.files()
    ran = ready(f"{line} --json")
    (error,) = ran.document["errors"]
    assert (ran.code, error["code"]) == (2, code)
    assert error["fix"]
    assert "top1" in error["fix"] or name != "an unknown metric"
    assert ready.files() == files


def test_the_knapsack_spares_what_errs_most_for_what_it_saves() -> None:
    assert spare([0.5, 0.1, 0.1], [100, 50, 50], 0.2) == {0}
    assert spare([0.1, 0.1, 0.1], [1, 5, 5], 0.2) == {0}
    assert spare([0.0, 0.0], [1, 1], 1.0) == set()
    groups = [Group(nodes=(name,), macs=1) for name in "abc"]
    # errors that add up to less than the whole are scaled, and smaller budgets follow
    assert proposals([0.2, 0.0, 0.0], groups, budget=0.1, whole=0.4) == [{0}]
    assert proposals([0.04, 0.03, 0.0], groups, budget=0.1, whole=0.07) == [{0}, {0, 1}]
