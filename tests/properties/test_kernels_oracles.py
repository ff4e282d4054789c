"""Random requests against the oracles themselves: ONNX Runtime on CPU and the onnx reference evaluator.

The golden cases are recorded; these are drawn anew from fixed seeds, so that shapes, types and values meet that no
one thought of. ``-m full`` draws 20,000, the default share one in twenty.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from quantool import kernels

DRAWS, FULL_DRAWS = 50, 1000
SEEDS = range(4)

FLOATS = ["float32", "float16"]
INTEGERS = ["uint8", "int8", "uint16", "int16", "uint4", "int4", "uint2", "int2"]
FLOAT8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
SMALL_FLOATS = ["float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"]


def typed(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def onnx_type(dtype: np.dtype[Any]) -> int:
    return helper.np_dtype_to_tensor_dtype(dtype)


@dataclass(frozen=True)
class Request:
    """One node with its inputs; None for an absent one."""

    op: str
    inputs: dict[str, np.ndarray | None]
    attributes: dict[str, Any]
    opset: int
    output: np.dtype[Any]
    domain: str = ""

    # All inputs are initializers: Python cannot feed most of the small types.
    def model(self, cast_to: int | None = None) -> onnx.ModelProto:
        names = [name if value is not None else "" for name, value in self.inputs.items()]
        nodes = [helper.make_node(self.op, names, ["y"], domain=self.domain, **self.attributes)]
        output, kind = "y", onnx_type(self.output)
        if cast_to is not None:
            nodes.append(helper.make_node("Cast", ["y"], ["cast"], to=cast_to))
            output, kind = "cast", cast_to
        present = {name: value for name, value in self.inputs.items() if value is not None}
        graph = helper.make_graph(
            nodes,
            "g",
            [],
            [helper.make_tensor_value_info(output, kind, None)],
            [onnx.numpy_helper.from_array(value, name) for name, value in present.items()],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        if self.domain:
            opsets.append(helper.make_opsetid(self.domain, 1))
        return helper.make_model(graph, opset_imports=opsets, ir_version=13 if self.opset > 24 else 10)


def run_ort(request: Request) -> np.ndarray:
    """ONNX Runtime's result; types that Python cannot fetch come through a Cast, which keeps every code."""
    cast_to = None
    if request.output.name in INTEGERS and request.output.itemsize == 1 and request.output.name[-1] in "42":
        cast_to = TensorProto.INT32
    elif "float8" in request.output.name:
        cast_to = TensorProto.FLOAT
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = request.model(cast_to)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {})[0])


def run_reference(request: Request) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(ReferenceEvaluator(request.model()).run(None, {})[0])


def run_kernel(request: Request, function: str, profile: str | None) -> np.ndarray:
    attributes = dict(request.attributes)
    for name in ("output_dtype", "precision"):
        if name in attributes:
            attributes[name] = helper.tensor_dtype_to_np_dtype(attributes[name])
    if "saturate" in attributes:
        attributes["saturate"] = bool(attributes["saturate"])
    if profile is not None:
        attributes["profile"] = profile
    if function == "quantize_linear":
        attributes["opset"] = request.opset
    return np.asarray(getattr(kernels, function)(*request.inputs.values(), **attributes))


def assert_same(got: np.ndarray, want: np.ndarray, request: Request) -> None:
    assert got.shape == want.shape, request
    a, b = got.astype(np.float64), want.astype(np.float64)
    same = (a == b) & (np.signbit(a) == np.signbit(b)) | (np.isnan(a) & np.isnan(b))
    assert same.all(), (request, got[~same], want[~same])


def draw_shape(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(1, 6, rng.integers(1, 5)))


