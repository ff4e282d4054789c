"""Tensors whose rank nobody knows before the model runs, as behind a cache of keys and values."""

from __future__ import annotations

import numpy as np

import quantool
from tests.edge.graphs import feeds, model, weight

#: Inputs of unequal size, which the weights even out: smoothing wins
GAIN = np.geomspace(0.1, 30.0, 16, dtype=np.float32)


def test_smoothing_takes_an_unknown_rank_for_no_scalar() -> None:
    """ONNX Runtime gives both the shape []."""
    proto = model(
        """(float[4,16] x, int64[R] dims, float[16,4] z) => (float[] y) {
            n = Mul (x, gain)
            h = MatMul (n, w)
            r = Reshape (h, dims)
            s = MatMul (r, z)
            y = Neg (s)
        }""",
        {"w": weight(16, 16) / GAIN[:, None], "gain": GAIN},
    )
    samples = [{**feed, "dims": np.array([4, 16])} for feed in feeds(x=(4, 16), z=(16, 4))]
    report = quantool.quantize(proto, samples, mode="static", effort="max").report
    assert [row.op_type for row in report.nodes if row.decision == "quantized"] == ["MatMul"]
    assert any("smoothed" in trial.name and trial.chosen for trial in report.trials)
