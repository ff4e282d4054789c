"""Weights alone: what effort, samples and rules make of them, and where AWQ's factors go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import pipeline.bed as bed
import quantool
from pipeline.bed import model, normal
from quantool import graph
from quantool.errors import OptionError
from quantool.pipeline.choice.fold import Place, absorbing
from quantool.requests import QuantizeResult
from quantool.schema import AnyArray, Feed

SIZE = 96
OPTIONS: dict[str, Any] = {"mode": "weight-only", "weights": "int4"}

BODY = """
(float[N,96] x) => (float[N,48] y) {
    n = LayerNormalization(x, gain, shift)
    [first] h = MatMul(n, w1)
    [gate] g = MatMul(n, w2)
    r = Relu(h)
    p = Mul(r, g)
    [last] y = MatMul(p, w3)
}
"""


def block(*, seed: int = 0) -> onnx.ModelProto:
    """A normalization with loud channels, a gated pair of products, and one more."""
    loud = np.exp(normal(SIZE, seed=seed, scale=1.2))
    constants = {
        "gain": loud, "shift": normal(SIZE, seed=seed + 1, scale=0.1),
        "w1": normal(SIZE, SIZE, seed=seed + 2, scale=0.1), "w2": normal(SIZE, SIZE, seed=seed + 3, scale=0.1),
        "w3": normal(SIZE, 48, seed=seed + 4, scale=0.1),
    }  # fmt: skip
    return model(BODY, constants)


def correlated(count: int, *, rows: int = 32, seed: int = 3) -> list[Feed]:
    """Feeds whose channels follow a few hidden ones."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((12, SIZE))
    noise = 0.1 * rng.standard_normal((count, rows, SIZE))
    return [{"x": x.astype(np.float32)} for x in rng.standard_normal((count, rows, 12)) @ mixing + noise]


def quantized(proto: onnx.ModelProto, data: Sequence[Feed] | None, **options: Any) -> QuantizeResult:
    return quantool.quantize(proto, data=data, **{**OPTIONS, **options})


def decibels(result: QuantizeResult) -> float:
    assert result.report.verification is not None
    value = result.report.verification.outputs["y"].sqnr_db
    assert value is not None
    return value


def codes(proto: onnx.ModelProto) -> dict[str, AnyArray]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}


def notes(result: QuantizeResult) -> dict[str, str]:
    return {note.code: note.what for note in result.report.warnings}


# --- effort ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [40, 8], ids=["held out", "too few to hold out"])
def test_samples_gain_over_what_weights_alone_tell(count: int) -> None:
    proto, data = block(), correlated(count)
    fast, balanced, most = (quantized(proto, data, effort=effort) for effort in ("fast", "balanced", "max"))
    assert fast.report.trials == ()
    assert decibels(balanced) >= decibels(fast) + 1.0
    assert decibels(most) >= decibels(balanced) - 0.2
    chosen = next(trial for trial in most.report.trials if trial.chosen)
    assert "GPTQ" in chosen.name or "awq" in chosen.name


def test_the_highest_effort_tries_every_method_and_tells_their_scores() -> None:
    report = quantized(block(), correlated(40), effort="max").report
    tried = " | ".join(trial.name for trial in report.trials)
    for name in (
        "k-quant",
        "round to nearest",
        "mse-clip",
        "hqq",
        "weighted by inputs",
        "awq clip",
        "awq scales",
        "GPTQ",
    ):
        assert name in tried
    chosen = next(trial for trial in report.trials if trial.chosen)
    assert chosen.score_db == max(trial.score_db for trial in report.trials)


@pytest.mark.parametrize(("effort", "least_db"), [("fast", 0.7), ("balanced", 0.9), ("max", 0.9)])
def test_weights_alone_gain_without_data(effort: str, least_db: float) -> None:
    proto = bed.model("(float[N,512] x) => (float[N,256] y) { y = MatMul(x, w) }", {"w": normal(512, 256)})
    plain = quantized(proto, None, effort=effort, rules=[{"op_type": "MatMul", "algorithms": []}])
    found = quantized(proto, None, effort=effort)
    before, after = (result.report.tensors[0].sqnr_db or 0.0 for result in (plain, found))
    assert after - before >= least_db


