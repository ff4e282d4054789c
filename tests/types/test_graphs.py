"""A graph in each type is written, checked, run, and holds what the kernels predict, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes  # noqa: F401  # registers int4 and its kin as NumPy type names
import numpy as np
import onnx
import onnxruntime
import pytest

import quantool
from quantool import kernels, targets
from quantool.elements import ELEMENTS, required_opset
from quantool.errors import OptionError
from quantool.graph.outputs import with_outputs
from quantool.graph.reference import ReferenceSession
from quantool.kernels.metrics import sqnr_db
from quantool.plan import resolve
from quantool.recipe import from_options
from quantool.schema import AnyArray, Feed, Mode
from tests.rewrite.flow import normal, parse

FLOATS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
REFERENCE_ACTIVATIONS = ("int4", "uint4", "int2", "uint2", "float4_e2m1fn")
LEVELS = onnxruntime.GraphOptimizationLevel
MATRIX = "(float[N,32] x) => (float[N,24] y) { [m] y = MatMul (x, w) }"
NETWORK = """(float[1,4,8,8] x) => (float[1,10] y) {
    [c1] a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, k1, b1)
    [r1] b = Relu (a)
    [p] c = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b)
    [c2] d = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (c, k2, b2)
    [s] e = Add (d, c)
    [r2] f = Relu (e)
    [g] g = GlobalAveragePool (f)
    [f] h = Flatten (g)
    [fc] y = Gemm <transB = 1> (h, w3, b3)
}"""
CONSTANTS: Mapping[str, AnyArray] = {
    "w": normal(32, 24, seed=1), "k1": normal(16, 4, 3, 3, seed=2, scale=0.2), "b1": normal(16, seed=3),
    "k2": normal(16, 16, 3, 3, seed=4, scale=0.1), "b2": normal(16, seed=5), "w3": normal(10, 16, seed=6),
    "b3": normal(10, seed=7, scale=3),
}  # fmt: skip
DATA = [{"x": normal(1, 4, 8, 8, seed=seed)} for seed in range(20)]
ROWS = [{"x": normal(3, 32, seed=seed)} for seed in range(20)]


def model(body: str, *, opset: int = 17) -> onnx.ModelProto:
    return parse(body, {name: CONSTANTS[name] for name in CONSTANTS if f", {name}" in body}, opset=opset)


def run(proto: onnx.ModelProto, feed: Feed, outputs: list[str] | None = None, *, level: Any = None) -> list[AnyArray]:
    """Run in ONNX Runtime; in the reference evaluator where level is None."""
    data = with_outputs(proto.SerializeToString(), outputs) if outputs else proto.SerializeToString()
    if level is None:
        return list(ReferenceSession(data, {}, label="the model").run(feed, outputs).values())
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return list(session.run(outputs, dict(feed)))


def constants(proto: onnx.ModelProto) -> dict[str, AnyArray]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def opset(proto: onnx.ModelProto) -> int:
    return next(item.version for item in proto.opset_import if not item.domain)


def nodes(proto: onnx.ModelProto, op_type: str) -> list[onnx.NodeProto]:
    return [node for node in proto.graph.node if node.op_type == op_type]


def attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((item.i for item in node.attribute if item.name == name), default)


# --- weights --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("granularity", ["tensor", "channel", "block:16"])
@pytest.mark.parametrize("dtype", ELEMENTS)
def test_weights_alone_are_what_the_kernels_predict(dtype: str, granularity: str) -> None:
    options = {"mode": "weight-only", "target": "generic", "effort": "fast"}
    result = quantool.quantize(model(MATRIX), weights=dtype, granularity=granularity, **options)
    proto = result.model
    onnx.checker.check_model(proto, full_check=True)
    per_axis, per_block = granularity == "channel", granularity == "block:16"
    assert opset(proto) == max(17, required_opset(dtype, per_axis=per_axis, per_block=per_block))
    (dequantize,) = nodes(proto, "DequantizeLinear")
    stored = constants(proto)
    codes, scale, *zero_points = (stored[name] for name in dequantize.input)
    zero_point = zero_points[0] if zero_points else np.zeros(scale.shape, codes.dtype)
    form = {"axis": attribute(dequantize, "axis", 1), "block_size": attribute(dequantize, "block_size", 0)}
    assert scale.shape == {"tensor": (), "channel": (24,), "block:16": (2, 24)}[granularity]
    expected = kernels.quantize_linear(CONSTANTS["w"], scale, zero_point, opset=opset(proto), **form)
    assert str(codes.dtype) == dtype
    assert codes.tobytes() == expected.tobytes()
    # The rows of the identity pick single weights: products with 1 and sums with 0 are exact.
    predicted = kernels.dequantize_linear(expected, scale, zero_point, **form)
    feed = {"x": np.eye(32, dtype=np.float32)}
    lacking = dtype == "float4_e2m1fn"
    assert np.array_equal(run(proto, feed, level=None if lacking else LEVELS.ORT_DISABLE_ALL)[0], predicted)
    codes_of_warnings = [note.code for note in result.report.warnings]
    assert ("runs-as-float" in codes_of_warnings) == (dtype != "int8")
    assert ("reference-evaluator" in codes_of_warnings) == lacking


@pytest.mark.parametrize("granularity", ["tensor", "channel", "block:16"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint4", "int2", "uint2", "float8_e4m3fn"])
def test_weights_beside_quantized_activations_load_and_change_nothing_when_optimized(
    dtype: str, granularity: str
) -> None:
    """The runtime's own rewriting of Q and DQ keeps the result, whatever it fuses."""
    options = {"mode": "static", "weights": dtype, "granularity": granularity, "effort": "fast"}
    for body, data in ((NETWORK, DATA), (MATRIX, ROWS)):
        result = quantool.quantize(model(body), data, **options)
        plain, optimized = (
            run(result.model, data[0], level=level)[0] for level in (LEVELS.ORT_DISABLE_ALL, LEVELS.ORT_ENABLE_ALL)
        )
        # Integer kernels round once where Q and DQ round twice; MatMulNBits rounds its input to 8 bits.
        assert sqnr_db(plain, optimized) > 30
        assert result.report.exit_code == 0


