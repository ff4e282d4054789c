"""The recipe in a report repeats the run, and what no run can satisfy is refused before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline.bed as bed
import quantool
from pipeline.bed import Shell, feeds
from quantool.errors import OptionError

RECIPES: dict[str, dict[str, Any]] = {
    "nothing said": {},
    "qoperator": {"format": "qoperator"},
    "symmetric": {"formula": "onnx-symmetric", "calibrator": "minmax"},
    "tensorflow": {"formula": "tf-scaled", "narrow_range": True, "granularity": "tensor", "activations": "int8"},
    "7 bits": {"target": "cpu-x64-avx2"},
    "another machine": {"target": "cpu-arm64"},
    "16 bits": {"activations": "int16"},
    "4-bit weights": {"weights": "int4", "granularity": "channel"},
    "rules": {"rules": [{"tensor": "image", "range": [-2, 2]}, {"op_type": "Gemm", "exclude": True}]},
    "choice": {"exclude": ["head"], "include_op": ["Conv", "Relu"]},
    "dynamic": {"mode": "dynamic"},
    "weights alone": {"mode": "weight-only"},
    "4-bit weights alone": {"mode": "weight-only", "weights": "uint4", "granularity": "channel"},
    "fast": {"effort": "fast", "samples": 20},
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipe_of_a_report_gives_the_same_model_again(ready: Shell, name: str) -> None:
    first = quantool.quantize("m.onnx", data="d.npz", recipe=RECIPES[name])
    written = json.loads(json.dumps(first.report.to_dict()))["recipe"]
    again = quantool.quantize("m.onnx", data="d.npz", recipe=written)
    assert again.model == first.model
    assert again.report.to_dict()["recipe"] == written
    assert [row.runs_as for row in again.report.nodes] == [row.runs_as for row in first.report.nodes]


def test_without_data_too(shell: Shell) -> None:
    bed.save(bed.mlp(), Path("m.onnx"))
    first = quantool.quantize("m.onnx")
    written = first.report.to_dict()["recipe"]
    assert (written["mode"], written["weights"], written["granularity"]) == ("auto", "int8", "channel")
    assert quantool.quantize("m.onnx", recipe=written).model == first.model


def test_what_was_left_open_is_told(ready: Shell) -> None:
    found = ready("quantize m.onnx --data d.npz --json").document["recipe"]
    decided = {key: found[key] for key in ("mode", "format", "target", "weights", "activations", "granularity")}
    assert decided == {
        "mode": "static", "format": "qdq", "target": "cpu-x64", "weights": "int8", "activations": "uint8",
        "granularity": "channel",
    }  # fmt: skip
    assert (found["formula"], found["calibrator"] in ("mse", "minmax")) == ("onnx", True)
    found = ready("quantize m.onnx --mode weight-only --weights int4 --json").document["recipe"]
    assert (found["granularity"], found["format"], found["activations"]) == ("block:32", None, None)
    assert (found["calibrator"], found["formula"]) == (None, None)
    arm = ready("quantize m.onnx --data d.npz --target cpu-arm64 -o a.onnx --json").document["recipe"]
    assert (arm["activations"], arm["weights"]) == ("int8", "int8")


def test_what_feeds_a_sigmoid_keeps_its_extrema_where_the_default_is_named(shell: Shell) -> None:
    text = "(float[N,8] x) => (float[N,4] y) { h = MatMul(x, w) y = Sigmoid(h) }"
    proto = bed.model(text, {"w": bed.normal(8, 4)})
    data = [{"x": row[None]} for row in np.random.default_rng(3).laplace(size=(200, 8)).astype(np.float32)]
    models = [
        quantool.quantize(proto, data=data, format="qoperator", effort="fast", **options).model
        for options in ({}, {"calibrator": "mse"})
    ]
    assert models[0] == models[1]


def test_a_recipe_file_decides_and_options_win_over_it(ready: Shell) -> None:
    Path("r.toml").write_text('format = "qoperator"\nexclude = ["head"]\n[[rules]]\nop_type = "Add"\nexclude = true\n')
    found = ready("quantize m.onnx --data d.npz --recipe r.toml --json").document
    kept = {row["name"]: row["reason"]["code"] for row in found["nodes"] if row["decision"] == "kept"}
    assert kept.items() >= {"head": "excluded", "residual": "excluded"}.items()
    assert found["recipe"]["format"] == "qoperator"
    found = ready("quantize m.onnx --data d.npz --recipe r.toml --format qdq --force --json").document
    assert found["recipe"]["format"] == "qdq"


IMPOSSIBLE = {
    "weight-only in QOperator": "--mode weight-only --format qoperator",
    "16 bits in QOperator": "--format qoperator --activations uint16",
    "4 bits in QOperator": "--format qoperator --weights int4",
    "blocks in QOperator": "--format qoperator --granularity block:32",
    "4 bits in MatMulInteger": "--mode dynamic --weights int4",
    "int8 activations in DynamicQuantizeLinear": "--mode dynamic --activations int8",
    "an output gate without verification": "--min-sqnr 20 --no-verify",
    "a speed gate without verification": "--min-speedup 1 --no-verify",
    "a fraction beyond 1": "--min-agreement 1.5",
    "a drop that nobody measures": "--max-drop 0.01",
    "a drop from no value": "--max-drop 0.01 --metric sqnr",
    "an unknown metric": "--metric top2",
    "integer inputs": "--io quantized",
    "a speed gate on sessions that save memory": "--min-speedup 1 --memory 2G",
    "an unknown target": "--target cpu-mips",
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_is_refused_before_the_model_is_read(shell: Shell, name: str) -> None:
    ran = shell(f"quantize nowhere.onnx {IMPOSSIBLE[name]} --report r.json --json")
    assert (ran.code, ran.document["status"]) == (2, "refused")
    (error,) = ran.document["errors"]
    assert "nowhere.onnx" not in error["what"]
    option = IMPOSSIBLE[name].split()[0]
    assert option in error["what"] + error["where"]
    assert shell.files() in ([], ["r.json"])


def test_a_grid_without_a_code_for_zero_is_refused(ready: Shell) -> None:
    ran = ready("quantize m.onnx --data d.npz --formula tf-scaled --narrow-range --json")
    assert (ran.code, ran.document["errors"][0]["code"]) == (2, "impossible-pair")


def test_max_drop_says_what_it_would_need(ready: Shell) -> None:
    with pytest.raises(OptionError) as caught:
        quantool.quantize("m.onnx", data="d.npz", max_drop=0.01)
    assert (caught.value.code, caught.value.where, caught.value.exit_code) == ("not-measured", "--max-drop", 2)
    assert "needs a metric" in caught.value.what
    assert "--min-agreement" in caught.value.fix


@pytest.mark.parametrize("gate", ["min_sqnr", "min_agreement", "min_speedup"])
def test_a_gate_on_outputs_needs_samples(ready: Shell, gate: str) -> None:
    with pytest.raises(OptionError, match="needs samples to run"):
        quantool.quantize("m.onnx", **{gate: 0.5})


def test_static_without_data_or_ranges_is_refused(ready: Shell) -> None:
    ran = ready("quantize m.onnx --mode static --json")
    assert (ran.code, ran.document["errors"][0]["code"]) == (2, "static-without-data")
    ran = ready("quantize m.onnx --mode static --verify-data d.npz --json")
    assert (ran.code, ran.document["errors"][0]["code"]) == (2, "static-without-data")
    assert ready.files() == ["d.npz", "m.onnx"]


@pytest.mark.parametrize("options", ["--exclude hed", "--include hed", "--exclude-op Cnov", "--include-op Cnov"])
def test_a_pattern_that_matches_nothing_is_refused_with_near_names(ready: Shell, options: str) -> None:
    ran = ready(f"quantize m.onnx --data d.npz {options} --json")
    (error,) = ran.document["errors"]
    assert (ran.code, error["where"]) == (2, options.split()[0])
    assert ("head" if "hed" in options else "Conv") in error["fix"]


def test_an_unnamed_node_answers_to_its_operator_and_output(ready: Shell) -> None:
    found = quantool.quantize("m.onnx", data=feeds(), exclude=["Conv:*"]).report.nodes
    assert {row.name: row.reason.code for row in found if row.reason}["Conv:c1"] == "excluded"
