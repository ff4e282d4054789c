"""An embedding table that is also the output head is stored once, whatever the mode."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import quantool

WORDS, WIDTH = 400, 64


def tied_model():
    text = """<ir_version: 8, opset_import: ["" : 17]> agraph (int64[n, t] ids) => (float[n, t, 400] logits) {
        h = Gather(table, ids)
        a = MatMul(h, w)
        g = Tanh(a)
        head = Transpose <perm = [1, 0]> (table)
        logits = MatMul(g, head)
    }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("table", (WORDS, WIDTH)), ("w", (WIDTH, WIDTH))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 8, name))
    feeds = [{"ids": rng.integers(0, WORDS, (2, 6))} for _ in range(20)]
    return model, feeds


@pytest.mark.parametrize(
    "options", [{"mode": "static"}, {"mode": "weight-only"}, {"mode": "auto", "data": None}], ids=str
)
def test_the_table_is_stored_once(options):
    model, feeds = tied_model()
    result = quantool.quantize(model, **{"data": feeds, "effort": "fast", **options}, verify_data=feeds[:4])
    tables = [t for t in result.model.graph.initializer if np.prod(t.dims) == WORDS * WIDTH]
    kind = onnx.TensorProto.UINT8 if options["mode"] == "weight-only" else onnx.TensorProto.INT8
    assert [t.data_type for t in tables] == [kind]
    assert result.model.ByteSize() < 0.4 * model.ByteSize()
    # Three products and a table in 8 bits, each at least 30 dB.
    assert result.report.verification.outputs["logits"].sqnr_db > 25


def test_codes_that_differ_are_stored_apart():
    model, feeds = tied_model()
    result = quantool.quantize(model, data=feeds, effort="fast", granularity="tensor")
    tables = [t for t in result.model.graph.initializer if np.prod(t.dims) == WORDS * WIDTH]
    assert len(tables) == 2  # one scale a row for the lookup, one for the whole head