# --- activations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_activations_are_what_the_kernels_predict(dtype: str) -> None:
    result = quantool.quantize(model(MATRIX), ROWS, mode="static", activations=dtype, effort="fast")
    proto = result.model
    onnx.checker.check_model(proto, full_check=True)
    assert opset(proto) == max(17, required_opset(dtype))
    (quantize,) = nodes(proto, "QuantizeLinear")
    view = next(node.output[0] for node in nodes(proto, "DequantizeLinear") if node.input[0] == quantize.output[0])
    scale, zero_point = (constants(proto)[name] for name in quantize.input[1:])
    assert str(zero_point.dtype) == dtype
    x = np.concatenate([normal(6, 32, seed=99), 100 * normal(2, 32, seed=98)])
    codes = kernels.quantize_linear(x, scale, zero_point, opset=opset(proto))
    level = None if dtype in REFERENCE_ACTIVATIONS else LEVELS.ORT_DISABLE_ALL
    found = run(proto, {"x": x}, [view], level=level)[0]
    assert found.tobytes() == kernels.dequantize_linear(codes, scale, zero_point).tobytes()
    warned = {note.code for note in result.report.warnings}
    assert ("runs-as-float" in warned) == (dtype not in ("int8", "uint8"))
    assert ("reference-evaluator" in warned) == (dtype in REFERENCE_ACTIVATIONS)


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
@pytest.mark.parametrize("dtype", ["uint16", "int16", *FLOATS])
def test_wide_and_floating_activations_run_as_written(dtype: str, granularity: str) -> None:
    """No Relu is lost before codes whose zero point is 0, and no bias is rounded to a tiny scale."""
    options = {"mode": "static", "activations": dtype, "weights": dtype, "granularity": granularity, "effort": "fast"}
    result = quantool.quantize(model(NETWORK), DATA, **options)
    reference, plain, optimized = (
        run(result.model, DATA[0], level=level)[0] for level in (None, LEVELS.ORT_DISABLE_ALL, LEVELS.ORT_ENABLE_ALL)
    )
    assert np.array_equal(plain, optimized)
    # The evaluator sums in another order, which moves values that stand next to a tie by a step.
    assert sqnr_db(reference, plain) > 40
    limit = {"uint16": 50.0, "int16": 50.0, "float8_e4m3fn": 20.0, "float8_e4m3fnuz": 20.0}.get(dtype, 14.0)
    assert result.report.verification is not None
    assert result.report.verification.outputs["y"].sqnr_db > limit


