"""Speech models: most of their work is in recurrent layers."""

from __future__ import annotations

import quantool
from tests.edge.graphs import feeds, model, weight


def test_coverage_counts_the_recurrent_layer_that_stays_float() -> None:
    proto = model(
        """(float[12,1,20] x) => (float[12,1,1,8] y) {
            [lstm] h = LSTM <hidden_size=64> (x, w, r)
            [head] y = MatMul (h, c)
        }""",
        {"w": weight(1, 256, 20), "r": weight(1, 256, 64), "c": weight(64, 8)},
    )
    report = quantool.quantize(proto, feeds(x=(12, 1, 20)), mode="static").report
    assert report.coverage.macs is not None
    assert report.coverage.macs < 0.05
    assert "Only 2 % of the multiplications are quantized." in report.verdict
