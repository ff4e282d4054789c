"""Quantize a model and hold the result against everything that EDGE_CASES demands of every graph."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime

import quantool
from quantool.kernels.metrics import sqnr_db
from quantool.report.model import Report
from quantool.schema import AnyArray, Feed
from tests.edge.graphs import nodes

#: what a width can reach on samples that were not used for calibration
STATIC_DB, SIX_LAYERS_DB, DYNAMIC_DB, WEIGHTS_DB, FOUR_BITS_DB = 28.0, 20.0, 25.0, 30.0, 16.0
LEVELS = onnxruntime.GraphOptimizationLevel
#: how a result is asked for: mode and format
FORMS: Mapping[str, Mapping[str, object]] = {
    "qdq": {"mode": "static", "format": "qdq"},
    "qoperator": {"mode": "static", "format": "qoperator"},
    "dynamic": {"mode": "dynamic"},
    "weight-only": {"mode": "weight-only"},
}
_HELD_OUT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A result that holds what every result must: see `check`."""

    proto: onnx.ModelProto
    report: Report
    given: list[dict[str, AnyArray]]
    optimized: list[dict[str, AnyArray]]
    plain: list[dict[str, AnyArray]]

    @property
    def ops(self) -> Counter[str]:
        """Operators of the written model, all scopes."""
        return Counter(node.op_type for node in nodes(self.proto.graph))

    @property
    def size(self) -> int:
        return self.proto.ByteSize()

    def decisions(self) -> dict[str, str]:
        """Node of the model as given -> ``quantized``, or the code of the reason why not."""
        return {row.name: "quantized" if row.reason is None else row.reason.code for row in self.report.nodes}

    def constants(self) -> dict[str, AnyArray]:
        return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in self.proto.graph.initializer}

    def db(self, output: str | None = None) -> float:
        """SQNR on the held-out feeds of the worse of both optimization levels, over all outputs or one."""
        names = [output] if output else list(self.given[0])
        return min(_db(self.given, found, name) for found in (self.optimized, self.plain) for name in names)


def check(
    proto: onnx.ModelProto,
    samples: Sequence[Feed],
    form: str = "qdq",
    *,
    db: float | None = None,
    held_out: Sequence[Feed] = (),
    runnable: onnx.ModelProto | None = None,
    **options: object,
) -> Checked:
    """Quantize, and assert what holds everywhere.

    samples: feeds; without `held_out` the last of them are not calibrated on. db: the least SQNR. runnable: stands for
    a model that ONNX Runtime itself refuses. The result passes
    the checker, loads with all optimizations and with none, has the same signature, positive and finite scales, a
    reason for every kept node, gives outputs of the same types and shapes, and (for a fixed quarter of
    the models) is the same in a second run.
    """
    shown, hidden = (samples, held_out) if held_out else (samples[:-_HELD_OUT] or samples, samples[-_HELD_OUT:])
    before = proto.SerializeToString(deterministic=True)
    options = {**FORMS[form], **options}
    result = quantool.quantize(proto, list(shown), **options)
    assert proto.SerializeToString(deterministic=True) == before, "the model given was changed"
    written = result.model
    if _passes(proto):
        onnx.checker.check_model(written, full_check=True)
    same_signature(proto, written)
    positive_scales(written)
    reasons(proto, result.report)
    if zlib.crc32(before + form.encode()) % 4 == 0:
        again = quantool.quantize(proto, list(shown), **{"verify": False, **options}).model
        assert again.SerializeToString(deterministic=True) == written.SerializeToString(deterministic=True)
    checked = Checked(
        proto=written,
        report=result.report,
        given=run(runnable or proto, hidden),
        optimized=run(written, hidden),
        plain=run(written, hidden, LEVELS.ORT_DISABLE_ALL),
    )
    reached = checked.db()
    assert db is None or reached >= db, f"{reached:.1f} dB, {db} wanted"
    return checked


def run(proto: onnx.ModelProto, samples: Sequence[Feed], level: object = LEVELS.ORT_ENABLE_ALL) -> list[dict]:
    """What ONNX Runtime computes; output name -> array for each feed."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    taken = {value.name for value in session.get_inputs()}
    found = []
    for feed in samples:
        known = {name: array for name, array in feed.items() if name in taken}
        found.append(dict(zip(names, session.run(None, known), strict=True)))
    return found


def same_signature(given: onnx.ModelProto, written: onnx.ModelProto) -> None:
    """Inputs and outputs keep names, order, types and symbolic dimensions."""
    constants = {tensor.name for tensor in given.graph.initializer}
    inputs = [value for value in given.graph.input if value.name not in constants]
    assert [_signature(v) for v in inputs] == [_signature(v) for v in written.graph.input]
    for old, new in zip(given.graph.output, written.graph.output, strict=True):
        assert old.name == new.name
        if old.type.tensor_type.HasField("shape"):
            assert _signature(old) == _signature(new)


def positive_scales(written: onnx.ModelProto) -> None:
    """Every constant scale that a quantizing operator reads is positive and finite."""
    constants = {tensor.name: tensor for tensor in written.graph.initializer}
    for node in nodes(written.graph):
        for name in node.input:
            named = "_scale" in name or (
                node.op_type in ("QuantizeLinear", "DequantizeLinear") and name == node.input[1]
            )
            if named and name in constants and ("Quantize" in node.op_type or node.op_type.startswith("Q")):
                value = onnx.numpy_helper.to_array(constants[name]).astype(np.float64)
                assert np.isfinite(value).all(), f"{name} is not finite"
                assert (value > 0).all(), f"{name} is not positive"


def reasons(given: onnx.ModelProto, report: Report) -> None:
    """Every node of the model as given has a row, and every kept one a reason with a text and a fix."""
    assert len(report.nodes) == sum(1 for _ in nodes(given.graph)) or given.functions
    assert len({row.name for row in report.nodes}) == len(report.nodes)
    for row in report.nodes:
        assert row.decision in ("quantized", "kept")
        if row.decision == "kept":
            assert row.reason is not None, row.name
            assert row.reason.code, row.name
            assert row.reason.text, row.name
            assert row.reason.fix, row.name


def _signature(value: onnx.ValueInfoProto) -> tuple[str, bytes]:
    return value.name, value.type.SerializeToString(deterministic=True)


def _passes(proto: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def _db(given: Sequence[Feed], found: Sequence[Feed], name: str) -> float:
    """SQNR over all feeds; infinite for equal outputs. Types and shapes must agree."""
    if not isinstance(given[0][name], np.ndarray):
        return np.inf
    assert [r[name].shape for r in given] == [r[name].shape for r in found], name
    assert given[0][name].dtype == found[0][name].dtype, name
    exact = np.concatenate([r[name].ravel() for r in given])
    other = np.concatenate([r[name].ravel() for r in found])
    if np.array_equal(exact, other) or exact.dtype.kind not in "f":
        return np.inf if np.array_equal(exact, other) else -np.inf
    return sqnr_db(exact.astype(np.float64), other.astype(np.float64))
