"""Dense layers described by equations: what JAX and Keras export, and mixtures of experts."""

from __future__ import annotations

import pytest

from tests.edge.driver import DYNAMIC_DB, STATIC_DB, WEIGHTS_DB, check
from tests.edge.graphs import feeds, model, weight

HEADS = model(
    """(float[N,6,32] x) => (float[N,6,32] y) {
        [split] h = Einsum <equation="btd,dhe->bthe"> (x, w)
        [gelu] a = Tanh (h)
        [join] y = Einsum <equation="bthe,hed->btd"> (a, v)
    }""",
    {"w": weight(32, 64).reshape(32, 4, 16), "v": weight(64, 32, seed=1).reshape(4, 16, 32)},
)
EXPERTS = model(
    """(float[N,6,32] x) => (float[4,N,6,32] y) {
        [up] h = Einsum <equation="btd,edf->ebtf"> (x, w)
        [gelu] a = Tanh (h)
        [down] y = Einsum <equation="ebtf,efd->ebtd"> (a, v)
    }""",
    {"w": weight(4, 32, 64), "v": weight(4, 64, 32, seed=1)},
)


@pytest.mark.parametrize("proto", [HEADS, EXPERTS], ids=["heads", "experts"])
@pytest.mark.parametrize(
    ("form", "db"), [("qdq", STATIC_DB), ("qoperator", STATIC_DB), ("dynamic", DYNAMIC_DB), ("weight-only", WEIGHTS_DB)]
)
def test_weights_of_equations_become_integers(proto, form, db):
    checked = check(proto, feeds(x=(2, 6, 32)), form, db=db)
    quantized = [row.op_type for row in checked.report.nodes if row.decision == "quantized"]
    assert quantized == ["Einsum", "Einsum"]
    assert checked.report.coverage.weight_bytes == 1.0
    assert checked.size < 0.5 * proto.ByteSize()
