"""The Python functions: models and feeds in memory, what comes back, and errors that tell everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.external_data_helper import convert_model_to_external_data

import quantool
from pipeline.bed import Shell, branches, cnn, feeds, given_nodes, mlp, model, normal, nothing
from quantool.errors import ModelError, NothingQuantizedError, OptionError, QuantoolError, RecipeError
from quantool.schema import AnyArray


def outputs(proto: onnx.ModelProto, feed: dict[str, AnyArray]) -> list[AnyArray]:
    """What a model in memory computes."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feed))


# --- what goes in and comes out -------------------------------------------------------------------------


def test_a_model_in_memory_is_not_changed(shell: Shell) -> None:
    for make, data in ((cnn, feeds()), (branches, [{"x": row[None]} for row in normal(20, 6)])):
        proto = make()
        before = proto.SerializeToString(deterministic=True)
        result = quantool.quantize(proto, data=data)
        quantool.calibrate(proto, data=data)
        quantool.compare(proto, result.model, data=data)
        quantool.explain(proto)
        assert proto.SerializeToString(deterministic=True) == before
    assert shell.files() == []


def test_the_result_holds_model_output_and_report(ready: Shell) -> None:
    result = quantool.quantize("m.onnx", data="d.npz", output="o.onnx")
    assert result.output == Path("o.onnx")
    assert result.model == onnx.load("o.onnx")
    assert result.report.output is not None
    assert result.report.to_dict()["output"]["path"] == "o.onnx"
    in_memory = quantool.quantize(onnx.load("m.onnx"), data=feeds())
    assert (in_memory.output, in_memory.report.output) == (None, None)
    assert in_memory.report.model is not None
    assert in_memory.report.model.path is None
    assert [node.op_type for node in in_memory.model.graph.node] == [node.op_type for node in result.model.graph.node]
    before = outputs(onnx.load("m.onnx"), feeds()[0])[0]
    after = outputs(in_memory.model, feeds()[0])[0]
    assert np.square(before - after).sum() < 1e-2 * np.square(before).sum()


def test_output_none_writes_nothing_and_a_path_obeys_force(ready: Shell) -> None:
    quantool.quantize("m.onnx", data="d.npz")
    assert ready.files() == ["d.npz", "m.onnx"]
    quantool.quantize("m.onnx", data="d.npz", output="o.onnx", report=["r.json", Path("r.md")])
    assert ready.files() == ["d.npz", "m.onnx", "o.onnx", "r.json", "r.md"]
    with pytest.raises(OptionError, match="exists already"):
        quantool.quantize("m.onnx", data="d.npz", output="o.onnx")
    with pytest.raises(OptionError, match="is read by this run"):
        quantool.quantize("m.onnx", data="d.npz", output="d.npz", force=True)
    quantool.quantize("m.onnx", data="d.npz", output="o.onnx", force=True)


def test_compare_and_explain_give_reports(ready: Shell) -> None:
    result = quantool.quantize("m.onnx", data="d.npz", output="o.onnx")
    report = quantool.compare("m.onnx", "o.onnx", data="d.npz")
    assert report.verification is not None
    assert report.verification.samples == 24
    assert report.runtime == result.report.runtime
    assert report.latency is not None
    plan = quantool.explain("m.onnx", target="generic")
    assert plan.to_dict()["recipe"]["target"] == "generic"
    assert [row.name for row in plan.nodes] == [name for name, _, _ in given_nodes(cnn().graph)]


def test_compare_takes_a_pair_that_another_tool_wrote(ready: Shell) -> None:
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # untyped
        def __init__(self) -> None:
            self._feeds = iter(feeds(8))

        def get_next(self) -> Any:
            return next(self._feeds, None)

    quantize_static("m.onnx", "theirs.onnx", Reader())
    found = ready("compare m.onnx theirs.onnx --data d.npz --json").document
    assert found["verification"]["outputs"]["scores"]["sqnr_db"] > 10
    assert found["output"]["path"] == "theirs.onnx"
    with pytest.raises(ModelError, match="differ in the input"):
        quantool.compare(cnn(), mlp(), data=feeds())


# --- types and places of models -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float16", "double"])
def test_models_of_other_float_types_keep_their_inputs_and_outputs(shell: Shell, kind: str) -> None:
    dtype = {"float16": np.float16, "double": np.float64}[kind]
    text = f"({kind}[N,16] x) => ({kind}[N,4] y) {{ h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }}"
    proto = model(text, {"w": normal(16, 32, scale=0.2).astype(dtype), "v": normal(32, 4, scale=0.2).astype(dtype)})
    # Bounded values, so that no held-out sample lies outside the ranges of the others.
    data = [{"x": row[None].astype(dtype)} for row in np.random.default_rng(0).uniform(-1, 1, (64, 16))]
    result = quantool.quantize(proto, data=data)
    assert [port.type for port in (*result.model.graph.input, *result.model.graph.output)] == [
        port.type for port in (*proto.graph.input, *proto.graph.output)
    ]
    assert result.report.verification is not None
    assert result.report.verification.outputs["y"].sqnr_db is not None
    assert result.report.verification.outputs["y"].sqnr_db > 25
    assert {row.decision for row in result.report.nodes if row.op_type == "MatMul"} == {"quantized"}


