"""Rounding that is switched on in parts: each switch alone, for the readers that it is meant for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.parser
import pytest

from quantool import graph
from quantool.graph.outputs import with_outputs
from quantool.graph.switches import RoundedConstant, RoundedTensor, unused_prefix, with_switches
from quantool.runtime import Loadable, Session
from quantool.schema import AnyArray

TEXT = """<ir_version: 8, opset_import: ["" : 13]> g (float[4] x) => (float[2] y, float[2] z, float[2] u) <float[2] w>
{
    [cut] a, b = Split(x)
    [scale] y = Mul(a, w)
    [shift] z = Add(a, w)
    [turn] u = Neg(b)
}
"""
X = np.array([0.3, 0.7, 1.2, 1.7], np.float32)
W = np.array([2.25, 3.75], np.float32)


@pytest.fixture
def model() -> onnx.ModelProto:
    proto = onnx.parser.parse_model(TEXT)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(W, "w"))
    return proto


def run(proto: onnx.ModelProto, *on: int) -> Mapping[str, AnyArray]:
    """The outputs with some of these rounded: 0 tensor a for one reader, 1 tensor b for all, 2 w for the sum."""
    nodes = graph.facts(graph.prepare(graph.read(proto))).by_name
    unit, zero = np.array(1.0, np.float32), np.array(0, np.uint8)
    data, switches = with_switches(
        proto.SerializeToString(),
        [
            RoundedTensor(switch=0, tensor="a", scale=unit, zero_point=zero, readers=[(nodes["scale"], 0)]),
            RoundedTensor(switch=1, tensor="b", scale=unit, zero_point=zero, readers=None),
        ],
        [RoundedConstant(switch=2, reader=nodes["shift"], index=1, values=np.rint(W))],
    )
    onnx.checker.check_model(onnx.load_model_from_string(data), full_check=True)
    session = Session(Loadable(model=with_outputs(data, ["b"])))
    return session.run({"x": X, **{name: np.array(number in on) for number, name in switches.items()}})


@pytest.mark.parametrize("on", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_a_switch_rounds_what_it_is_for_and_nothing_else(model: onnx.ModelProto, on: tuple[int, ...]) -> None:
    found = run(model, *on)
    a, b = X[:2], X[2:]
    np.testing.assert_allclose(found["y"], (np.rint(a) if 0 in on else a) * W, rtol=1e-6)
    np.testing.assert_allclose(found["z"], a + (np.rint(W) if 2 in on else W), rtol=1e-6)
    np.testing.assert_allclose(found["u"], -(np.rint(b) if 1 in on else b), rtol=1e-6)
    np.testing.assert_allclose(found["b"], np.rint(b) if 1 in on else b, rtol=1e-6)


def test_new_names_are_unlike_all_others(model: onnx.ModelProto) -> None:
    model.graph.node[0].name = "rounding_"
    prefix = unused_prefix(model.SerializeToString())
    assert prefix.startswith("rounding")
    assert prefix.encode() not in model.SerializeToString()