@pytest.mark.parametrize("dtype", REFERENCE_ACTIVATIONS)
def test_types_that_the_runtime_does_not_load_are_verified_by_the_reference_evaluator(dtype: str) -> None:
    result = quantool.quantize(model(NETWORK), DATA, mode="static", activations=dtype)
    verification = result.report.verification
    assert verification is not None
    assert verification.samples == 5
    assert result.report.latency is None
    assert "reference-evaluator" in {note.code for note in result.report.warnings}


# --- integer operators ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("activations", "weights"), [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")])
@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_integer_operators_are_what_the_kernels_predict(activations: str, weights: str, granularity: str) -> None:
    options = {"mode": "static", "format": "qoperator", "activations": activations, "weights": weights}
    result = quantool.quantize(model(MATRIX), ROWS, granularity=granularity, effort="fast", **options)
    (product,) = nodes(result.model, "QLinearMatMul")
    stored = constants(result.model)
    x, y = product.input[0], product.output[0]
    a, found = run(result.model, ROWS[3], [x, y], level=LEVELS.ORT_DISABLE_ALL)
    parameters = [stored[name] for name in product.input[1:]]
    assert parameters[3].shape == ((24,) if granularity == "channel" else ())
    assert np.array_equal(found, kernels.qlinear_matmul(a, *parameters))


def test_rows_of_a_constant_first_operand_get_their_scales_where_the_target_takes_them() -> None:
    body = "(float[1,1,32,5] x) => (float[1,1,12,5] y) { [m] y = MatMul (rows, x) }"
    rows = normal(12, 32, seed=8) * np.float32(10.0) ** np.arange(-9, 3, dtype=np.float32)[:, None]
    proto = parse(body, {"rows": rows})
    data = [{"x": normal(1, 1, 32, 5, seed=seed)} for seed in range(20)]
    options = {"mode": "static", "format": "qoperator", "include": ["m"], "effort": "fast"}
    result = quantool.quantize(proto, data, target="directml-2.1", **options)
    (product,) = nodes(result.model, "QLinearMatMul")
    stored = constants(result.model)
    a, sa, za = (stored[name] for name in product.input[:3])
    assert (sa.shape, za.shape) == ((12, 1), (12, 1))
    assert np.array_equal(a, kernels.quantize_linear(rows, sa, za, axis=1, block_size=32))
    x, found = run(result.model, data[3], [product.input[3], product.output[0]])
    others = [stored[name] for name in product.input[4:]]
    assert np.array_equal(found, kernels.qlinear_matmul(a, sa, za, x, *others, profile="ref"))
    assert "reference-evaluator" in {note.code for note in result.report.warnings}
    with pytest.raises(quantool.NothingQuantizedError, match="constant-first-operand"):
        quantool.quantize(proto, data, target="cpu-x64", **options)


# --- what may be named, and what is chosen --------------------------------------------------------------


@pytest.mark.parametrize("target", targets.names())
@pytest.mark.parametrize("mode", [Mode.STATIC, Mode.DYNAMIC, Mode.WEIGHT_ONLY])
def test_defaults_never_choose_an_exotic_type(target: str, mode: Mode) -> None:
    settings = resolve(from_options({"target": target}), targets.load(target), mode)
    assert {settings.weights, settings.activations} <= {"int8", "uint8"}
    assert settings.opset <= 13
    assert not settings.reference


@pytest.mark.parametrize(("dtype", "given", "written"), [
    ("int8", 11, 13), ("float8_e4m3fn", 11, 19), ("int16", 18, 21), ("int4", 11, 21), ("int2", 13, 25),
    ("float4_e2m1fn", 13, 23), ("float8_e5m2", 22, 22), ("uint2", 25, 25),
])  # fmt: skip
def test_the_opset_is_raised_as_far_as_the_type_needs_and_no_further(dtype: str, given: int, written: int) -> None:
    granularity = "channel" if ELEMENTS[dtype].bits >= 8 else "block:32"
    proto = model(MATRIX, opset=given)
    result = quantool.quantize(proto, mode="weight-only", weights=dtype, granularity=granularity)
    assert opset(result.model) == written


@pytest.mark.parametrize(("options", "words"), [
    ({"format": "qoperator", "weights": "float8_e4m3fn"}, "--weights float8_e4m3fn does not go with --format"),
    ({"format": "qoperator", "activations": "int16"}, "8-bit integers only"),
    ({"mode": "dynamic", "weights": "int4"}, "MatMulInteger takes int8 and uint8"),
    ({"activations": "float8_e4m3fn", "formula": "onnx"}, "it has a zero point"),
    ({"activations": "float8_e5m2", "narrow_range": True}, "it drops a code of an integer type"),
    ({"activations": "float8_e5m2", "calibrator": "entropy"}, "it reckons with equal steps"),
    ({"weights": "int5"}, "Unknown type 'int5'"),
])  # fmt: skip
def test_what_cannot_run_is_refused_before_any_data_is_read(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words) as raised:
        quantool.quantize(model(MATRIX), unread(), **{"mode": "static", **options})
    assert raised.value.exit_code == 2


