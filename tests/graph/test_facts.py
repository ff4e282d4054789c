"""What the facts say of a graph, and how much work its operators hold."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from quantool import graph
from quantool.schema import GraphFacts, TensorFact, Use
from tests.graph.float_runs import parse, prepare

TEXT = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[N,4] x, bool c, seq(float[N]) q) => (float[N,4] y, float[N,4] a)
    <float[4,4] w = {1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0,9.0,1.0,2.0,3.0,4.0,5.0,6.0,7.0}> {
        [mm] a = MatMul (x, w)
        [if_1] b = If (c) <
            then_branch = t () => (float[N,4] o) {
                [inner] h = Add (a, w)
                [if_2] o = If (c) < then_branch = tt () => (float[N,4] p) { [deep] p = Mul (h, a) },
                                    else_branch = ee () => (float[N,4] p) { [deeper] p = Sub (a, h) } >
            },
            else_branch = e () => (float[N,4] o) { k = Constant <value_float = 2.0> ()  [other] o = Clip (a, , k) }
        >
        [resize] y = com.microsoft.Thing <n = 3, f = 1.5, s = "text", ints = [1,2], floats = [0.5],
                                          strings = ["a","b"], t = float[1] {1.0}> (b, , a)
    }"""


@pytest.fixture(scope="module")
def facts() -> GraphFacts:
    return graph.facts(prepare(TEXT))


def test_nodes_of_all_scopes_come_outer_first(facts: GraphFacts) -> None:
    assert [(node.name, node.op_type, node.scope) for node in facts.nodes] == [
        ("mm", "MatMul", ""),
        ("if_1", "If", ""),
        ("resize", "Thing", ""),
        ("inner", "Add", "if_1/then_branch"),
        ("if_2", "If", "if_1/then_branch"),
        ("deep", "Mul", "if_1/then_branch/if_2/then_branch"),
        ("deeper", "Sub", "if_1/then_branch/if_2/else_branch"),
        ("other", "Clip", "if_1/else_branch"),
    ]
    assert facts.by_name["resize"].domain == "com.microsoft"
    assert facts.by_name["resize"].inputs == ("b", "", "a")
    assert facts.by_name["deep"].origins == ("deep",)
    assert (facts.inputs, facts.outputs, facts.opset) == (("x", "c", "q"), ("y", "a"), 17)


def test_attributes_are_plain_values(facts: GraphFacts) -> None:
    assert dict(facts.by_name["resize"].attributes) == {
        "n": 3,
        "f": 1.5,
        "s": "text",
        "ints": (1, 2),
        "floats": (0.5,),
        "strings": ("a", "b"),
    }
    assert dict(facts.by_name["if_1"].attributes) == {}


def test_a_tensor_knows_who_writes_and_reads_it_in_any_scope(facts: GraphFacts) -> None:
    assert facts.tensors["a"] == TensorFact(
        name="a",
        dtype="float32",
        shape=("N", 4),
        producer="mm",
        readers=(Use("resize", 2), Use("inner", 0), Use("deep", 1), Use("deeper", 0), Use("other", 0)),
        is_output=True,
    )
    assert facts.tensors["w"] == TensorFact(
        name="w",
        dtype="float32",
        shape=(4, 4),
        producer=None,
        readers=(Use("mm", 1), Use("inner", 1)),
        is_constant=True,
    )
    assert facts.tensors["x"].is_input
    assert facts.tensors["k"].is_constant
    assert facts.producer("b") == facts.by_name["if_1"]


def test_what_a_branch_gives_back_is_an_output_of_its_graph(facts: GraphFacts) -> None:
    branch_outputs = [facts.by_name[name].outputs[0] for name in ("if_2", "deep", "deeper", "other")]
    assert all(facts.tensors[name].is_output for name in branch_outputs)
    assert not facts.tensors["h"].is_output


