"""compare, explain, inspect, targets and calibrate on real models, as documents and as pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from pipeline.bed import KEYS, SAMPLES, Shell, branches, given_nodes, save


def test_inspect_describes_a_model(ready: Shell) -> None:
    Path("d.npz").rename("m.calib.npz")
    found = ready("inspect m.onnx --json").document
    assert found["inputs"] == [{"name": "image", "dtype": "float32", "shape": ["N", 3, 8, 8]}]
    assert found["outputs"] == [{"name": "scores", "dtype": "float32", "shape": ["N", 5]}]
    assert found["operators"] == {
        "Add": 1, "Conv": 2, "Flatten": 1, "Gemm": 1, "GlobalAveragePool": 1, "Relu": 1
    }  # fmt: skip
    parameters = 8 * 3 * 9 + 8 + 8 * 8 * 9 + 8 + 8 * 5 + 5
    assert (found["parameters"], found["parameter_bytes"]) == (parameters, 4 * parameters)
    assert found["data_beside"] == "m.calib.npz"
    page = ready("inspect m.onnx").out
    assert "image: float32 [N, 3, 8, 8]" in page
    assert "m.calib.npz" in page


def test_inspect_takes_a_quantized_model_too(ready: Shell) -> None:
    assert ready("quantize m.onnx --data d.npz -o q.onnx").code == 0
    found = ready("inspect q.onnx --json").document
    assert found["operators"]["QuantizeLinear"] >= 3
    assert found["model"]["size_bytes"] == Path("q.onnx").stat().st_size


def test_inspect_counts_the_nodes_of_every_scope(shell: Shell) -> None:
    save(branches(), Path("m.onnx"))
    assert shell("inspect m.onnx --json").document["operators"] == {
        "Greater": 1, "If": 1, "MatMul": 3, "ReduceMean": 1
    }  # fmt: skip


def test_explain_says_of_each_node_done_or_why_not(shell: Shell) -> None:
    path = SAMPLES / "digits_transformer.onnx"
    ran = shell(f"explain {path} --json")
    found = ran.document
    assert (ran.code, set(found)) == (0, KEYS)
    reasons = {row["reason"]["code"] for row in found["nodes"] if row["decision"] == "kept"}
    assert "softmax" in " ".join(reasons)
    assert found["coverage"]["macs"] > 0.5
    page = shell(f"explain {path}").out
    for name, op_type, _ in given_nodes(onnx.load(path).graph):
        assert op_type in page
        assert name in page
    for row in found["nodes"]:
        if row["reason"]:
            assert row["reason"]["fix"] in " ".join(page.split())


def test_explain_follows_mode_target_and_choice(ready: Shell) -> None:
    def decisions(options: str) -> dict[str, str]:
        rows = ready(f"explain m.onnx {options} --json").document["nodes"]
        return {row["name"]: row["decision"] for row in rows}

    assert set(decisions("").values()) == {"quantized"}
    assert decisions("--exclude head")["head"] == "kept"
    assert decisions("--mode dynamic")["residual"] == "kept"
    assert decisions("--mode dynamic")["head"] == "quantized"
    assert ready("explain m.onnx --target nosuch").code == 2


def test_explain_runs_nothing_and_writes_nothing(ready: Shell) -> None:
    assert ready("explain m.onnx").code == 0
    assert ready.files() == ["d.npz", "m.onnx"]


def test_compare_judges_both_models_on_every_sample(ready: Shell) -> None:
    assert ready("quantize m.onnx --data d.npz -o q.onnx").code == 0
    ran = ready("compare m.onnx q.onnx --data d.npz --json")
    found = ran.document
    assert (ran.code, found["verification"]["samples"], found["data"]["source"]) == (0, 24, "d.npz (24 feeds)")
    assert found["verification"]["outputs"]["scores"]["sqnr_db"] > 25
    assert found["latency"]["speedup"] > 0
    assert found["runtime"]["fused"]["QLinearConv"] == 2
    assert ready("compare m.onnx q.onnx --data d.npz --samples 5 --json").document["verification"]["samples"] == 5
    page = ready("compare m.onnx q.onnx --data d.npz --report r.html").out
    assert "on 24 samples" in page
    assert Path("r.html").exists()


def test_compare_of_a_model_with_itself_is_exact(ready: Shell) -> None:
    outputs = ready("compare m.onnx m.onnx --data d.npz --json").document["verification"]["outputs"]
    assert (outputs["scores"]["exact"], outputs["scores"]["sqnr_db"]) == (True, None)


def test_compare_finds_data_beside_the_float_model_and_needs_some(ready: Shell) -> None:
    assert ready("quantize m.onnx --data d.npz -o q.onnx").code == 0
    ran = ready("compare m.onnx q.onnx --json")
    assert (ran.code, ran.document["errors"][0]["code"]) == (2, "no-data")
    Path("d.npz").rename("m.calib.npz")
    found = ready("compare m.onnx q.onnx --json").document
    assert found["data"]["source"] == "m.calib.npz (24 feeds) (beside the model)"


@pytest.mark.parametrize("name", ["cpu-x64", "cpu-x64-avx2", "cpu-arm64", "generic"])
def test_targets_lists_what_quantize_takes(ready: Shell, name: str) -> None:
    listed = {target["name"] for target in ready("targets --json").document["targets"]}
    assert name in listed
    assert name in ready("targets").out
    found = ready(f"quantize m.onnx --data d.npz --target {name} --json").document
    assert (found["status"], found["recipe"]["target"]) == ("done", name)
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load("m.int8.onnx").graph.initializer}
    weights = constants["w2_quantized"]
    most = 64 if name == "cpu-x64-avx2" else 127
    assert np.abs(weights.astype(int)).max() == pytest.approx(most, abs=1)


def test_the_page_of_a_run_fits_80_columns_and_begins_with_data_and_verdict(ready: Shell) -> None:
    ran = ready("quantize m.onnx --data d.npz --min-sqnr 10")
    lines = ran.out.splitlines()
    assert lines[0].startswith("Data: d.npz (24 feeds), 18 samples, verified on held-out samples")
    assert "SQNR" in " ".join(lines[1:4])
    assert max(map(len, lines)) <= 80
    assert ran.err == ""
    assert ready("quantize m.onnx --data d.npz --force --quiet").out == ""
