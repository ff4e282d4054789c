"""Tables that a graph computes from a few constants: Fourier bases, positions."""

from __future__ import annotations

import numpy as np

from tests.edge.driver import check
from tests.edge.graphs import feeds, model, weight


def test_a_table_of_angles_is_not_stored_in_the_file() -> None:
    """The int64 outer product would be stored, since integer division is left to the runtime: 32 KB for 1 KB."""
    steps = np.arange(64, dtype=np.int64)
    proto = model(
        """(float[1,64] x) => (float[1,64] y) {
            turns = Mul (rows, columns)
            whole = Div (turns, size)
            full = Mul (whole, size)
            rest = Sub (turns, full)
            fraction = Cast <to=1> (rest)
            angle = Mul (fraction, unit)
            basis = Cos (angle)
            h = MatMul (x, w)
            y = MatMul (h, basis)
        }""",
        {
            "rows": steps[:, None],
            "columns": steps[None, :],
            "size": np.array(64, np.int64),
            "unit": np.array(2 * np.pi / 64, np.float32),
            "w": weight(64, 64),
        },
    )
    checked = check(proto, feeds(x=(1, 64)), "qdq", db=28.0)
    assert checked.size < 0.6 * proto.ByteSize()
