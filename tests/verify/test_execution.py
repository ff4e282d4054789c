"""How nodes really run, on models that ONNX Runtime optimized here; no recorded graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from quantool.graph.optimized import OptimizedGraph
from quantool.verify.execution import Execution, StandIns, execution, stand_ins
from tests.verify.qdq_models import QdqModel, Shape, node_fact

IMAGE = {"x": [1, 4, 8, 8]}
PADS = {"pads": [1, 1, 1, 1]}


def executed(model: QdqModel, inputs: dict[str, Shape], outputs: Sequence[str], **dtypes: int) -> Execution:
    return execution(model.optimized(inputs, outputs, **dtypes), model.wanted())


def conv(model: QdqModel, x: str, out: str, name: str, channels: int = 4) -> str:
    return model.node("Conv", [x, model.weight(f"{name}.w", channels, 4, 3, 3)], out, name, **PADS)


def test_convs_that_lose_their_names_and_tensors_are_integer() -> None:
    model = QdqModel()
    for number, source in enumerate(["x", "c0", "c1"]):
        conv(model, model.pair(source), f"c{number}", f"conv{number}")
    model.node("Identity", [model.pair("c2")], "y", "out")
    ran = executed(model, IMAGE, ["y"])
    assert all(ran.runs_as.integer[f"conv{number}"] for number in range(3))
    assert ran.runs_as.fused == {"QLinearConv": 3}
    assert ran.runs_as.left == {"QuantizeLinear": 1, "DequantizeLinear": 1}


def test_relu_and_clip_that_saturation_replaces_run_with_their_conv() -> None:
    model = QdqModel()
    conv(model, model.pair("x"), "c", "conv")
    model.node("Relu", ["c"], "r", "relu")
    conv(model, model.pair("r", zero_point=0), "c2", "conv2")
    model.node("Clip", ["c2", model.constant("lo", np.float32(0)), model.constant("hi", np.float32(6))], "k", "clip")
    model.node("Identity", [model.pair("k", scale=6 / 255, zero_point=0)], "y", "out")
    ran = executed(model, IMAGE, ["y"]).runs_as.integer
    assert ran["conv"]
    assert ran["conv2"]
    assert ran["clip"]
    assert ran.get("relu", True)


def test_a_relu_that_stays_makes_its_conv_float() -> None:
    model = QdqModel()
    conv(model, model.pair("x"), "c", "conv")
    model.node("Relu", ["c"], "r", "relu")
    model.node("Identity", [model.pair("r", zero_point=3)], "y", "out")
    ran = executed(model, IMAGE, ["y"]).runs_as
    assert ran.integer["conv"] is False
    assert ran.fused == {}


def test_a_conv_without_q_or_with_a_second_float_reader_is_float() -> None:
    model = QdqModel()
    conv(model, model.pair("x"), "c", "two_readers")
    conv(model, model.pair("c"), "d", "no_q")
    model.node("Sigmoid", ["c"], "s", "sigmoid")
    model.node("Mul", ["d", "s"], "y", "mul")
    ran = executed(model, IMAGE, ["y"]).runs_as
    assert ran.integer == {"two_readers": False, "no_q": False, "sigmoid": False, "mul": False}


def test_a_residual_block_a_pool_and_a_gemm_are_integer() -> None:
    model = QdqModel()
    x = model.pair("x")
    conv(model, x, "c", "conv")
    model.node("Add", [model.pair("c"), x], "a", "add")
    model.node("Relu", ["a"], "r", "relu")
    model.node("GlobalAveragePool", [model.pair("r", zero_point=0)], "g", "pool")
    model.node("Flatten", [model.pair("g", zero_point=0)], "f", "flatten")
    operands = [model.pair("f", zero_point=0), model.weight("w", 10, 4), model.bias("b", 10)]
    model.node("Gemm", operands, "y", "gemm", transB=1)
    ran = executed(model, IMAGE, ["y"]).runs_as
    assert set(ran.integer.values()) == {True}
    assert {"conv", "add", "relu", "pool", "flatten", "gemm"} == set(ran.integer)
    assert ran.fused == {"QGemm": 1, "QLinearAdd": 1, "QLinearConv": 1, "QLinearGlobalAveragePool": 1}


def test_silu_pools_leaky_relu_and_softmax_are_integer() -> None:
    model = QdqModel()
    conv(model, model.pair("x"), "c", "conv")
    c = model.pair("c")
    model.node("Sigmoid", [c], "s", "sigmoid")
    model.node("Mul", [c, model.pair("s", scale=1 / 255, zero_point=0)], "m", "mul")
    model.node("MaxPool", [model.pair("m")], "p", "max_pool", kernel_shape=[2, 2])
    model.node("LeakyRelu", [model.pair("p")], "l", "leaky")
    model.node("AveragePool", [model.pair("l")], "v", "average_pool", kernel_shape=[2, 2])
    model.node("Softmax", [model.pair("v")], "t", "softmax")
    model.node("Identity", [model.pair("t", scale=1 / 256, zero_point=0)], "y", "out")
    ran = executed(model, IMAGE, ["y"]).runs_as
    names = ("conv", "sigmoid", "mul", "max_pool", "leaky", "average_pool", "softmax")
    assert [ran.integer[name] for name in names] == [True] * len(names)


def test_concat_where_and_movers_are_integer_and_pad_is_not() -> None:
    model = QdqModel()
    x = model.pair("x")
    model.node("Split", [x], ["s1", "s2"], "split", axis=1)
    model.node("Concat", [model.pair("s2"), model.pair("s1")], "c", "concat", axis=1)
    model.node("Where", ["flag", model.pair("c"), x], "w", "where")
    conv(model, model.pair("w"), "d", "conv")
    model.node("Pad", [model.pair("d"), model.constant("pads", [0, 0, 1, 1, 0, 0, 1, 1])], "p", "pad")
    conv(model, model.pair("p"), "e", "conv2")
    model.node("MaxPool", [model.pair("e")], "m", "pool", kernel_shape=[2, 2])
    model.node("Resize", [model.pair("m"), "", model.constant("r", np.array([1, 1, 2, 2], "f"))], "z", "resize")
    model.node("Flatten", [model.pair("z")], "y", "flatten")
    ran = executed(model, {**IMAGE, "flag": [1, 4, 8, 8]}, ["y"], flag=9).runs_as.integer
    integer = ("split", "concat", "where", "conv", "conv2", "pool", "resize")
    assert {name: ran[name] for name in integer} == dict.fromkeys(integer, True)
    assert ran["pad"] is False
    assert ran["flatten"] is False


def test_hard_swish_that_the_runtime_takes_apart_is_not_integer() -> None:
    model = QdqModel()
    conv(model, model.pair("x"), "c", "conv")
    model.node("HardSwish", [model.pair("c")], "h", "hard_swish")
    conv(model, model.pair("h"), "d", "conv2")
    model.node("Identity", [model.pair("d")], "y", "out")
    ran = executed(model, IMAGE, ["y"]).runs_as.integer
    assert not ran.get("hard_swish", False)
    assert ran["conv"]
    assert ran["conv2"]


ROWS = {"x": ["N", 64, 8]}


def test_matmuls_with_and_without_q_behind_them_are_integer() -> None:
    model = QdqModel()
    model.node("MatMul", [model.pair("x"), model.weight("w1", 8, 8, axis=1)], "a", "mm1")
    model.node("MatMul", [model.pair("a"), model.weight("w2", 8, 8, axis=1)], "b", "mm2")
    model.node("Add", ["b", model.floats("bias", 8)], "y", "bias_add")
    ran = executed(model, ROWS, ["y"]).runs_as
    assert ran.integer == {"mm1": True, "mm2": True, "bias_add": False}
    assert ran.fused == {"MatMulIntegerToFloat": 1, "QLinearMatMul": 1}


@pytest.mark.parametrize("shape", [["N", 8], [1, 64, 8]], ids=["matrix", "static stack"])
def test_a_matmul_that_swallows_its_float_bias_becomes_a_float_gemm(shape: Shape) -> None:
    model = QdqModel()
    model.node("MatMul", [model.pair("x"), model.weight("w", 8, 8, axis=1)], "m", "mm")
    model.node("Add", ["m", model.floats("bias", 8)], "y", "bias_add")
    ran = executed(model, {"x": shape}, ["y"])
    assert ran.runs_as.integer["mm"] is False
    assert "mm" in ran.requantized


@pytest.mark.parametrize("shape", [["N", 8], [1, 64, 8]], ids=["matrix", "static stack"])
def test_a_matmul_that_swallows_an_int32_bias_becomes_an_integer_gemm(shape: Shape) -> None:
    model = QdqModel()
    model.node("MatMul", [model.pair("x"), model.weight("w", 8, 8, axis=1)], "m", "mm")
    model.node("Add", ["m", model.bias("bias", 8)], "y", "bias_add")
    ran = executed(model, {"x": shape}, ["y"])
    assert ran.runs_as.integer["mm"]
    assert ran.runs_as.fused == {"QGemm": 1}
    assert "bias_add" not in ran.named


def test_float_nodes_in_blocked_layout_are_float() -> None:
    model = QdqModel()
    model.node("Conv", ["x", model.floats("w", 16, 4, 3, 3)], "conv_b", "conv_a", **PADS)
    model.node("Conv", ["conv_b", model.floats("w2", 16, 16, 3, 3)], "conv_a", "conv_b", **PADS)
    model.node("Relu", ["conv_a"], "r", "relu")
    model.node("GlobalAveragePool", ["r"], "y", "pool")
    ran = executed(model, IMAGE, ["y"]).runs_as
    assert True not in ran.integer.values()
    assert {"conv_a", "relu", "pool"} <= set(ran.integer)


def kept_between_pairs(op_type: str, dtype: str) -> Execution:
    shape = {"Gemm": (4, 4), "Conv": (4, 4, 3, 3), "ConvTranspose": (4, 4, 3, 3), "MatMul": (4, 4)}[op_type]
    model = QdqModel()
    zero_point = 128 if dtype == "uint8" else 0
    x = model.pair("x", dtype=dtype, zero_point=zero_point)
    model.node(op_type, [x, model.floats("w", *shape)], "c", "kept")
    model.node("Identity", [model.pair("c", dtype=dtype, zero_point=zero_point)], "y", "out")
    return executed(model, IMAGE if len(shape) == 4 else {"x": [1, 4]}, ["y"])


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_kept_conv_between_dq_and_q_is_quantized_by_the_runtime(dtype: str) -> None:
    ran = kept_between_pairs("Conv", dtype)
    assert ran.runs_as.integer["kept"]
    assert ran.runs_as.fused == {"QLinearConv": 1}


def test_a_kept_gemm_with_a_bias_between_dq_and_q_is_quantized_by_the_runtime() -> None:
    model = QdqModel()
    model.node("Gemm", [model.pair("x"), model.floats("w", 4, 4), model.floats("b", 4)], "c", "kept")
    model.node("Identity", [model.pair("c")], "y", "out")
    assert executed(model, {"x": [1, 4]}, ["y"]).runs_as.integer["kept"]


def test_a_kept_matmul_is_quantized_once_it_has_swallowed_its_bias() -> None:
    model = QdqModel()
    model.node("MatMul", [model.pair("x"), model.floats("w", 4, 4)], "m", "kept")
    model.node("Add", ["m", model.floats("b", 4)], "c", "bias_add")
    model.node("Identity", [model.pair("c")], "y", "out")
    assert executed(model, {"x": [1, 4]}, ["y"]).runs_as.integer["kept"]


def test_a_kept_conv_transpose_computes_in_float_on_a_weight_that_the_runtime_quantized() -> None:
    ran = kept_between_pairs("ConvTranspose", "uint8")
    assert ran.runs_as.integer["kept"] is False
    assert ran.requantized == {"kept"}


def test_a_kept_matmul_alone_is_kept() -> None:
    ran = kept_between_pairs("MatMul", "uint8")
    assert ran.runs_as.integer["kept"] is False
    assert ran.requantized == frozenset()


def test_a_kept_conv_behind_a_sum_or_a_16_bit_weight_is_kept() -> None:
    model = QdqModel(opset=21)
    model.node("Sum", [model.pair("x")], "barrier", "barrier")
    model.node("Conv", ["barrier", model.floats("w", 4, 4, 3, 3)], "c", "behind_sum", **PADS)
    wide = model.weight("wide", 4, 4, 3, 3, dtype="int16")
    model.node("Conv", [model.pair("c"), wide, model.floats("b", 4)], "d", "wide_weight", **PADS)
    model.node("Identity", [model.pair("d")], "y", "out")
    ran = executed(model, IMAGE, ["y"])
    assert ran.runs_as.integer["behind_sum"] is False
    assert ran.runs_as.integer["wide_weight"] is False
    assert ran.requantized == frozenset()


def dynamic_matmuls(count: int) -> QdqModel:
    model = QdqModel()
    model.node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "quantize")
    for i in range(count):
        codes = model.constant(f"w{i}", np.ones((8, 8), np.int8))
        model.node("MatMulInteger", ["q", codes, "z"], f"a{i}", f"a{i}_MatMulInteger")
        model.node("Cast", [f"a{i}"], f"f{i}", f"f{i}_Cast", to=1)
        model.node("Mul", ["s", model.constant(f"ws{i}", np.full(8, 0.1, "f"))], f"t{i}", f"t{i}_Mul")
        model.node("Mul", [f"f{i}", f"t{i}"], f"p{i}", f"p{i}_Mul")
        model.node("Add", [f"p{i}", model.floats(f"bias{i}", 8)], f"y{i}", f"y{i}_Add")
    return model


@pytest.mark.parametrize("count", [1, 2], ids=["fused", "sharing one quantizer"])
def test_dynamic_matmuls_are_found_through_what_was_written_for_them(count: int) -> None:
    model = dynamic_matmuls(count)
    original = [node_fact(f"mm{i}", "MatMul", ["x", f"float{i}"], [f"y{i}"]) for i in range(count)]
    wanted = stand_ins(original, model.facts())
    assert wanted["mm0"] == StandIns(nodes=("a0_MatMulInteger",), tensors=("y0",))
    optimized = model.optimized({"x": ["N", 8]}, [f"y{i}" for i in range(count)])
    ran = execution(optimized, wanted).runs_as
    assert ran.integer == {f"mm{i}": True for i in range(count)}
    assert ran.fused == ({"DynamicQuantizeMatMul": 1} if count == 1 else {"MatMulInteger": 2})


@pytest.mark.parametrize("op_type", ["MatMul", "Gemm"])
def test_weight_only_products_run_on_integer_weights(op_type: str) -> None:
    model = QdqModel(opset=21)
    model.node(op_type, ["x", model.weight("w", 64, 16, axis=1)], "y", "product")
    ran = executed(model, {"x": ["N", 64]}, ["y"])
    assert ran.runs_as.integer == {"product": True}
    assert ran.runs_as.fused == {"MatMulNBits": 1}
    assert ran.requantized == frozenset()


def test_a_weight_only_conv_runs_in_float() -> None:
    model = QdqModel()
    conv(model, "x", "y", "conv")
    ran = executed(model, IMAGE, ["y"])
    assert ran.runs_as.integer == {"conv": False}
    assert ran.requantized == {"conv"}


@pytest.mark.parametrize(
    "names",
    [
        ("conv_token_3", "conv", "conv_token_1"),
        ("conv", "conv_token_1", "conv_token_1_token_2"),
        ("a;b/c:d", "a;b/c:d/MatMulAddFusion", "a;b/c"),
        ("c0", "c2", "c1"),
        ("c1_q", "x_q", "x"),
    ],
)
def test_names_that_look_like_the_runtime_s_own_are_told_apart(names: tuple[str, str, str]) -> None:
    model = QdqModel()
    conv(model, model.pair("x"), "c0", names[0])
    model.node("Sum", [model.pair("c0")], "b", "barrier")
    model.node("Conv", ["b", model.floats("float_w", 4, 4, 3, 3)], "c1", names[1], **PADS)
    conv(model, model.pair("c1"), "c2", names[2])
    model.node("Identity", [model.pair("c2")], "y", "out")
    ran = executed(model, IMAGE, ["y"]).runs_as.integer
    assert [ran[name] for name in names] == [True, False, True]


def test_nodes_in_branches_are_found() -> None:
    branch = QdqModel()
    branch.node("MatMul", [branch.pair("v"), branch.weight("w", 8, 8, axis=1)], "t", "inner")
    then = branch.graph({}, ["t"]).graph
    other = QdqModel()
    other.node("Neg", ["v"], "e", "negated")
    model = QdqModel()
    model.node("Relu", ["x"], "v", "outer")
    branches = {"then_branch": then, "else_branch": other.graph({}, ["e"]).graph}
    model.node("If", ["c"], "y", "choice", **branches)
    wanted = {**model.wanted(), **branch.wanted(), **other.wanted()}
    ran = execution(model.optimized({"x": ["N", 8], "c": []}, ["y"], c=9), wanted).runs_as
    assert ran.integer["inner"]
    assert ran.integer["negated"] is False
    assert ran.fused == {"MatMulIntegerToFloat": 1}


def test_contrib_forms_that_a_rewriter_writes_are_integer() -> None:
    model = QdqModel()
    ones = [model.constant(name, np.ones(1, kind)) for name, kind in (("s", "f"), ("z", np.int8))]
    lstm = [model.constant(name, np.ones(shape, np.int8)) for name, shape in (("W", (1, 4, 8)), ("R", (1, 2, 8)))]
    scales = [*ones, *ones]
    contrib = {"domain": "com.microsoft"}
    model.node("DynamicQuantizeLSTM", ["x", *lstm, "", "", "", "", "", *scales], "y", "lstm", hidden_size=2, **contrib)
    model.node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"], "quantize")
    operands = [model.constant("w", np.ones((4, 12), np.int8)), model.floats("b", 12)]
    scale, zero = (model.constant("ws", np.float32(0.1)), model.constant("wz", np.int8(0)))
    inputs = ["q", *operands, "qs", scale, "", "qz", zero]
    model.node("QAttention", inputs, "a", "attention", num_heads=2, **contrib)
    ran = executed(model, {"x": ["T", "N", 4]}, ["y", "a"]).runs_as
    assert ran.integer["lstm"]
    assert ran.integer["attention"]
    assert ran.fused == {"DynamicQuantizeLSTM": 1, "QAttention": 1}


def test_movers_between_matmuls_are_integer_where_their_pairs_vanish() -> None:
    model = QdqModel()
    model.node("MatMul", [model.pair("x"), model.weight("w1", 8, 8, axis=1)], "a", "mm1")
    shape = model.constant("shape", [0, 0, 2, 4])
    model.node("Reshape", [model.pair("a"), shape], "r", "reshape")
    model.node("Transpose", [model.pair("r")], "t", "transpose", perm=[0, 2, 1, 3])
    model.node("MatMul", [model.pair("t"), model.weight("w2", 4, 8, axis=1)], "m", "mm2")
    model.node("Transpose", ["m"], "y", "float_transpose", perm=[0, 2, 1, 3])
    ran = executed(model, ROWS, ["y"]).runs_as.integer
    assert ran == {"mm1": True, "reshape": True, "transpose": True, "mm2": True, "float_transpose": False}


def test_a_mover_of_image_bytes_is_integer_and_one_of_token_ids_is_not() -> None:
    model = QdqModel()
    model.node("Transpose", ["u"], "t", "bytes", perm=[1, 0])
    model.node("Transpose", ["i"], "s", "ids", perm=[1, 0])
    ran = executed(model, {"u": [2, 4], "i": [2, 4]}, ["t", "s"], u=2, i=7).runs_as.integer
    assert ran == {"bytes": True, "ids": False}


def test_what_vanished_without_a_trace_has_no_entry() -> None:
    optimized = OptimizedGraph(nodes=(node_fact("kept", "Relu", ["x"], ["y"]),), dtypes={})
    ran = execution(optimized, {"kept": StandIns(tensors=("y",)), "gone": StandIns(tensors=("z", "z_q"))}).runs_as
    assert ran.integer == {"kept": False}


def test_a_long_chain_of_movers_is_decided_in_linear_time() -> None:
    names = [f"n{i}" for i in range(20_000)]
    chain = tuple(node_fact(n, "Reshape", [f"t{i}"], [f"t{i + 1}"]) for i, n in enumerate(names))
    optimized = OptimizedGraph(nodes=chain, dtypes={("", "t0"): "uint8"})
    ran = execution(optimized, dict.fromkeys(names, StandIns())).runs_as
    assert all(ran.integer[name] for name in names)


def test_stand_ins_of_a_kept_node_are_its_tensors_and_their_quantized_forms() -> None:
    model = QdqModel()
    model.node("Relu", ["x"], "renamed", "relu")
    model.pair("renamed")
    original = [node_fact("relu", "Relu", ["x"], ["y"])]
    assert stand_ins(original, model.facts())["relu"] == StandIns(tensors=("renamed", "y", "renamed_q"))


def test_stand_ins_of_qoperator_nodes_do_not_reach_over_quantized_tensors() -> None:
    written = [
        node_fact("conv1", "QLinearConv", ["x_q"], ["c1_q"]),
        node_fact("c1_DQ", "DequantizeLinear", ["c1_q"], ["c1"]),
        node_fact("tanh", "Tanh", ["c1"], ["t"]),
    ]
    original = [node_fact("conv1", "Conv", ["x"], ["c1"]), node_fact("tanh", "Tanh", ["c1"], ["t"])]
    assert stand_ins(original, written) == {
        "conv1": StandIns(tensors=("c1_q", "c1")),
        "tanh": StandIns(tensors=("t",)),
    }
