"""The JSON document: the same keys and types whatever happened, and rows for every node as given."""

from __future__ import annotations

import hashlib
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest

import pipeline.bed as bed
from pipeline.bed import KEYS, Shell, given_nodes
from quantool.report.json_schema import published_schema

NODE_KEYS = {"name", "op_type", "scope", "decision", "into", "runs_as", "reason"}
TENSOR_KEYS = {
    "name", "dtype", "scale", "zero_point", "range", "observed_min", "observed_max", "clipped_share", "sqnr_db",
    "calibrator", "histogram",
}  # fmt: skip
OUTPUT_KEYS = {
    "sqnr_db", "worst_channel_sqnr_db", "cosine", "max_abs_error", "top1_agreement", "exact", "kl", "perplexity",
    "float_perplexity",
}  # fmt: skip
TEXTS = {"code", "what", "where", "fix"}
DATA = "quantize m.onnx --data d.npz --json"

#: how a run can end: command line, exit code, status, and the code of its error
ENDINGS = {
    "done": (DATA, 0, "done", None),
    "a gate failed": (f"{DATA} --min-sqnr 90", 1, "gate-failed", "gate-failed"),
    "kept in spite of a gate": (f"{DATA} --min-sqnr 90 --keep", 1, "gate-failed", "gate-failed"),
    "no such model": ("quantize no.onnx --json", 2, "refused", None),
    "no model at all": ("quantize d.npz --json", 2, "refused", None),
    "data of another model": ("quantize m.onnx --data x.npz --json", 2, "refused", None),
    "an existing output": (f"{DATA} -o m2.onnx", 2, "refused", "output-exists"),
    "a pair that cannot be": ("quantize m.onnx --mode weight-only --format qoperator --json", 2, "refused",
                              "impossible-pair"),
    "an unknown option": ("quantize m.onnx --jsn --json", 2, "refused", "usage"),
    "no model named": ("quantize --json", 2, "refused", "usage"),
    "no such command": ("quantise --json", 2, "refused", "usage"),
    "nothing to quantize": ("quantize n.onnx --json", 3, "nothing-quantized", "nothing-quantized"),
    "everything excluded": (f"{DATA} --exclude *", 3, "nothing-quantized", "nothing-quantized"),
    "no ranges wanted": ("calibrate n.onnx --data soft.npz -o n.qcal --json", 3, "nothing-quantized",
                         "nothing-to-calibrate"),
    "compared": ("compare m.onnx m2.onnx --data d.npz --json", 0, "done", None),
    "calibrated": ("calibrate m.onnx --data d.npz -o m.qcal --json", 0, "done", None),
    "explained": ("explain m.onnx --json", 0, "done", None),
}  # fmt: skip


@pytest.fixture
def folder(ready: Shell) -> Shell:
    """More files: a model without weights, data for it, data of another model, another model."""
    bed.save(bed.nothing(), Path("n.onnx"))
    bed.save(bed.cnn(), Path("m2.onnx"))
    np.savez("soft.npz", x=bed.normal(20, 4))
    np.savez("x.npz", other=bed.normal(20, 4))
    return ready


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_key_is_present_however_a_run_ends(folder: Shell, ending: str) -> None:
    line, code, status, error = ENDINGS[ending]
    ran = folder(line)
    found = ran.document
    assert set(found) == KEYS
    jsonschema.validate(found, published_schema())
    assert (found["schema"], ran.code, found["exit_code"], found["status"]) == ("quantool/1", code, code, status)
    assert found["command"] == (line.split()[0] if "quantise" not in line else "")
    assert (found["errors"] == []) == (code == 0)
    for entry in found["errors"] + found["warnings"]:
        assert set(entry) == TEXTS
        assert all(isinstance(text, str) and text for text in entry.values())
    if error is not None:
        assert [entry["code"] for entry in found["errors"]] == [error]
    for text in (text for entry in found["errors"] for text in entry.values()):
        assert text in ran.err


def test_the_report_file_is_the_same_document_as_stdout(folder: Shell) -> None:
    for number, line in enumerate((DATA, f"{DATA} -o o.onnx --min-sqnr 90", "quantize no.onnx --json")):
        ran = folder(f"{line} --report {number}.json")
        assert json.loads(Path(f"{number}.json").read_text()) == ran.document