def test_what_inference_does_not_know_is_unknown_until_the_runtime_says_it(facts: GraphFacts) -> None:
    assert (facts.tensors["q"].dtype, facts.tensors["q"].shape) == ("", None)
    model = prepare("""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[N,4] x) => (float[N,4] y) { h = com.microsoft.Unheard (x)  i = Abs (h)  y = Neg (i) }""")
    before = graph.facts(model).tensors
    assert (before["h"].dtype, before["h"].shape) == ("", None)
    types = {"h": ("float32", ("N", 7)), "i": ("float32", None), "y": ("", (1, 2)), "gone": ("int8", ())}
    told = graph.facts(model, types)
    assert (told.tensors["h"].dtype, told.tensors["h"].shape) == ("float32", ("N", 7))
    assert (told.tensors["i"].dtype, told.tensors["i"].shape) == ("float32", None)
    assert (told.tensors["y"].dtype, told.tensors["y"].shape) == ("float32", (1, 2))
    assert "gone" not in told.tensors


def test_stale_types_give_way_to_the_runtime() -> None:
    model = parse("""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[N,4] x) => (float[N,4] y) <float[1,9] h> { h = com.microsoft.Unheard (x)  y = Neg (h) }""")
    prepared = graph.prepare(graph.read(model))
    assert graph.facts(prepared).tensors["h"].shape == (1, 9)
    assert graph.facts(prepared, {"h": ("float32", ("N", 4))}).tensors["h"].shape == ("N", 4)


TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 7: "int64", 8: "string", 9: "bool", 10: "float16", 11: "float64",
    16: "bfloat16", 17: "float8_e4m3fn", 19: "float8_e5m2", 21: "uint4", 22: "int4", 23: "float4_e2m1fn", 26: "int2",
}  # fmt: skip


@pytest.mark.parametrize(("code", "name"), TYPES.items(), ids=TYPES.values())
def test_element_types_have_ml_dtypes_names(code: int, name: str) -> None:
    value = onnx.helper.make_tensor_value_info("x", code, ["N"])
    out = onnx.helper.make_tensor_value_info("y", code, ["N"])
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", [value], [out]),
        opset_imports=[onnx.helper.make_opsetid("", 25)],
        ir_version=13,
    )
    facts = graph.facts(graph.prepare(graph.read(model)))
    assert facts.tensors["x"].dtype == name
    assert facts.tensors["x"].is_float == ("float" in name)


def test_values_are_those_of_small_constants() -> None:
    model = parse("""<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {
        h = Add (x, one)  i = Add (h, big)  j = Add (i, small)  y = Cast <to = 1> (j)
    }""")
    arrays = {
        "one": np.float32(2.0),
        "small": np.arange(4096, dtype=np.float32),
        "big": np.arange(4097, dtype=np.float32),
        "empty": np.zeros((0, 3), dtype=np.int64),
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items())
    prepared = graph.prepare(graph.read(model))
    values = graph.facts(prepared).values
    assert sorted(values) == ["empty", "one", "small"]
    for name, array in arrays.items():
        np.testing.assert_array_equal(graph.constant(prepared, name), array)
        if name in values:
            np.testing.assert_array_equal(values[name], array)


def test_only_constants_have_values() -> None:
    with pytest.raises(KeyError, match="x"):
        graph.constant(prepare(TEXT), "x")


def test_input_of_a_body_enters_its_graph_only() -> None:
    facts = graph.facts(
        prepare("""<ir_version: 8, opset_import: ["": 17]>
        g (int64 n, bool go, float[2] a) => (float[2] y) {
            y = Loop (n, go, a) <body = b (int64 i, bool k, float[2] v) => (bool ok, float[2] w) {
                ok = Identity (k)  w = Neg (v) }>
        }""")
    )
    assert facts.inputs == ("n", "go", "a")
    assert facts.tensors["v"].is_input
    assert facts.tensors["v"].producer is None
    assert not facts.tensors["v"].is_constant


