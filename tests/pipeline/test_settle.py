"""Nodes that the runtime turns out to run in float are given up, not forced."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import quantool

TEXT = """<ir_version: 8, opset_import: ["" : 13]> agraph (float[n, 16] x) => (float[n, 8] y) {
    a = MatMul(x, w)
    t = Tanh(a)
    y = MatMul(t, v)
}"""


def network():
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(TEXT)
    for name, shape in (("w", (16, 16)), ("v", (16, 8))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    return model, [{"x": rng.standard_normal((4, 16)).astype(np.float32)} for _ in range(4)]


@pytest.fixture
def unfused(monkeypatch):
    """Make the check find that a node runs in float whenever the plan quantizes it."""

    def patch(*names):
        judge = import_module("quantool.pipeline.judge")
        check = judge.check_execution

        def pretending(plan, execution, **options):
            found = tuple(name for name in names if plan.decisions[name].quantized)
            if found:
                error = quantool.VerificationError("runs-as-differs", "it stays float", where=found[0], fix="none")
                error.nodes = found
                raise error
            return check(plan, execution, **options)

        monkeypatch.setattr(judge, "check_execution", pretending)

    return patch


def rows(report):
    return {row.name: (row.decision, row.reason and row.reason.code) for row in report.nodes}


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_a_node_that_does_not_fuse_is_kept_with_a_reason_and_the_rest_quantized(unfused, mode):
    unfused("MatMul:a")
    model, feeds = network()
    report = quantool.quantize(model, data=feeds, mode=mode).report
    assert rows(report)["MatMul:a"] == ("kept", "not-fused")
    assert rows(report)["MatMul:y"] == ("quantized", None)


def test_where_nothing_fuses_nothing_is_quantized(unfused):
    unfused("MatMul:a", "MatMul:y")
    model, feeds = network()
    with pytest.raises(quantool.NothingQuantizedError) as caught:
        quantool.quantize(model, data=feeds)
    assert {code for decision, code in rows(caught.value.report).values() if decision == "kept"} >= {"not-fused"}


def test_a_kept_node_that_the_runtime_quantizes_still_fails_the_check(monkeypatch):
    judge = import_module("quantool.pipeline.judge")

    def failing(*_, **__):
        raise quantool.VerificationError("runs-as-differs", "it is quantized anyway", where="MatMul:a", fix="none")

    monkeypatch.setattr(judge, "check_execution", failing)
    model, feeds = network()
    with pytest.raises(quantool.VerificationError, match="quantized anyway"):
        quantool.quantize(model, data=feeds)
