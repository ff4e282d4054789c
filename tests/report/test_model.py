"""The JSON document: every key present, strict, and true about how the run ended."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantool.errors import (
    DataError,
    GateError,
    ModelError,
    NothingQuantizedError,
    OptionError,
    QuantoolError,
    RecipeError,
    VerificationError,
)
from quantool.report.json import render
from quantool.report.model import Report, plain
from report.examples import NASTY, comparison, gate_failed, report

KEYS = [
    "schema", "command", "status", "exit_code", "model", "output", "recipe", "data", "nodes", "tensors", "coverage",
    "verification", "runtime", "latency", "gates", "verdict", "warnings", "errors", "trials",
    "memory", "metric", "candidates", "chosen", "responsible", "recipe_file", "check", "layers", "fixes",
    "environment", "command_line",
]  # fmt: skip
NESTED = {
    "model": ["path", "sha256", "opset", "size_bytes"],
    "output": ["path", "sha256", "size_bytes"],
    "data": ["source", "samples", "held_out"],
    "coverage": ["nodes", "macs", "weight_bytes"],
    "verification": ["samples", "outputs"],
    "runtime": ["fused", "left", "accuracy_levels"],
    "latency": ["float_ms", "quantized_ms", "speedup", "interval", "rounds"],
    "layers": ["samples", "candidates", "measured", "rows"],
    "environment": ["versions", "python", "system", "machine", "cpu", "cpus", "threads"],
}
ROWS = {
    "nodes": ["name", "op_type", "scope", "decision", "into", "runs_as", "reason"],
    "tensors": [
        "name", "dtype", "scale", "zero_point", "range", "observed_min", "observed_max", "clipped_share", "sqnr_db",
        "calibrator", "histogram",
    ],
    "fixes": ["nodes", "operators", "gain_db", "macs_share"],
    "gates": ["name", "limit", "value", "passed"],
    "warnings": ["code", "what", "where", "fix"],
    "errors": ["code", "what", "where", "fix"],
}  # fmt: skip


def strict(text: str) -> dict[str, object]:
    """A JSON document without NaN and infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return dict(json.loads(text, parse_constant=refuse))


def test_the_document_has_the_keys_of_the_contract_in_order() -> None:
    document = strict(render(gate_failed()))
    assert list(document) == KEYS
    assert document["schema"] == "quantool/1"
    full = strict(render(report()))
    for key, inner in NESTED.items():
        assert list(full[key]) == inner  # type: ignore[call-overload]
    assert set(full["verification"]["outputs"]["digits/logits"]) == {  # type: ignore[index, call-overload]
        "sqnr_db", "worst_channel_sqnr_db", "cosine", "max_abs_error", "top1_agreement", "exact",
        "kl", "float_perplexity", "perplexity",
    }  # fmt: skip


@pytest.mark.parametrize("key", ROWS)
def test_every_row_has_its_keys(key: str) -> None:
    document = {**strict(render(report())), **{k: strict(render(gate_failed()))[k] for k in ("gates", "errors")}}
    rows = document[key]
    assert isinstance(rows, list)
    assert rows
    assert all(list(row) == ROWS[key] for row in rows)


@pytest.mark.parametrize(
    ("kind", "status", "exit_code"),
    [
        (GateError, "gate-failed", 1),
        (ModelError, "refused", 2),
        (DataError, "refused", 2),
        (RecipeError, "refused", 2),
        (OptionError, "refused", 2),
        (QuantoolError, "refused", 2),
        (NothingQuantizedError, "nothing-quantized", 3),
        (VerificationError, "failed", 3),
    ],
)
def test_a_failure_has_every_key_its_status_and_its_words(
    kind: type[QuantoolError], status: str, exit_code: int
) -> None:
    error = kind("a-code", "what", where="where", fix="fix")
    document = strict(render(Report.failed("quantize", error, model="m.onnx")))
    assert list(document) == KEYS
    assert (document["status"], document["exit_code"]) == (status, exit_code)
    assert document["errors"] == [{"code": "a-code", "what": "what", "where": "where", "fix": "fix"}]
    assert document["model"] == {"path": "m.onnx", "sha256": None, "opset": None, "size_bytes": None}


def test_a_failure_keeps_what_the_run_knew() -> None:
    error = VerificationError("c", "w", where="x", fix="f", report=report())
    failed = Report.failed("quantize", error, model="other.onnx")
    assert (failed.nodes, failed.model) == (report().nodes, report().model)
    assert (failed.status, failed.exit_code) == ("failed", 3)


def test_an_equal_output_is_exact_and_has_no_sqnr() -> None:
    run = report()
    assert run.verification is not None
    outputs = {"y": comparison(exact=True, sqnr_db=None, worst_channel_sqnr_db=None)}
    document = strict(render(replace(run, verification=replace(run.verification, outputs=outputs))))
    row = document["verification"]["outputs"]["y"]  # type: ignore[index, call-overload]
    assert (row["exact"], row["sqnr_db"]) == (True, None)


def test_numpy_values_infinities_and_odd_names_become_strict_json() -> None:
    found = plain(
        {"a": np.float32(0.5), "b": np.array([1, 2]), "c": float("nan"), "d": np.float32("inf"), "\udc80": "x\udcff"}
    )
    assert found == {"a": 0.5, "b": [1, 2], "c": None, "d": None, "\\udc80": "x\\udcff"}


@given(st.text() | st.text(alphabet=st.characters(categories=["Cs", "Cc"])))
def test_any_name_survives_json_in_ascii(name: str) -> None:
    text = render(report(name))
    assert text.isascii()
    rows = strict(text)["nodes"]
    assert isinstance(rows, list)
    assert rows[0]["name"] == f"{name}/conv".encode("utf-8", "backslashreplace").decode()


def test_markup_in_names_stays_as_it_is_in_json() -> None:
    rows = strict(render(report(NASTY)))["nodes"]
    assert isinstance(rows, list)
    assert rows[0]["name"] == f"{NASTY}/conv"