def test_a_run_that_went_well_fills_everything_in(ready: Shell) -> None:
    found = ready(f"{DATA} --min-sqnr 10").document
    written = Path("m.int8.onnx")
    assert {key for key, value in found.items() if value in (None, [])} == {
        "errors", "memory", "warnings", "metric", "candidates", "chosen", "responsible", "recipe_file", "check",
    }  # fmt: skip
    assert found["model"] == {
        "path": "m.onnx", "sha256": _sha256(Path("m.onnx")), "opset": 17, "size_bytes": Path("m.onnx").stat().st_size,
    }  # fmt: skip
    assert found["output"] == {
        "path": "m.int8.onnx", "sha256": _sha256(written), "size_bytes": written.stat().st_size
    }  # fmt: skip
    assert found["data"] == {"source": "d.npz (24 feeds)", "samples": 18, "held_out": True}
    assert found["coverage"] == {"nodes": 1.0, "macs": 1.0, "weight_bytes": pytest.approx(0.97, abs=0.03)}
    assert found["verification"]["samples"] == 6
    assert set(found["verification"]["outputs"]) == {"scores"}
    assert set(found["verification"]["outputs"]["scores"]) == OUTPUT_KEYS
    assert found["runtime"]["fused"]["QLinearConv"] == 2
    assert set(found["runtime"]) == {"fused", "left", "accuracy_levels"}
    latency = found["latency"]
    assert set(latency) == {"float_ms", "quantized_ms", "speedup", "interval", "rounds"}
    low, high = latency["interval"]
    assert low <= latency["speedup"] <= high
    assert latency["rounds"] >= 5
    (gate,) = found["gates"]
    sqnr_db = found["verification"]["outputs"]["scores"]["sqnr_db"]
    assert gate == {"name": "min_sqnr", "limit": 10, "value": sqnr_db, "passed": True}


def test_each_tensor_has_its_row(ready: Shell) -> None:
    found = ready(DATA).document
    rows = {row["name"]: row for row in found["tensors"]}
    assert all(set(row) == TENSOR_KEYS for row in rows.values())
    images = bed.images(24)
    image, weight = rows["image"], rows["w2"]
    assert image["dtype"] == "uint8"
    assert 0 <= image["zero_point"] <= 255
    assert images.min() <= image["observed_min"] < 0
    # a little beyond what a few samples showed, or a little inside
    assert image["range"][0] == pytest.approx(image["observed_min"], rel=0.25)
    assert image["range"][1] == pytest.approx(image["observed_max"], rel=0.25)
    assert image["observed_max"] <= images.max()
    step = (image["range"][1] - image["range"][0]) / 255
    assert image["scale"] == pytest.approx(step, rel=1e-6)
    assert 0 <= image["clipped_share"] < 0.01
    assert (weight["dtype"], len(weight["scale"]), weight["zero_point"]) == ("int8", 8, [0] * 8)


@pytest.mark.parametrize("make", [bed.cnn, bed.branches, bed.nothing, bed.mlp])
@pytest.mark.parametrize("mode", ["auto", "dynamic", "weight-only"])
def test_nodes_are_those_of_the_model_as_given_subgraphs_included(shell: Shell, make: Any, mode: str) -> None:
    proto = make()
    bed.save(proto, Path("m.onnx"))
    found = shell(f"quantize m.onnx --mode {mode} --json").document
    assert [(row["name"], row["op_type"], row["scope"]) for row in found["nodes"]] == list(given_nodes(proto.graph))
    for row in found["nodes"]:
        assert set(row) == NODE_KEYS
        assert (row["decision"], row["reason"] is None) in (("quantized", True), ("kept", False))
        assert row["reason"] is None or set(row["reason"]) == {"code", "text", "fix"}
        assert row["reason"] is None or all(row["reason"].values())


@pytest.mark.parametrize("name", ["digits_cnn", "digits_depthwise", "digits_transformer"])
def test_what_is_absorbed_folded_or_fused_says_into_which_node(shell: Shell, name: str) -> None:
    path = bed.SAMPLES / f"{name}.onnx"
    found = shell(f"explain {path} --json").document
    rows = {row["name"]: row for row in found["nodes"]}
    assert [(row["name"], row["op_type"], row["scope"]) for row in found["nodes"]] == list(
        given_nodes(onnx.load(path).graph)
    )
    inside = [row for row in rows.values() if row["into"]]
    assert {row["into"] for row in inside} <= rows.keys()
    assert all(rows[row["into"]]["into"] is None for row in inside)
    for row in rows.values():
        if row["op_type"] == "BatchNormalization":
            assert rows[row["into"]]["op_type"] == "Conv"
            assert row["decision"] == "quantized"


