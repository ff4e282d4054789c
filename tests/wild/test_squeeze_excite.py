"""Squeeze-excite blocks as newer exporters write them: with ReduceMean."""

from __future__ import annotations

from tests.edge.driver import STATIC_DB, check
from tests.edge.graphs import feeds, model, weight


def test_the_squeeze_runs_as_integers_between_convolutions() -> None:
    proto = model(
        """(float[N,8,12,12] x) => (float[N,8,12,12] y) {
            c = Conv <pads=[1,1,1,1]> (x, w)
            [squeeze] s = ReduceMean <keepdims=1> (c, axes)
            d = Conv (s, v)
            r = Relu (d)
            e = Conv (r, u)
            g = Sigmoid (e)
            m = Mul (c, g)
            y = Conv <pads=[1,1,1,1]> (m, w)
        }""",
        {
            "w": weight(8, 8, 3, 3),
            "v": weight(4, 8, 1, 1, seed=1),
            "u": weight(8, 4, 1, 1, seed=2),
            "axes": [2, 3],
        },
        opset=18,
    )
    checked = check(proto, feeds(x=(1, 8, 12, 12)), "qdq", db=STATIC_DB)
    assert checked.decisions()["squeeze"] == "quantized"
    assert [row.runs_as for row in checked.report.nodes if row.name == "squeeze"] == ["integer"]