def unread() -> Iterator[Feed]:
    """Data that must not be asked for."""
    raise AssertionError("data was read")
    yield {}


def test_a_model_that_the_reference_evaluator_cannot_run_is_refused_for_types_that_need_it() -> None:
    body = "(float[N,32] x) => (float[N,24] y) { t = com.microsoft.QuickGelu (x) [m] y = MatMul (t, w) }"
    for options in ({"weights": "float4_e2m1fn"}, {"activations": "int4"}):
        with pytest.raises(OptionError, match="evaluator lacks QuickGelu") as raised:
            quantool.quantize(model(body), unread(), mode="static", **options)
        assert raised.value.code == "type-cannot-run"
    quantool.quantize(model(body), ROWS, mode="static", weights="int4", effort="fast")


@pytest.mark.parametrize("formula", ["tf-scaled", "onnx-symmetric"])
def test_floating_activations_take_the_formulas_without_a_zero_point(formula: str) -> None:
    options = {"mode": "static", "activations": "float8_e4m3fn", "formula": formula, "effort": "fast"}
    result = quantool.quantize(model(MATRIX), ROWS, **options)
    assert result.report.verification is not None
    assert result.report.verification.outputs["y"].sqnr_db > 25
    repeated = {**(result.report.recipe or {}), "mode": "static"}
    assert quantool.quantize(model(MATRIX), ROWS, recipe=repeated).model == result.model


def test_a_type_named_without_data_goes_to_the_weights_alone() -> None:
    result = quantool.quantize(model(MATRIX), weights="int4")
    assert result.report.recipe is not None
    assert result.report.recipe["mode"] == "weight-only"
    assert [attribute(node, "bits", 0) for node in nodes(result.model, "MatMulNBits")] == [4]


def test_trials_quantize_activations_as_the_graph_does() -> None:
    options = {"mode": "static", "activations": "float8_e4m3fn", "weights": "float8_e4m3fn"}
    report = quantool.quantize(model(NETWORK), DATA, **options).report
    assert report.trials[0].name == "minmax ranges"
    assert report.verification is not None
    assert report.verification.outputs["y"].sqnr_db > 18


def test_compare_runs_what_the_runtime_lacks_in_the_reference_evaluator() -> None:
    result = quantool.quantize(model(MATRIX), mode="weight-only", weights="float4_e2m1fn")
    report = quantool.compare(model(MATRIX), result.model, data=ROWS)
    assert [note.code for note in report.warnings] == ["reference-evaluator"]
    assert report.latency is None
    assert report.verification is not None
    assert 10 < report.verification.outputs["y"].sqnr_db < 30


def test_what_neither_loads_is_an_error_of_the_runtime() -> None:
    unknown = model("(float[N,32] x) => (float[N,32] y) { y = com.microsoft.NoSuchOperator (x) }")
    with pytest.raises(quantool.ModelError, match="ONNX Runtime"):
        quantool.compare(model("(float[N,32] x) => (float[N,32] y) { y = Relu (x) }"), unknown, data=ROWS)


def test_the_reference_evaluator_names_the_sample_that_it_cannot_run() -> None:
    session = ReferenceSession(model(MATRIX).SerializeToString(), {}, label="the model")
    assert (session.inputs, session.outputs) == (("x",), ("y",))
    with pytest.raises(quantool.DataError, match="the model fails on the sample") as raised:
        session.run({"x": normal(3, 31)}, sample=7)
    assert raised.value.where == "sample 7"


def test_the_reference_evaluator_reads_external_data() -> None:
    proto = model(MATRIX)
    (weight,) = proto.graph.initializer
    data, expected = weight.raw_data, run(proto, ROWS[0])[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "w.data"), ("offset", "8"), ("length", str(len(data)))):
        weight.external_data.add(key=key, value=value)
    session = ReferenceSession(proto.SerializeToString(), {"w.data": b"12345678" + data}, label="the model")
    assert np.array_equal(session.run(ROWS[0])["y"], expected)