def test_eight_bits_are_rounded_to_nearest_without_data() -> None:
    proto = block()
    plain = quantized(proto, None, weights="int8", rules=[{"op_type": "MatMul", "algorithms": []}])
    assert quantized(proto, None, weights="int8").model == plain.model


def test_the_same_run_gives_the_same_bytes() -> None:
    first, second = (quantized(block(), correlated(24), effort="max").model for _ in range(2))
    assert first.SerializeToString() == second.SerializeToString()


def test_one_sample_cannot_judge_and_the_report_says_so() -> None:
    result = quantized(block(), correlated(1, rows=400), effort="max")
    assert result.report.trials == ()
    assert "AWQ and GPTQ were not tried" in notes(result)["not-tried"]


def test_a_weight_that_two_nodes_share_stays_stored_once() -> None:
    text = "(float[N,96] x) => (float[N,96] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, w) }"
    proto = model(text, {"w": normal(SIZE, SIZE, scale=0.1)})
    result = quantized(proto, correlated(24), effort="max")
    assert sum(array.size for array in codes(result.model).values() if array.size >= SIZE * SIZE // 2) <= SIZE * SIZE


def test_a_conv_alone_is_fitted_too() -> None:
    result = quantool.quantize(bed.cnn(), data=bed.feeds(40), effort="max", **OPTIONS)
    assert any("GPTQ" in trial.name for trial in result.report.trials)


# --- rules ----------------------------------------------------------------------------------------------


def test_rules_force_and_forbid_algorithms_at_nodes() -> None:
    proto, data = block(), correlated(40)
    plain = quantized(proto, data, effort="fast")
    forced = quantized(proto, data, effort="fast", rules=[{"name": "first", "algorithms": ["gptq", "k-quant"]}])
    before, after = codes(plain.model), codes(forced.model)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed
    assert {name.split("_")[0] for name in changed} == {"w1"}
    assert forced.report.trials == ()
    assert "algorithm-without-effect" not in notes(forced)
    bound = quantized(proto, data, effort="max", rules=[{"op_type": "MatMul", "algorithms": []}])
    assert not any("GPTQ" in trial.name or "awq" in trial.name for trial in bound.report.trials)


@pytest.mark.parametrize("name", ["mse-clip", "k-quant", "hqq"])
def test_a_rule_chooses_the_search(name: str) -> None:
    proto = block()
    plain, found = (
        quantized(proto, None, effort="fast", rules=[{"op_type": "MatMul", "algorithms": list(names)}])
        for names in ((), (name,))
    )
    assert (found.report.tensors[0].sqnr_db or 0.0) > (plain.report.tensors[0].sqnr_db or 0.0)


def test_what_needs_samples_is_told_where_there_are_none() -> None:
    result = quantized(block(), None, rules=[{"name": "first", "algorithms": ["gptq"]}])
    assert "gptq changes nothing at 1 node" in notes(result)["algorithm-without-effect"]


@pytest.mark.parametrize(
    ("mode", "names", "words"),
    [
        ("static", ["awq"], "static mode: they are for weights alone"),
        ("weight-only", ["equalization"], "static model"),
        ("weight-only", ["hqq", "k-quant"], "Name one"),
    ],
)
def test_algorithms_out_of_place_are_refused(mode: str, names: list[str], words: str) -> None:
    with pytest.raises(quantool.QuantoolError, match=words) as caught:
        quantool.quantize(block(), data=correlated(4), mode=mode, rules=[{"name": "first", "algorithms": names}])
    assert isinstance(caught.value, OptionError) or caught.value.exit_code == 2


# --- AWQ on the graph -----------------------------------------------------------------------------------


def test_factors_go_into_the_normalization_and_the_gated_product_and_keep_the_function() -> None:
    proto, data = block(), correlated(40)
    rule = {"op_type": "MatMul", "algorithms": ["awq"]}
    plain = quantized(proto, data, effort="fast", rules=[{"op_type": "MatMul", "algorithms": []}])
    result = quantized(proto, data, effort="fast", rules=[rule])
    stored = codes(result.model)
    assert any(name.startswith("gain_scaled") for name in stored)
    assert not any(node.op_type == "Div" for node in result.model.graph.node)
    assert decibels(result) >= decibels(plain) + 1.0
    exact = quantized(proto, data, effort="fast", weights="int8", granularity="block:32", rules=[rule])
    assert decibels(exact) >= 35.0


CONSTANTS = {
    "v": normal(4), "row": normal(1, 4), "one": np.float32(2.0), "w": normal(3, 4), "wt": normal(4, 3),
    "m": normal(4, 2),
}  # fmt: skip


def places(body: str, *, readers: Sequence[str] = ("end",)) -> tuple[Place, ...] | None:
    text = f"(float[N,3] a, float[N,4] x) => (float[N,2] y) {{ {body} [end] y = MatMul (t, m) }}"
    words = set(body.replace(",", " ").replace("(", " ").replace(")", " ").split()) | {"m"}
    proto = model(text, {name: value for name, value in CONSTANTS.items() if name in words})
    return absorbing(graph.facts(graph.prepare(graph.read(proto))), "t", 4, readers=readers)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("[n] t = LayerNormalization (x, v, row)", {("n", 1), ("n", 2)}),
        ("[p] t = Mul (x, v)", {("p", 1)}),
        ("[p] h = Mul (row, x) [s] t = Add (h, v)", {("p", 0), ("s", 1)}),
        ("[l] h = MatMul (a, w) [s] g = Add (h, v) t = Relu (g)", {("l", 1), ("s", 1)}),
        ("[l] t = Gemm <transB = 1> (a, wt, v)", {("l", 1), ("l", 2)}),
        ("[l] h = MatMul (a, w) s = Sigmoid (x) t = Mul (s, h)", {("l", 1)}),
        ("[l] h = MatMul (a, w) t = Div (h, one)", {("l", 1)}),
    ],
)
def test_what_takes_factors_up(body: str, expected: set[tuple[str, int]]) -> None:
    found = places(body)
    assert found is not None
    assert {(place.node, place.index) for place in found} == expected