MACS = {
    "conv": ("float[2,3,8,8] x", "y = Conv <pads=[1,1,1,1]> (x, w)", (6, 3, 3, 3), 2 * 6 * 8 * 8 * 3 * 9),
    "conv-depthwise": ("float[1,6,8,8] x", "y = Conv <group=6> (x, w)", (6, 1, 3, 3), 6 * 6 * 6 * 9),
    "conv-symbolic": ("float[N,3,8,8] x", "y = Conv (x, w)", (6, 3, 3, 3), 6 * 6 * 6 * 3 * 9),
    "conv-transpose": ("float[1,4,5,5] x", "y = ConvTranspose <strides=[2,2]> (x, w)", (4, 2, 3, 3), 4 * 25 * 2 * 9),
    "gemm": ("float[5,4] x", "y = Gemm (x, w)", (4, 7), 5 * 4 * 7),
    "gemm-transposed": ("float[4,5] x", "y = Gemm <transA=1, transB=1> (x, w)", (7, 4), 5 * 4 * 7),
    "matmul": ("float[2,5,4] x", "y = MatMul (x, w)", (4, 7), 2 * 5 * 4 * 7),
    "matmul-vector": ("float[4] x", "y = MatMul (x, w)", (4, 7), 4 * 7),
    "matmul-symbolic": ("float[N,4] x", "y = MatMul (x, w)", (4, 7), 4 * 7),
    "matmul-two-vectors": ("float[4] x", "y = MatMul (x, w)", (4,), 4),
    "matmul-unknown": ("float[] x", "y = MatMul (x, w)", (4, 7), 0),
    "fused-matmul": ("float[4,5] x", "y = com.microsoft.FusedMatMul <transA=1> (x, w)", (4, 7), 0),
}


@pytest.mark.parametrize(("inputs", "body", "weight", "expected"), MACS.values(), ids=MACS)
def test_multiply_accumulates(inputs: str, body: str, weight: tuple[int, ...], expected: int) -> None:
    model = parse(f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g ({inputs}) => (float[] y) {{ [n] {body} }}""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(weight, dtype=np.float32), "w"))
    assert dict(graph.macs(graph.facts(graph.prepare(graph.read(model))))) == {"n": expected}


def test_fused_matmul_counts_where_the_runtime_gives_its_shape() -> None:
    model = prepare("""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[4,5] x, float[4,7] w) => (float[5,7] y) { [n] y = com.microsoft.FusedMatMul <transA=1> (x, w) }""")
    assert dict(graph.macs(graph.facts(model, {"y": ("float32", (5, 7))}))) == {"n": 5 * 4 * 7}


RECURRENT = {
    # gates, outputs; x is [5, 2, 3], hidden 4: each step multiplies W [D, gates x 4, 3] and R [D, gates x 4, 4]
    "lstm": ("LSTM <hidden_size=4> (x, w, r)", 1, 16),
    "lstm-bidirectional": ('LSTM <hidden_size=4, direction="bidirectional"> (x, w, r)', 2, 16),
    "gru": ("GRU <hidden_size=4> (x, w, r)", 1, 12),
    "rnn": ("RNN <hidden_size=4> (x, w, r)", 1, 4),
}


@pytest.mark.parametrize(("body", "directions", "rows"), RECURRENT.values(), ids=RECURRENT)
def test_recurrent_layers_multiply_in_every_step(body: str, directions: int, rows: int) -> None:
    """They are most of a speech model's work: without them its coverage would read 100 % with all of it in float."""
    model = parse(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[5,2,3] x) => (float[D,2,4] h) {{ [n] y, h = {body} }}""")
    for name, width in (("w", 3), ("r", 4)):
        array = np.zeros((directions, rows, width), dtype=np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    expected = 5 * 2 * directions * rows * (3 + 4)
    assert dict(graph.macs(graph.facts(graph.prepare(graph.read(model))))) == {"n": expected}


EINSUM = {
    "experts": ("btd,edf->ebtf", (3, 7, 6), 2 * 5 * 7 * 3 * 6),
    "implicit-output": ("btd,df", (7, 6), 2 * 5 * 7 * 6),
    "blanks": ("b t d , d f -> b t f", (7, 6), 2 * 5 * 7 * 6),
    "ellipsis": ("...d,df->...f", (7, 6), 0),
}


@pytest.mark.parametrize(("equation", "weight", "expected"), EINSUM.values(), ids=EINSUM)
def test_einsum_multiplies_over_all_its_letters(equation: str, weight: tuple[int, ...], expected: int) -> None:
    model = parse(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[2,5,7] x) => (float[] y) {{ [n] y = Einsum <equation="{equation}"> (x, w) }}""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(weight, dtype=np.float32), "w"))
    assert dict(graph.macs(graph.facts(graph.prepare(graph.read(model))))) == {"n": expected}


def test_other_operators_have_no_multiply_accumulates() -> None:
    assert dict(graph.macs(graph.facts(prepare(TEXT)))) == {"mm": 4 * 4}
