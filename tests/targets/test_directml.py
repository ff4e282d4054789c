"""DirectML's feature levels: what each lets a QuantizeLinear do, and what explain says of the rest."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import quantool
from quantool import targets
from quantool.__main__ import main
from quantool.kernels.directml import FEATURE_LEVELS
from quantool.schema import Reason
from tests.rewrite.flow import normal, normal_feeds, parse

LEVELS = tuple(FEATURE_LEVELS)
CONSTANTS = {"k": normal(8, 8, 3, 3, seed=1, scale=0.2), "w": normal(16, 16, seed=2), "k1": normal(8, 8, 3, seed=3)}
SIGNATURES = {
    4: "(float[2,8,6,6] x) => (float[2,8,4,4] y) { [n] y = Conv (x, k) }",
    3: "(float[2,8,6] x) => (float[2,8,4] y) { [n] y = Conv (x, k1) }",
    2: "(float[N,16] x) => (float[N,16] y) { [n] y = MatMul (x, w) }",
}


def model(rank: int) -> onnx.ModelProto:
    body = SIGNATURES[rank]
    return parse(body, {name: values for name, values in CONSTANTS.items() if f", {name})" in body})


def explained(rank: int, level: str, **options: object) -> Reason | None:
    """The reason of the node n."""
    (row,) = quantool.explain(model(rank), target=f"directml-{level}", mode="static", **options).nodes
    assert (row.reason is None) == (row.decision == "quantized")
    return row.reason


def test_there_is_a_target_for_each_level_and_it_names_no_other() -> None:
    found = {name: targets.load(name).feature_level for name in targets.names()}
    assert {level for level in found.values() if level} == set(LEVELS)
    assert all((level is None) != name.startswith("directml-") for name, level in found.items())
    assert all(name == f"directml-{level}" for name, level in found.items() if level)


def test_a_level_has_the_kernels_that_came_up_to_it() -> None:
    at = {level: {op for _, op in targets.load(f"directml-{level}").kernels} for level in LEVELS}
    assert at["1.0"] - at["2.1"] == set()
    assert at["6.0"] - at["3.0"] == {"Add"}
    assert at["6.2"] - at["6.0"] == {"AveragePool", "GlobalAveragePool"}
    assert not any(kernel.activations for kernel in targets.load("directml-1.0").kernels.values())


# level -> ranks and code types that pass, from the tensor support tables of the operator's description
TABLE = {"1.0": ((4,), ("uint8",)), "2.1": ((4,), ("uint8", "int8")), "3.0": ((2, 3, 4), ("uint8", "int8")),
         "6.0": ((2, 3, 4), ("uint8", "int8")), "6.2": ((2, 3, 4), ("uint8", "int8"))}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("activations", ["uint8", "int8", "int16"])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_a_node_passes_where_the_table_says_so(level: str, rank: int, activations: str) -> None:
    ranks, types = TABLE[level]
    found = explained(rank, level, activations=activations)
    assert (found is None) == (rank in ranks and activations in types)
    assert found is None or found.code == "feature-level"


def test_the_reason_names_the_tensor_each_rule_and_the_level_that_passes() -> None:
    found = explained(2, "2.1")
    assert found is not None
    assert found.text.endswith("'x': rank 2, 4 allowed; passes from level 3.0 on.")
    assert "directml-6.2" in found.fix
    both = explained(2, "1.0", activations="int8")
    assert both is not None
    rules = "rank 2, 4 allowed; zero point int8, uint8 allowed; output int8, uint8 allowed"
    assert both.text.endswith(f"'x': {rules}; passes from level 3.0 on.")
    never = explained(4, "6.2", activations="int16")
    assert never is not None
    assert never.text.endswith("output int16, int8 or uint8 allowed; no level passes.")


def test_tensors_of_unknown_rank_do_not_pass() -> None:
    proto = parse("(float[2,8,6,6] x, int64[N] s) => (float[2,8,4,4] y) { r = Reshape (x, s) [n] y = Conv (r, k) }", {
        "k": CONSTANTS["k"]
    })  # fmt: skip
    rows = {row.name: row for row in quantool.explain(proto, target="directml-6.2", mode="static").nodes}
    reason = rows["n"].reason
    assert reason is not None
    assert reason.code == "feature-level"
    assert "its rank is unknown, 1 to 8 allowed" in reason.text


def test_outputs_and_followers_are_held_to_the_rules_too() -> None:
    body = """(float[2,8,6,6] x) => (float[2,128] y) {
        [a] a = Conv (x, k) [b] b = Conv (x, k) [s] s = Add (a, b) [f] t = Flatten (s) [g] y = MatMul (t, w)
    }"""
    proto = parse(body, {"k": CONSTANTS["k"], "w": normal(128, 128)})
    report = quantool.explain(proto, target="directml-2.1", mode="static")
    decisions = {row.name: (row.decision, row.reason.code if row.reason else "") for row in report.nodes}
    assert decisions["a"] == decisions["b"] == ("quantized", "")
    assert decisions["f"] == decisions["g"] == ("kept", "feature-level")
    newest = {row.name: row.decision for row in quantool.explain(proto, target="directml-6.2", mode="static").nodes}
    assert set(newest.values()) == {"quantized"}


def test_the_element_wise_expansion_is_reported() -> None:
    result = quantool.quantize(model(4), normal_feeds(x=(2, 8, 6, 6)), target="directml-2.1", mode="static")
    (note,) = [note for note in result.report.warnings if note.code == "element-wise-expansion"]
    quantizers = [node for node in result.model.graph.node if node.op_type == "QuantizeLinear"]
    elements = 2 * 8 * 6 * 6 + 2 * 8 * 4 * 4
    assert len(quantizers) == 2
    assert f"{elements * 5:,} bytes more for 2 QuantizeLinear, {2 * 8 * 6 * 6 * 5:,} of them" in note.what
    assert note.where == "x"


def test_scales_have_the_type_that_the_level_allows() -> None:
    result = quantool.quantize(model(4), normal_feeds(x=(2, 8, 6, 6)), target="directml-1.0", mode="static")
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in result.model.graph.initializer}
    for node in result.model.graph.node:
        if node.op_type == "QuantizeLinear":
            scale, zero_point = (stored[name] for name in node.input[1:])
            assert (scale.dtype, zero_point.dtype) == (np.float32, np.uint8)
    assert "runs-as-float" in {note.code for note in result.report.warnings}


def test_explain_prints_the_rule_and_quantize_ends_with_3_where_nothing_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(2), path)
    assert main(["explain", str(path), "--target", "directml-2.1", "--mode", "static"]) == 0
    assert "rank 2, 4 allowed; passes from level 3.0 on." in capsys.readouterr().out
    np.savez(tmp_path / "d.npz", x=normal(20, 16))
    line = ["quantize", str(path), "--data", str(tmp_path / "d.npz"), "--target", "directml-2.1", "--json"]
    assert main(line) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["nodes"][0]["reason"]["code"] == "feature-level"
    assert document["output"] is None