@pytest.mark.parametrize(
    "body",
    [
        "t = Softmax (x)",
        "h = MatMul (a, w) t = Add (h, x)",
        "h = MatMul (a, w) t = Add (h, one)",
        "h = MatMul (a, w) t = Relu (h) other = Exp (h)",
        "p = Mul (x, v) t = Identity (p) other = Exp (t)",
        "h = MatMul (a, w) t = Sigmoid (h)",
        "h = Div (v, x) t = Relu (h)",
    ],
)
def test_what_cannot_take_them_up(body: str) -> None:
    assert places(body) is None


# --- large and small numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e-24, 1e21])
def test_accuracy_does_not_depend_on_the_unit_of_what_a_weight_multiplies(factor: float) -> None:
    body = "(float[N,96] x) => (float[N,48] y) { h = MatMul(x, w1) g = MatMul(h, w2) y = MatMul(g, w3) }"

    def made(size: float) -> QuantizeResult:
        weights = {
            "w1": normal(SIZE, SIZE, seed=1, scale=size), "w2": normal(SIZE, SIZE, seed=2, scale=0.1),
            "w3": normal(SIZE, 48, seed=3, scale=0.1 / size),
        }  # fmt: skip
        return quantized(model(body, weights), correlated(8), effort="max")

    assert abs(decibels(made(factor)) - decibels(made(1.0))) < 1.0


# --- weights that cannot be quantized -------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("weights", "effort"), [("int4", "fast"), ("uint4", "balanced"), ("int4", "max"), ("int8", "fast")]
)
def test_weights_that_are_not_finite_are_refused(bad: float, weights: str, effort: str) -> None:
    weight = normal(64, 48)
    weight[40, 3] = bad
    proto = model("(float[N,64] x) => (float[N,48] y) { y = MatMul(x, w) }", {"w": weight})
    with pytest.raises(quantool.ModelError, match="NaN or infinity"):
        quantized(proto, None, weights=weights, effort=effort, verify=False)