def test_external_data_in_a_folder_below_is_read_and_not_changed(ready: Shell) -> None:
    (Path("models") / "weights").mkdir(parents=True)
    proto = cnn()
    convert_model_to_external_data(proto, location="weights/m.bin", size_threshold=64)
    onnx.save(proto, "models/m.onnx")
    before = Path("models/weights/m.bin").read_bytes()
    assert len(before) > 3000
    ran = ready("quantize models/m.onnx --data d.npz --json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.document["model"]["size_bytes"] > len(before)
    assert Path("models/weights/m.bin").read_bytes() == before
    inside = quantool.quantize("m.onnx", data="d.npz").model
    external = onnx.load("models/m.int8.onnx")
    assert list(external.graph.node) == list(inside.graph.node)
    assert list(external.graph.initializer) == list(inside.graph.initializer)


# --- errors ---------------------------------------------------------------------------------------------


def test_nothing_quantized_lists_every_node_with_its_reason(shell: Shell) -> None:
    for proto, options in ((nothing(), {}), (branches(), {"exclude": ["*"]}), (cnn(), {"exclude_op": OPERATORS})):
        with pytest.raises(NothingQuantizedError) as caught:
            quantool.quantize(proto, **options)
        error = caught.value
        assert (error.code, error.exit_code) == ("nothing-quantized", 3)
        assert error.report is not None
        assert (error.report.status, error.report.exit_code) == ("nothing-quantized", 3)
        rows = [(row.name, row.op_type, row.scope) for row in error.report.nodes]
        assert rows == list(given_nodes(proto.graph))
        assert all(row.decision == "kept" and row.reason is not None for row in error.report.nodes)


OPERATORS = ["Conv", "Gemm", "Add", "Relu", "GlobalAveragePool", "Flatten"]


@pytest.mark.parametrize(
    ("call", "kind", "code"),
    [
        (lambda: quantool.quantize("nowhere.onnx"), ModelError, None),
        (lambda: quantool.quantize(onnx.ModelProto()), ModelError, None),
        (lambda: quantool.quantize(cnn(), weights="int5"), OptionError, "bad-value"),
        (lambda: quantool.quantize(cnn(), recipe={"wieghts": "int8"}), RecipeError, "unknown-key"),
        (lambda: quantool.quantize(cnn(), recipe="nowhere.toml"), RecipeError, "recipe-unreadable"),
        (lambda: quantool.quantize(cnn(), mode="static"), OptionError, "static-without-data"),
        (lambda: quantool.calibrate(cnn()), QuantoolError, "no-data"),
        (lambda: quantool.compare(cnn(), cnn()), QuantoolError, "no-data"),
        (lambda: quantool.quantize(quantool.quantize(cnn()).model), ModelError, "already-quantized"),
    ],
)
def test_every_refusal_is_an_error_of_its_kind_with_all_four_texts(
    shell: Shell, call: Any, kind: type[QuantoolError], code: str | None
) -> None:
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    assert error.exit_code == 2
    assert code in (None, error.code)
    assert all((error.code, error.what, error.where, error.fix))
    assert all(text in str(error) for text in (error.code, error.what, error.where, error.fix))
    if error.report is not None:
        assert error.report.to_dict()["errors"] == [error.to_dict()]
    assert shell.files() == []


def test_a_failure_in_the_middle_carries_what_was_known(shell: Shell) -> None:
    bad = [*feeds(20), {"image": np.full((1, 3, 8, 8), np.nan, np.float32)}]
    with pytest.raises(QuantoolError) as caught:
        quantool.quantize(cnn(), data=bad)
    report = caught.value.report
    assert report is not None
    assert report.model is not None
    assert (report.model.opset, report.status, report.exit_code) == (17, "refused", 2)


def test_allowed_values_that_are_not_finite_are_skipped_and_counted(shell: Shell) -> None:
    bad = [*feeds(20), {"image": np.full((1, 3, 8, 8), np.nan, np.float32)}]
    stats = quantool.calibrate(cnn(), data=bad, allow_nonfinite=True)
    assert stats.tensors["image"].extrema.nonfinite == 192
    assert stats.nonfinite >= 192