def test_runs_as_is_what_the_optimized_model_does(shell: Shell) -> None:
    bed.save(bed.branches(), Path("m.onnx"))
    np.savez("m.calib.npz", x=bed.normal(20, 6))
    rows = {row["name"]: row for row in shell("quantize m.onnx --json").document["nodes"]}
    assert (rows["up"]["decision"], rows["up"]["runs_as"]) == ("quantized", "integer")
    assert (rows["norm"]["decision"], rows["norm"]["runs_as"]) == ("kept", "float")
    assert (rows["inner"]["scope"], rows["inner"]["runs_as"]) == ("choose/then_branch", "float")


def test_weights_alone_of_a_convolution_are_quantized_but_run_as_float(ready: Shell) -> None:
    rows = {row["name"]: row for row in ready("quantize m.onnx --mode weight-only --json").document["nodes"]}
    assert (rows["second"]["decision"], rows["second"]["runs_as"]) == ("quantized", "float")


def test_what_is_not_known_is_null(shell: Shell) -> None:
    bed.save(bed.mlp(), Path("m.onnx"))
    found = shell("quantize m.onnx --json").document
    assert [found[key] for key in ("data", "verification", "latency")] == [None, None, None]
    found = shell("quantize m.onnx --json --no-verify --force").document
    assert found["runtime"] is None
    assert {row["runs_as"] for row in found["nodes"]} == {None}


def test_an_output_without_any_error_is_exact_and_its_sqnr_null(shell: Shell) -> None:
    text = "(float[N,8] x) => (float[N,4] y, float[N,8] z) { z = Neg(x) y = MatMul(x, w) }"
    bed.save(bed.model(text, {"w": bed.normal(8, 4)}), Path("m.onnx"))
    np.savez("m.calib.npz", x=bed.normal(20, 8))
    outputs = shell("quantize m.onnx --exclude Neg* --json").document["verification"]["outputs"]
    assert (outputs["z"]["sqnr_db"], outputs["z"]["exact"], outputs["z"]["max_abs_error"]) == (None, True, 0)
    assert (outputs["y"]["exact"], outputs["y"]["sqnr_db"] > 20) == (False, True)


def test_an_unexpected_exception_is_told_in_the_same_form(ready: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(import_module("quantool.pipeline.choice.decide"), "coverage", broken)
    ran = ready(f"{DATA} --report r.json")
    found = ran.document
    assert (ran.code, found["exit_code"], found["status"], set(found)) == (3, 3, "failed", KEYS)
    jsonschema.validate(found, published_schema())
    assert found["errors"][0]["what"] == "quantool failed inside: ZeroDivisionError: surprise"
    assert found["model"]["path"] == "m.onnx"
    assert json.loads(Path("r.json").read_text()) == found
    assert ready.files() == ["d.npz", "m.onnx", "r.json"]
    ran = ready(f"{DATA} --debug")
    assert re.search(r"Traceback.*ZeroDivisionError: surprise", ran.err, re.DOTALL)


def test_a_result_that_fails_its_own_check_is_exit_3_and_not_written(
    ready: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A rewriter that forgets its work leaves a float model, which runs, agrees and is not what was planned.
    monkeypatch.setattr(import_module("quantool.pipeline.build"), "rewrite", lambda *_, **__: [])
    ran = ready(f"{DATA} --min-sqnr 20")
    assert (ran.code, ran.document["status"], ran.document["exit_code"]) == (3, "nothing-quantized", 3)
    assert ran.err.startswith("error: no node could be quantized; reasons: ")
    assert "not-fused" in {row["reason"]["code"] for row in ran.document["nodes"]}
    assert len(ran.document["nodes"]) == 7
    assert ready.files() == ["d.npz", "m.onnx"]


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ("inspect m.onnx", {"model", "inputs", "outputs", "operators", "parameters", "quantizable_nodes",
                            "data_beside"}),
        ("targets", {"targets"}),
    ],
)  # fmt: skip
def test_other_commands_give_at_least_the_frame(ready: Shell, line: str, keys: set[str]) -> None:
    ran = ready(f"{line} --json")
    assert {"schema", "command", "status", "exit_code", "errors"} | keys <= set(ran.document)
    assert (ran.code, ran.document["exit_code"], ran.document["status"], ran.err) == (0, 0, "done", "")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
