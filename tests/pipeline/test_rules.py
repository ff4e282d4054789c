"""Rules in whole runs: types and algorithms at places, what is refused before data is read, and what repeats a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pipeline.bed as bed
import quantool
from pipeline.bed import Shell
from pipeline.test_equalize import feeds as unbalanced_feeds
from pipeline.test_equalize import unbalanced
from quantool.errors import OptionError
from quantool.recipe import from_options, to_toml
from quantool.requests import QuantizeResult
from quantool.schema import AnyArray, Feed

BY_RULES: dict[str, list[dict[str, Any]]] = {
    "16 bits at one node": [{"name": "head", "activations": "uint16"}],
    "mixed weights": [{"op_type": "Conv", "weights": "int4"}, {"name": "second", "weights": "uint8"}],
    "float at one node": [{"name": "second", "activations": "float"}],
    "granularity": [{"scope": "", "granularity": "tensor"}],
    "ranges and types": [{"tensor": "image", "range": [-2, 2], "activations": "int16"}],
    "forced": [{"op_type": "Conv", "algorithms": ["gptq", "bias-correction"]}],
    "forbidden": [{"scope": "*", "algorithms": []}],
}


def arrays(proto: onnx.ModelProto) -> dict[str, AnyArray]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def kinds(proto: onnx.ModelProto) -> set[str]:
    """The types of the codes that QuantizeLinear writes."""
    stored = arrays(proto)
    return {str(stored[node.input[2]].dtype) for node in proto.graph.node if node.op_type == "QuantizeLinear"}


@pytest.mark.parametrize("name", BY_RULES)
def test_the_recipe_of_a_report_repeats_the_run_as_a_mapping_a_file_and_a_report(ready: Shell, name: str) -> None:
    first = quantool.quantize("m.onnx", data="d.npz", rules=BY_RULES[name])
    written = json.loads(json.dumps(first.report.to_dict()))
    Path("report.json").write_text(json.dumps(written))
    Path("r.toml").write_text(to_toml(from_options({}, written["recipe"])))
    for recipe in (written["recipe"], Path("r.toml"), Path("report.json")):
        again = quantool.quantize("m.onnx", data="d.npz", recipe=recipe)
        assert again.model.SerializeToString() == first.model.SerializeToString()
        assert again.report.to_dict()["recipe"] == written["recipe"]
    assert written["recipe"]["rules"] == from_options({"rules": BY_RULES[name]}).to_dict()["rules"]


def test_both_types_are_written_verified_and_told(ready: Shell) -> None:
    result = quantool.quantize("m.onnx", data="d.npz", rules=BY_RULES["16 bits at one node"])
    assert kinds(result.model) == {"uint8", "uint16"}
    runs = {row.name: row.runs_as for row in result.report.nodes}
    assert (runs["Conv:c1"], runs["second"], runs["residual"]) == ("integer", "integer", "integer")
    assert {tensor.dtype for tensor in result.report.tensors} == {"uint8", "uint16", "int8"}
    assert [note.code for note in result.report.warnings].count("runs-as-differs") == 0
    assert result.report.verification is not None
    assert result.report.verification.outputs["scores"].sqnr_db > 30


def test_types_that_the_runtime_lacks_are_verified_by_the_reference_evaluator(ready: Shell) -> None:
    report = quantool.quantize("m.onnx", data="d.npz", rules=[{"name": "head", "activations": "int4"}]).report
    assert "reference-evaluator" in {note.code for note in report.warnings}
    assert report.verification is not None


def unread() -> Iterator[Feed]:
    """Data that must not be asked for."""
    raise AssertionError("data was read")
    yield {}


@pytest.mark.parametrize(
    ("rules", "options", "words"),
    [
        ([{"name": "head", "activations": "uint16"}], {"format": "qoperator"}, "8-bit integers only"),
        ([{"name": "head", "activations": "int8"}], {"format": "qoperator"}, "no operator for codes of"),
        ([{"name": "second", "weights": "uint8"}], {"format": "qoperator", "activations": "int8"},
         "int8 activations with uint8 weights at 'second'"),
        ([{"tensor": "p", "activations": "int16"}, {"name": "head", "activations": "uint16"}], {},
         "share a scale"),
        ([{"name": "head", "activations": "float8_e5m2"}], {}, "floating codes need another formula"),
        ([{"name": "hed", "weights": "int4"}], {}, "'hed' matches nothing.*head"),
        ([{"name": "head", "activations": "int16"}], {"mode": "dynamic"}, "quantized at run time"),
        ([{"name": "head", "activations": "uint16"}], {"formula": "tf-scaled", "narrow_range": True,
                                                       "activations": "int8"}, "no code for zero in uint16"),
    ],
)  # fmt: skip
def test_rules_that_cannot_be_are_refused_before_data_is_read(
    ready: Shell, rules: list[dict[str, Any]], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError, match=words) as raised:
        quantool.quantize("m.onnx", data=unread(), rules=rules, **{"mode": "static", **options})
    assert raised.value.exit_code == 2


def test_a_type_that_nothing_runs_in_this_model_is_refused(shell: Shell) -> None:
    text = "(float[N,8] x) => (float[N,4] y) { t = com.microsoft.QuickGelu (x) [m] y = MatMul (t, w) }"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g {text}')
    proto.graph.initializer.append(onnx.numpy_helper.from_array(bed.normal(8, 4), "w"))
    with pytest.raises(OptionError, match=r"cannot run uint8, int4 activations.*QuickGelu"):
        quantool.quantize(proto, data=unread(), mode="static", rules=[{"name": "m", "activations": "int4"}])


# --- algorithms -----------------------------------------------------------------------------------------


def changed(rules: list[dict[str, Any]], **options: Any) -> set[str]:
    """The weights and biases that rules change in a run that would leave them alone."""
    plain, ruled = (
        quantool.quantize("m.onnx", data="d.npz", effort="fast", rules=each, **options) for each in ([], rules)
    )
    first, second = arrays(plain.model), arrays(ruled.model)
    return {name for name in first if not np.array_equal(first[name], second[name])}


def test_rules_force_algorithms_at_their_nodes_without_a_trial(ready: Shell) -> None:
    # scales are fitted to the codes, and the bias follows them
    fitted = {"w3_quantized", "w3_scale", "b3_quantized", "b3_scale"}
    assert changed([{"name": "head", "algorithms": ["gptq"]}]) == fitted
    assert changed([{"name": "second", "algorithms": ["bias-correction"]}]) == {"b2_quantized"}
    assert not changed([{"scope": "", "algorithms": []}])


def test_rules_force_smoothing_of_a_product(shell: Shell) -> None:
    bed.save(bed.mlp(), Path("m.onnx"))
    rows = bed.normal(24, 8, seed=3) * np.float32(10.0) ** np.linspace(-1, 1, 8, dtype=np.float32)
    np.savez("d.npz", x=rows)
    nodes = [node.op_type for node in quantool.quantize("m.onnx", data="d.npz", effort="fast").model.graph.node]
    rule = {"name": "MatMul:h", "algorithms": ["smoothing"]}
    report = quantool.quantize("m.onnx", data="d.npz", effort="fast", rules=[rule])
    smoothed = [node.op_type for node in report.model.graph.node]
    assert (nodes.count("Mul"), smoothed.count("Mul")) == (0, 1)
    assert "algorithm-without-effect" not in {note.code for note in report.report.warnings}


def test_forbidden_algorithms_are_not_even_tried(ready: Shell) -> None:
    free = quantool.quantize("m.onnx", data="d.npz", effort="max").report
    bound = quantool.quantize("m.onnx", data="d.npz", effort="max", rules=BY_RULES["forbidden"]).report
    assert any("GPTQ" in trial.name for trial in free.trials)
    assert any("bias correction" in trial.name for trial in free.trials)
    tried = [trial.name for trial in bound.trials if "in float" not in trial.name]
    assert tried == ["mse ranges", "minmax ranges"]


def test_what_samples_decide_elsewhere_keeps_what_a_rule_forces(ready: Shell) -> None:
    rule = {"name": "second", "algorithms": ["bias-correction"]}
    forced, free = (
        quantool.quantize("m.onnx", data="d.npz", effort="max", rules=rules).report for rules in ([rule], [])
    )
    layers = {name: [t.name for t in report.trials if "GPTQ" in t.name] for name, report in
              (("forced", forced), ("free", free))}  # fmt: skip
    assert "GPTQ in 2 layers" in layers["forced"][0]
    assert "GPTQ in 3 layers" in layers["free"][0]


def test_an_algorithm_that_changes_nothing_is_told(ready: Shell) -> None:
    rule = {"name": "residual", "algorithms": ["gptq", "smoothing"]}
    report = quantool.quantize("m.onnx", data="d.npz", effort="fast", rules=[rule]).report
    told = [note.what for note in report.warnings if note.code == "algorithm-without-effect"]
    assert [what.split()[0] for what in told] == ["gptq", "smoothing"]
    assert all("at 1 node" in what for what in told)


def test_statistics_alone_force_what_they_hold(ready: Shell) -> None:
    assert ready("calibrate m.onnx --data d.npz -o m.qcal --collect gram").code == 0
    rule = {"op_type": "Conv", "algorithms": ["gptq"]}
    plain, ruled = (quantool.quantize("m.onnx", ranges="m.qcal", rules=rules) for rules in ([], [rule]))
    assert plain.model != ruled.model
    assert "algorithm-without-effect" not in {note.code for note in ruled.report.warnings}


def test_a_scope_without_data_stores_its_weights_in_another_type(shell: Shell) -> None:
    rule = {"scope": "choose/then*", "weights": "uint8"}
    report = quantool.quantize(bed.branches(), mode="weight-only", rules=[rule]).report
    assert sorted({row.dtype for row in report.tensors}) == ["int8", "uint8"]


def test_rules_force_and_forbid_equalization() -> None:
    proto, data = unbalanced("relu"), unbalanced_feeds()
    forced, free, forbidden = (
        quantool.quantize(proto, data=data, effort=effort, rules=rules)
        for effort, rules in (
            ("fast", [{"scope": "", "algorithms": ["equalization"]}]),
            ("balanced", []),
            ("balanced", [{"op_type": "Conv", "algorithms": []}]),
        )
    )
    assert any("equalized" in trial.name for trial in free.report.trials)
    assert not any("equalized" in trial.name for trial in forbidden.report.trials)
    plain = quantool.quantize(proto, data=data, effort="fast")
    assert decibels(forced) > decibels(plain) + 3


def decibels(result: QuantizeResult) -> float:
    assert result.report.verification is not None
    found = next(iter(result.report.verification.outputs.values())).sqnr_db
    assert found is not None
    return found
