from __future__ import annotations

import numpy as np
import pytest

from .text_model import normal, normalized, op_types

PADS = np.array([0, 0, 1, 2, 0, 0, 3, 0])
CONSTANTS = {"w": normal(6, 4, 3, 3), "p": PADS, "zero": np.float32(0), "nine": np.float32(9)}


def padded(nodes: str, *, opset: int = 13, outputs: str = "float y") -> str:
    return f"""
    <ir_version: 8, opset_import: ["": {opset}]> g (float[2, 4, 6, 6] x) => ({outputs}) {{ {nodes} }}
    """


FOLDED = [
    pytest.param("a = Pad(x, p)  y = Conv(a, w)", 13, id="plain"),
    pytest.param("a = Pad(x, p, zero)  y = Conv<pads=[1, 1, 0, 2]>(a, w)", 13, id="value-and-own-pads"),
    pytest.param('a = Pad(x, p, "")  y = Conv<strides=[2, 2]>(a, w)', 13, id="empty-value"),
    pytest.param('a = Pad(x, p)  y = Conv<auto_pad="VALID">(a, w)', 13, id="valid"),
    pytest.param("a = Pad<pads=[0, 0, 1, 2, 0, 0, 3, 0]>(x)  y = Conv(a, w)", 9, id="attributes"),
    pytest.param('a = Pad(x, q, "", axes)  y = Conv(a, w)', 18, id="axes"),
]
KEPT = [
    pytest.param("a = Pad(x, p, nine)  y = Conv(a, w)", {}, id="nine"),
    pytest.param('a = Pad<mode="reflect">(x, p)  y = Conv(a, w)', {}, id="reflect"),
    pytest.param('a = Pad<mode="edge">(x, p)  y = Conv(a, w)', {}, id="edge"),
    pytest.param("a = Pad(x, p)  y = Conv(a, w)", {"p": np.array([0, 0, -1, 2, 0, 0, 3, 0])}, id="negative"),
    pytest.param("a = Pad(x, p)  y = Conv(a, w)", {"p": np.array([1, 0, 1, 2, 0, 0, 3, 0])}, id="batch"),
    pytest.param(
        "a = Pad(x, p)  y = Conv(a, w)",
        {"p": np.array([0, 1, 0, 0, 0, 0, 0, 0]), "w": normal(6, 5, 3, 3)},
        id="channels",
    ),
    pytest.param('a = Pad(x, p)  y = Conv<auto_pad="SAME_UPPER">(a, w)', {}, id="same"),
    pytest.param("a = Pad(x, p)  b = Conv(a, w)  c = ReduceMax(a)  y = Add(b, c)", {}, id="two-readers"),
    pytest.param("a = Pad(x, p)  y = MaxPool<kernel_shape=[2, 2]>(a)", {}, id="max-pool"),
    pytest.param("a = Pad(x, p)  b = Relu(a)  y = Conv(b, w)", {}, id="something-between"),
]


@pytest.mark.parametrize(("nodes", "opset"), FOLDED)
def test_zeros_around_the_image_become_pads_of_the_conv(nodes: str, opset: int) -> None:
    constants = CONSTANTS | {"q": np.array([1, 2, 3, 0]), "axes": np.array([-2, 3])}
    model = normalized(padded(nodes, opset=opset), constants, feed={"x": normal(2, 4, 6, 6)}, only="fold-pad")
    assert op_types(model) == ["Conv"]
    assert model.absorbed == {"Pad:a": "Conv:y"}


@pytest.mark.parametrize(("nodes", "constants"), KEPT)
def test_every_other_pad_stays(nodes: str, constants: dict[str, np.ndarray]) -> None:
    model = normalized(padded(nodes), CONSTANTS | constants, feed={"x": normal(2, 4, 6, 6)}, only="fold-pad")
    assert "Pad" in op_types(model)
    assert model.absorbed == {}


def test_a_pad_that_is_an_output_stays() -> None:
    text = padded("a = Pad(x, p)  y = Conv(a, w)", outputs="float a, float y")
    model = normalized(text, CONSTANTS, feed={"x": normal(2, 4, 6, 6)}, only="fold-pad")
    assert op_types(model) == ["Pad", "Conv"]
