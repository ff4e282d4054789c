"""Which tensor of a quantized model answers to which of its float model."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantool.schema import NodeFact
from quantool.verify.layers import Counterpart, LayerNoise, at_inputs, counterparts, layers, matched_layers


def node(op_type: str, inputs: str, outputs: str, name: str = "") -> NodeFact:
    """A node in one line."""
    return NodeFact(
        name=name or outputs, op_type=op_type, domain="", scope="", inputs=tuple(inputs.split()),
        outputs=tuple(outputs.split()), attributes={}, origins=(),
    )  # fmt: skip


SCALES = {"s": np.float32(0.5), "z": np.uint8(3), "one": np.array([0.25], np.float32)}


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node("Conv", "x w", "t")], Counterpart("t")),
        (
            [node("Conv", "x w", "t"), node("QuantizeLinear", "t s z", "tq"), node("DequantizeLinear", "tq s z", "td")],
            Counterpart("td"),
        ),
        ([node("Conv", "x w", "t"), node("QuantizeLinear", "t s z", "tq")], Counterpart("tq", scale=0.5, zero_point=3)),
        (
            [node("QLinearConv", "x s z w s z s z", "t_quantized")],
            Counterpart("t_quantized", scale=0.5, zero_point=3),
        ),
        ([node("QLinearAdd", "a s z b s z one", "t_quantized")], Counterpart("t_quantized", scale=0.25)),
        (
            [node("QLinearConv", "x s z w s z s z", "c"), node("MaxPool", "c", "t_quantized")],
            Counterpart("t_quantized", scale=0.5, zero_point=3),
        ),
        ([node("QGemm", "a s z b s z c", "t")], Counterpart("t")),
        ([node("DequantizeLinear", "q s z", "t_DequantizeLinear_Output")], Counterpart("t_DequantizeLinear_Output")),
        ([node("QLinearConv", "x s z w s z unknown z", "t_quantized")], None),
        ([node("Conv", "x w", "other")], None),
    ],
)
def test_a_tensor_is_found_as_its_readers_see_it(nodes: list[NodeFact], expected: Counterpart | None) -> None:
    assert counterparts(["t"], nodes, SCALES).get("t") == expected


@pytest.mark.parametrize(
    ("quantized", "expected"),
    [
        ([node("QLinearConv", "x s z w s z s z", "a_quantized")], {"r": "a_quantized"}),
        ([node("Conv", "x w", "a"), node("Relu", "a", "r")], {"a": "a", "r": "r"}),
        ([node("Conv", "x w", "a")], {"a": "a"}),
        (
            [node("Conv", "x w", "a"), node("QuantizeLinear", "a s z", "q"), node("DequantizeLinear", "q s z", "d")],
            {"r": "d"},
        ),
    ],
)
def test_codes_before_a_rectifier_that_is_gone_answer_to_what_it_wrote(
    quantized: list[NodeFact], expected: dict[str, str]
) -> None:
    found = matched_layers([node("Conv", "x w", "a"), node("Relu", "a", "r")], quantized, SCALES)
    assert {name: answer.name for name, answer in found.items()} == expected


def test_codes_stand_for_what_their_scale_says() -> None:
    real = Counterpart("q", scale=0.5, zero_point=3).real(np.array([3, 5, 0], np.uint8))
    assert real.tolist() == [0.0, 1.0, -1.5]


def test_layers_are_the_nodes_that_compute() -> None:
    nodes = [node("Conv", "x", "a"), node("Reshape", "a", "b"), node("Relu", "b", "c"), node("Cast", "c", "d")]
    assert [found.op_type for found in layers(nodes)] == ["Conv", "Relu"]


def test_noise_adds_up_over_samples_and_leaves_out_what_does_not_compare() -> None:
    noise = LayerNoise()
    matched = {"a": Counterpart("a"), "b": Counterpart("b"), "i": Counterpart("i"), "e": Counterpart("e")}
    one = np.ones(2, np.float32)
    for off in (0.1, 0.3):
        test = {"a": one + np.float32(off), "b": np.ones(3, np.float32), "i": np.ones(2, np.int64), "e": one}
        noise.add({"a": one, "b": one, "i": np.ones(2, np.int64), "e": one}, test, matched)
    found = noise.decibels()
    assert found.keys() == {"a", "e"}
    assert found["a"] == pytest.approx(10 * math.log10(4 / (2 * 0.1**2 + 2 * 0.3**2)), abs=1e-4)
    assert found["e"] == math.inf


def test_what_a_layer_reads_is_the_worst_of_what_was_measured_before_it() -> None:
    nodes = [
        node("Conv", "x w", "a"), node("Reshape", "a", "r"), node("Conv", "x v", "b"), node("Add", "r b", "c"),
        node("Sigmoid", "c", "d"),
    ]  # fmt: skip
    found = {n.op_type + n.outputs[0]: db for n, db in at_inputs(nodes, {"w", "v"}, {"a": 30.0, "b": 40.0, "d": 20.0})}
    assert found == {"Conva": math.inf, "Convb": math.inf, "Sigmoidd": 30.0}
