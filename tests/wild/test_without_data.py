"""A convolutional network and no data: weights alone become integers."""

from __future__ import annotations

import quantool
from tests.edge.graphs import feeds, model, weight

TEXT = """(float[1,8,16,16] x) => (float[] y) {
    a = Conv <pads=[1,1,1,1]> (x, w) r = Relu (a) y = Conv <pads=[1,1,1,1]> (r, v)
}"""
WEIGHTS = {"w": weight(32, 8, 3, 3, seed=1), "v": weight(16, 32, 3, 3, seed=2)}
SLOWER = "2 convolutions turn their weights back into float in every run: expect them to be slower than float."


def test_an_untimed_verdict_says_that_convolutions_will_be_slower() -> None:
    """Measured on 20 networks: 0.3 to 0.97 times as fast; a file that is smaller alone would be silently slower."""
    assert SLOWER in quantool.quantize(model(TEXT, WEIGHTS)).report.verdict


def test_a_timed_verdict_says_how_much_slower() -> None:
    result = quantool.quantize(model(TEXT, WEIGHTS), feeds(x=(1, 8, 16, 16)), mode="weight-only")
    assert result.report.latency is not None
    assert SLOWER not in result.report.verdict


def test_products_alone_are_not_called_slower() -> None:
    proto = model("(float[4,64] x) => (float[4,64] y) { y = MatMul (x, w) }", {"w": weight(64, 64)})
    assert "slower" not in quantool.quantize(proto).report.verdict