def draw_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Ordinary values, ties, and now and then values of any size; NaN and Inf in one draw of ten.

    Not in bfloat16: the reference evaluator casts them to int32, which gives -2**31 or 0, by the version of ml_dtypes.
    """
    if dtype == "int32":
        return rng.integers(-300, 300, shape).astype(np.int32)
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 4)
    if rng.random() < 0.3:
        x = np.round(x * 2) / 2
    if rng.random() < 0.1 and dtype != "bfloat16":
        x = np.where(rng.random(shape) < 0.2, rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], shape), x)
    with np.errstate(all="ignore"):
        return x.astype(np.float32).astype(typed(dtype))


def draw_granularity(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[tuple[int, ...], dict[str, int]]:
    kind = rng.choice(["tensor", "axis", "block"] if len(shape) > 1 else ["tensor", "axis"])
    axis = int(rng.integers(-len(shape), len(shape)))
    if kind == "tensor":
        return (), {}
    if kind == "axis":
        return (shape[axis],), {"axis": axis}
    block = int(rng.integers(1, 7))
    parameters = list(shape)
    parameters[axis] = -(-shape[axis] // block)
    return tuple(parameters), {"axis": axis, "block_size": block}


def draw_zero(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype not in INTEGERS:
        return np.zeros(shape, np.float32).astype(typed(dtype))
    bits = int("".join(c for c in dtype if c.isdigit()))
    low = -(1 << (bits - 1)) if dtype.startswith("int") else 0
    return rng.integers(low, low + (1 << bits), shape).astype(np.int32).astype(typed(dtype))


def draw_scale(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == "int32":
        return rng.integers(1, 9, shape).astype(np.int32)
    scale = rng.choice([0.5, 0.1, 0.037, 1.0, 3.0], shape) * rng.uniform(0.9, 1.1, shape)
    if rng.random() < 0.4:
        scale = 2.0 ** rng.integers(-2, 3, shape)  # exact quotients and products, and so ties
    return np.asarray(scale, np.float32).astype(typed(dtype))


def draw_quantize(rng: np.random.Generator, *, runtime: bool) -> Request:
    shape = draw_shape(rng)
    parameters, attributes = draw_granularity(rng, shape)
    output = str(rng.choice(INTEGERS + FLOAT8 if runtime else INTEGERS + FLOAT8 + SMALL_FLOATS))
    opset = int(rng.choice([21, 23, 25])) if output not in ("uint2", "int2") else 25
    if output == "float4_e2m1fn":
        opset = max(opset, 23)
    if output in ("float6_e2m3fn", "float6_e3m2fn"):
        opset = 28
    x_type = str(rng.choice(FLOATS if runtime else [*FLOATS, "bfloat16", "int32"]))
    mixed = opset >= 23 and x_type in FLOATS and rng.random() < 0.3
    scale_type = str(rng.choice(FLOATS)) if mixed else x_type
    if opset >= 23 and output in INTEGERS and rng.random() < 0.2:
        attributes["precision"] = int(rng.choice([TensorProto.FLOAT, TensorProto.FLOAT16]))
    if output in FLOAT8 and not runtime:
        attributes["saturate"] = int(rng.integers(0, 2))
    inputs: dict[str, np.ndarray | None] = {
        "x": draw_values(rng, shape, x_type),
        "s": draw_scale(rng, parameters, scale_type),
        "z": draw_zero(rng, parameters, output),
    }
    if rng.random() < 0.2:
        inputs["z"] = None
        attributes["output_dtype"] = onnx_type(typed(output))
    return Request("QuantizeLinear", inputs, attributes, opset, typed(output))


def draw_dequantize(rng: np.random.Generator, *, runtime: bool) -> Request:
    shape = draw_shape(rng)
    parameters, attributes = draw_granularity(rng, shape)
    names = INTEGERS + FLOAT8 + ["int32"] + ([] if runtime else ["float4_e2m1fn"])
    name = str(rng.choice(names))
    scale_type = str(rng.choice(FLOATS if runtime else [*FLOATS, "bfloat16"]))
    if name in INTEGERS:
        x = draw_zero(rng, shape, name)
    elif name == "int32":
        x = rng.integers(-(2**20), 2**20, shape).astype(np.int32)
    else:
        x = draw_values(rng, shape, "float32").astype(typed(name))
    zero = draw_zero(rng, parameters, name) if rng.random() < 0.7 and name != "int32" else None
    inputs = {"x": x, "s": draw_scale(rng, parameters, scale_type), "z": zero}
    return Request("DequantizeLinear", inputs, attributes, 25, typed(scale_type))


def draw_matmul(rng: np.random.Generator, *, runtime: bool) -> Request:
    rows, depth, columns = (int(n) for n in rng.integers(1, 9, 3))
    batch = tuple(int(n) for n in rng.integers(1, 4, rng.integers(0, 2)))
    triples = [("uint8", "uint8", "uint8"), ("uint8", "int8", "uint8"), ("int8", "int8", "int8")]
    if not runtime:
        triples.append(("int8", "uint8", "uint8"))
    a, b, y = triples[int(rng.integers(0, len(triples)))]
    per_column = (columns,) if rng.random() < 0.5 and not batch else ()
    inputs: dict[str, np.ndarray | None] = {
        "a": draw_zero(rng, (*batch, rows, depth), a),
        "sa": draw_scale(rng, (), "float32"),
        "za": draw_zero(rng, (), a),
        "b": draw_zero(rng, (*batch, depth, columns), b),
        "sb": draw_scale(rng, per_column, "float32"),
        "zb": draw_zero(rng, per_column, b),
        "sy": np.asarray(draw_scale(rng, (), "float32") * rng.choice([1, 16, 256]), np.float32),
        "zy": draw_zero(rng, (), y),
    }
    return Request("QLinearMatMul", inputs, {}, 21, typed(y))


def draw_elementwise(rng: np.random.Generator, op: str) -> Request:
    name = str(rng.choice(["uint8", "int8"]))
    shape = draw_shape(rng)
    inputs: dict[str, np.ndarray | None] = {}
    for operand in "ab":
        inputs[operand] = draw_zero(rng, shape, name)
        inputs[f"s{operand}"] = draw_scale(rng, (), "float32")
        inputs[f"z{operand}"] = draw_zero(rng, (), name)
    inputs["sy"], inputs["zy"] = draw_scale(rng, (), "float32"), draw_zero(rng, (), name)
    return Request(op, inputs, {}, 21, typed(name), "com.microsoft")


def draw_dynamic(rng: np.random.Generator) -> Request:
    x = draw_values(rng, draw_shape(rng), "float32")
    return Request("DynamicQuantizeLinear", {"x": x}, {}, 21, typed("uint8"))


def check(family: str, seed: int, draws: int) -> None:
    rng = np.random.default_rng([seed, len(family)])
    for _ in range(draws):
        match family:
            case "quantize, runtime":
                request, function = draw_quantize(rng, runtime=True), "quantize_linear"
            case "quantize, reference":
                request, function = draw_quantize(rng, runtime=False), "quantize_linear"
            case "dequantize, runtime":
                request, function = draw_dequantize(rng, runtime=True), "dequantize_linear"
            case "dequantize, reference":
                request, function = draw_dequantize(rng, runtime=False), "dequantize_linear"
            case "matmul, runtime":
                request, function = draw_matmul(rng, runtime=True), "qlinear_matmul"
            case "matmul, reference":
                request, function = draw_matmul(rng, runtime=False), "qlinear_matmul"
            case "add, runtime":
                request, function = draw_elementwise(rng, "QLinearAdd"), "qlinear_add"
            case _:
                request, function = draw_elementwise(rng, "QLinearMul"), "qlinear_mul"
        runtime = family.endswith("runtime")
        has_profile = not function.startswith(("qlinear_add", "qlinear_mul"))
        profile = ("ort" if runtime else "ref") if has_profile else None
        got = run_kernel(request, function, profile)
        want = run_ort(request) if runtime else run_reference(request)
        assert_same(got, want, request)


FAMILIES = [
    "quantize, runtime",
    "quantize, reference",
    "dequantize, runtime",
    "dequantize, reference",
    "matmul, runtime",
    "matmul, reference",
    "add, runtime",
    "multiply, runtime",
]


@pytest.mark.parametrize("family", FAMILIES)
def test_random_requests_agree_with_the_oracle(family: str) -> None:
    check(family, seed=0, draws=DRAWS)


@pytest.mark.full
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_many_random_requests_agree_with_the_oracle(family: str, seed: int) -> None:
    check(family, seed=seed + 1, draws=FULL_DRAWS)
