"""What preparing makes of a model: names, constants, functions, and the same numbers."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir
import pytest

from quantool import graph
from quantool.errors import ModelError
from quantool.graph.model import Model
from quantool.graph.scopes import graphs
from tests.graph.float_runs import normal_feed, parse, prepare, run, run_model

Feed = dict[str, np.ndarray]


def all_nodes(model: Model) -> list[onnx_ir.Node]:
    return [node for scope in graphs(model.ir.graph) for node in scope]


def assert_same_numbers(model: onnx.ModelProto, *feeds: Feed) -> Model:
    """The prepared model gives exactly what the given one gives, and every name in it is unique."""
    prepared = graph.prepare(graph.read(model))
    onnx.checker.check_model(onnx_ir.to_proto(prepared.ir), full_check=True)
    for feed in feeds or (normal_feed(model),):
        for want, got in zip(run(model.SerializeToString(), feed), run_model(prepared, feed), strict=True):
            np.testing.assert_array_equal(got, want)
    nodes = all_nodes(prepared)
    assert len({node.name for node in nodes}) == len(nodes)
    scopes = list(graphs(prepared.ir.graph))
    values = [value.name for scope in scopes for value in (*scope.inputs, *scope.initializers.values())]
    values += [value.name for node in nodes for value in node.outputs if value.name]
    assert len(set(values)) == len(values)
    assert not any(node.op_type == "Constant" for node in nodes)
    rows = {row.name for row in prepared.given}
    assert len(rows) == len(prepared.given)
    origins = {origin for node in nodes for origin in node.meta["quantool.origins"]}
    assert origins | set(prepared.absorbed) == rows
    assert not origins & set(prepared.absorbed)
    return prepared


def rows(model: Model) -> list[tuple[str, str, str]]:
    return [(row.name, row.op_type, row.scope) for row in model.given]


def test_unnamed_nodes_are_called_after_their_first_output() -> None:
    model = assert_same_numbers(
        parse(
            """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,4] x) => (float[N,2] y, float[N,4] z) {
            a = Abs (x)
            [kept] b = Relu (a)
            s, c = Split <axis=1> (b)
            y = Neg (c)
            z = Neg (x)
        }"""
        )
    )
    assert [row.name for row in model.given] == ["Abs:a", "kept", "Split:s", "Neg:y", "Neg:z"]


def test_an_absent_first_output_does_not_name_a_node() -> None:
    model = parse("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N,4] x) => (float[N,4] y, int64[N,4] i) { y = Abs (x)  v, i = TopK (x, k) }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([4]), "k"))
    model.graph.node[1].output[0] = ""
    assert [row.name for row in graph.prepare(graph.read(model)).given] == ["Abs:y", "TopK:i"]


def test_repeated_names_get_numbers_that_are_free() -> None:
    model = prepare(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N] x) => (float[N] y) {
            [n] a = Abs (x)
            [n] b = Abs (a)
            [n_1] c = Abs (b)
            [q] d0 = Abs (c)
            d = Abs (d0)
            [n] y = Abs (d)
        }"""
    )
    assert [row.name for row in model.given] == ["n", "n_2", "n_1", "q", "Abs:d", "n_3"]
    assert [node.name for node in model.ir.graph] == ["n", "n_2", "n_1", "q", "Abs:d", "n_3"]


def test_an_unnamed_node_gives_way_to_a_node_that_has_its_name() -> None:
    model = parse("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N] x) => (float[N] y) { a = Abs (x)  y = Abs (a) }""")
    model.graph.node[1].name = "Abs:a"
    assert [row.name for row in graph.prepare(graph.read(model)).given] == ["Abs:a_1", "Abs:a"]


BRANCHES = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N,2] x, bool c) => (float[N,2] y, float[N,2] z)
    <float[2,2] w = {1.0,2.0,3.0,4.0}, float[2] used_twice = {0.5,0.25}> {
        [m] a = MatMul (x, w)
        [if_1] b = If (c) <
            then_branch = t () => (float[N,2] o) <float[2] own = {5.0,6.0}> {
                [m] h = MatMul (a, w)
                k = Constant <value = float[2] {1.0,2.0}> ()
                i = Add (h, k)
                o = Add (i, own)
            },
            else_branch = e () => (float[N,2] o) <float[2] own = {7.0,8.0}> {
                [m] h = Mul (a, used_twice)
                [if_2] o = If (c) < then_branch = tt () => (float[N,2] h2) { h2 = Add (h, own) },
                                    else_branch = ee () => (float[N,2] h2) { h2 = Sub (h, own) } >
            }
        >
        y = Add (b, used_twice)
        z = Add (a, used_twice)
    }"""


def test_branches_that_reuse_names_and_capture() -> None:
    x = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    feeds: list[Feed] = [{"x": x, "c": np.array(flag)} for flag in (True, False)]
    model = assert_same_numbers(parse(BRANCHES), *feeds)
    assert rows(model) == [
        ("m", "MatMul", ""),
        ("if_1", "If", ""),
        ("m_1", "MatMul", "if_1/then_branch"),
        ("Constant:k", "Constant", "if_1/then_branch"),
        ("Add:i", "Add", "if_1/then_branch"),
        ("Add:o", "Add", "if_1/then_branch"),
        ("m_2", "Mul", "if_1/else_branch"),
        ("if_2", "If", "if_1/else_branch"),
        ("Add:h2", "Add", "if_1/else_branch/if_2/then_branch"),
        ("Sub:h2", "Sub", "if_1/else_branch/if_2/else_branch"),
        ("Add:y", "Add", ""),
        ("Add:z", "Add", ""),
    ]
    assert model.absorbed == {"Constant:k": ""}
    assert list(model.ir.graph.initializers) == ["w", "used_twice", "own", "k", "own_1"]


def test_an_inner_name_may_hide_an_outer_one() -> None:
    """ONNX forbids it, ONNX Runtime runs it; the branch reads its own tensor."""
    model = parse("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N] x, bool c) => (float[N] y) {
            a = Abs (x)
            b = If (c) < then_branch = t () => (float[N] o) { a = Neg (x)  o = Exp (a) },
                         else_branch = e () => (float[N] o) { o = Identity (a) } >
            y = Add (a, b)
        }""")
    prepared = graph.prepare(graph.read(model))
    x = np.array([-1.0, 2.0], dtype=np.float32)
    for flag, inner in ((True, np.exp(-x)), (False, np.abs(x))):
        (y,) = run_model(prepared, {"x": x, "c": np.array(flag)})
        np.testing.assert_allclose(y, np.abs(x) + inner, rtol=2.0**-20)


def test_a_constant_that_a_branch_gives_back_keeps_a_node() -> None:
    model = parse("""<ir_version: 8, opset_import: ["": 17]>
        g (float[2] x, bool c) => (float[2] y) {
            b = If (c) < then_branch = t () => (float[2] o) { [k] o = Constant <value = float[2] {1.0,2.0}> () },
                         else_branch = e () => (float[2] own) <float[2] own = {3.0,4.0}> { unused = Abs (own) } >
            y = Add (x, b)
        }""")
    feeds: list[Feed] = [{"x": np.zeros(2, dtype=np.float32), "c": np.array(flag)} for flag in (True, False)]
    prepared = graph.prepare(graph.read(model))
    for feed in feeds:
        for want, got in zip(run(model.SerializeToString(), feed), run_model(prepared, feed), strict=True):
            np.testing.assert_array_equal(got, want)
    assert ("k", "Identity") in [(node.name, node.op_type) for node in all_nodes(prepared)]
    assert prepared.absorbed == {}


def test_a_loop_and_a_scan_that_capture() -> None:
    model = parse("""<ir_version: 8, opset_import: ["": 17]>
        g (float[2] x, int64 n, bool go, float[K,2] seq) => (float[2] y, float[M,2] outs, float[2] z, float[K,2] all)
        <float[2] w = {0.5,0.25}> {
            a = Add (x, w)
            [loop] y, outs = Loop (n, go, a) <
                body = b (int64 i, bool k, float[2] v) => (bool ok, float[2] n2, float[2] r)
                <float[2] own = {1.0,1.0}> {
                    ok = Identity (k)  s = Mul (v, w)  n2 = Add (s, own)  r = Sub (n2, a)
                }
            >
            [scan] z, all = Scan <num_scan_inputs=1, body = b (float[2] v, float[2] e) => (float[2] n2, float[2] r) {
                s = Mul (v, w)  n2 = Add (s, e)  r = Neg (n2)
            }> (a, seq)
        }""")
    rng = np.random.default_rng(0)
    feed: Feed = {
        "x": rng.standard_normal(2).astype(np.float32),
        "n": np.array(3),
        "go": np.array(True),
        "seq": rng.standard_normal((4, 2)).astype(np.float32),
    }
    prepared = assert_same_numbers(model, feed)
    assert ("Mul:s_1", "Mul", "scan/body") in rows(prepared)


CONSTANT_FORMS = {
    "value": "value = float[2] {1.0,2.0}",
    "float": "value_float = 1.5",
    "floats": "value_floats = [1.5,2.5]",
    "int": "value_int = 3",
    "ints": "value_ints = [3,4]",
}


@pytest.mark.parametrize("form", CONSTANT_FORMS.values(), ids=CONSTANT_FORMS)
def test_every_form_of_a_constant_is_lifted(form: str) -> None:
    model = assert_same_numbers(
        parse(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[N,2] x) => (float[N,2] y) {{ [k] c = Constant <{form}> ()  f = Cast <to=1> (c)  y = Add (x, f) }}""")
    )
    assert list(model.ir.graph.initializers) == ["c"]
    assert model.absorbed == {"k": ""}


def test_constants_of_text_are_lifted() -> None:
    model = prepare("""<ir_version: 8, opset_import: ["": 17]>
        g (string[2] x) => (bool[2] y, string s) {
            [a] c = Constant <value_strings = ["p", "q"]> ()
            [b] s = Constant <value_string = "r"> ()
            y = Equal (x, c)
        }""")
    assert graph.constant(model, "c").tolist() == [b"p", b"q"]
    assert graph.constant(model, "s").item() == b"r"


def test_a_sparse_constant_is_refused() -> None:
    model = parse("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N] x) => (float[N] y) { [k] c = Constant <value_float = 1.0> ()  y = Add (x, c) }""")
    attribute = model.graph.node[0].attribute[0]
    attribute.name, attribute.type = "sparse_value", onnx.AttributeProto.SPARSE_TENSOR
    with pytest.raises(ModelError, match=r"node 'k' \(Constant\)") as caught:
        graph.prepare(graph.read(model))
    assert caught.value.code == "unsupported-constant"


def test_initializers_leave_the_inputs_whatever_the_ir_version() -> None:
    for ir_version in (3, 8):
        model = assert_same_numbers(
            parse(f"""<ir_version: {ir_version}, opset_import: ["": 7]>
            g (float[N,2] x, float[2,2] w) => (float[N,2] y) <float[2,2] w = {{1.0,2.0,3.0,4.0}}> {{
                y = MatMul (x, w)
            }}""")
        )
        assert [value.name for value in model.ir.graph.inputs] == ["x"]
        assert model.ir.ir_version == max(ir_version, 4)


def test_constants_and_inputs_as_outputs_stay() -> None:
    model = parse("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N,2] x) => (float[N,2] y, float[N,2] x, float[2] w, float[1] k, float[N,2] h)
        <float[2] w = {1.0,2.0}> {
            [k] k = Constant <value_floats = [4.0]> ()
            h = Add (x, w)
            y = Relu (h)
        }""")
    prepared = graph.prepare(graph.read(model))
    assert [value.name for value in prepared.ir.graph.outputs] == ["y", "x", "w", "k", "h"]
    x = np.array([[-1.0, 3.0]], dtype=np.float32)
    y, same, w, k, h = run_model(prepared, {"x": x})
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(w, np.array([1.0, 2.0], dtype=np.float32))
    np.testing.assert_array_equal(k, np.array([4.0], dtype=np.float32))
    np.testing.assert_array_equal(h, x + w)
    np.testing.assert_array_equal(y, np.maximum(x + w, 0))


FUNCTIONS = """<ir_version: 10, opset_import: ["": 17, "local": 1]>
    g (float[N,2] x, bool c) => (float[N,2] y)
    <float[2,2] v = {1.0,2.0,3.0,4.0}, float[2,2] w = {4.0,3.0,2.0,1.0}> {
        [first] a = local.Layer <alpha = 0.5> (x, v)
        [second] b = local.Layer (a, w)
        [choice] d = If (c) < then_branch = t () => (float[N,2] o) { [third] o = local.Layer <alpha = 0.1> (b, w) },
                              else_branch = e () => (float[N,2] o) { o = Abs (b) } >
        [only_constant] k = local.Two ()
        y = Mul (d, k)
    }
    <domain: "local", opset_import: ["": 17, "local": 1]>
    Layer <alpha: float = 0.3> (i, m) => (o) {
        [mm] p = MatMul (i, m)
        q = LeakyRelu <alpha: float = @alpha> (p)
        [inner] o = local.Shift <by: float = @alpha> (q)
    }
    <domain: "local", opset_import: ["": 17]>
    Shift <by: float> (i) => (o) {
        [s] k = Constant <value_float: float = @by> ()
        o = Add (i, k)
    }
    <domain: "local", opset_import: ["": 17]>
    Two () => (o) { o = Constant <value_float = 2.0> () }"""


def test_functions_are_inlined_with_the_defaults_of_their_attributes() -> None:
    x = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    model = assert_same_numbers(parse(FUNCTIONS), {"x": x, "c": np.array(True)}, {"x": x, "c": np.array(False)})
    assert not model.ir.functions
    assert [(node.name, node.meta["quantool.origins"]) for node in all_nodes(model)] == [
        ("first/mm", ("first",)),
        ("first/LeakyRelu:q", ("first",)),
        ("first/Add:o", ("first",)),
        ("second/mm", ("second",)),
        ("second/LeakyRelu:q", ("second",)),
        ("second/Add:o", ("second",)),
        ("choice", ("choice",)),
        ("Mul:y", ("Mul:y",)),
        ("third/mm", ("third",)),
        ("third/LeakyRelu:q", ("third",)),
        ("third/Add:o", ("third",)),
        ("Abs:o", ("Abs:o",)),
    ]
    assert model.absorbed == {"only_constant": ""}
    assert [row.name for row in model.given] == [
        "first", "second", "choice", "third", "Abs:o", "only_constant", "Mul:y",
    ]  # fmt: skip
    assert not any(key.startswith("quantool.") for node in all_nodes(model) for key in node.metadata_props)


def test_a_function_of_another_opset_is_converted() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 18, "local": 1]>
        g (float[N,4] x) => (float[N] y) { [call] y = local.Mean (x) }
        <domain: "local", opset_import: ["": 13]>
        Mean (i) => (o) { o = ReduceMean <axes = [1], keepdims = 0> (i) }""")
    prepared = graph.prepare(graph.read(model))
    x = np.array([[1.0, 2.0, 3.0, 6.0]], dtype=np.float32)
    np.testing.assert_array_equal(run_model(prepared, {"x": x})[0], np.array([3.0], dtype=np.float32))


def test_a_recursive_function_is_refused() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 17, "local": 1]>
        g (float[N] x) => (float[N] y) { y = local.F (x) }
        <domain: "local", opset_import: ["": 17, "local": 1]> F (i) => (o) { o = local.G (i) }
        <domain: "local", opset_import: ["": 17, "local": 1]> G (i) => (o) { o = local.F (i) }""")
    with pytest.raises(ModelError, match=r"the function '[FG]' calls itself") as caught:
        graph.prepare(graph.read(model))
    assert caught.value.code == "recursive-function"


def test_documentation_and_metadata_survive() -> None:
    model = parse("""<ir_version: 8, producer_name: "p", producer_version: "1", domain: "d", model_version: 7,
            doc_string: "whole", opset_import: ["": 17, "com.microsoft": 1, "unused.domain": 3],
            metadata_props: ["author": "a"]>
        g (float[N,4] x) => (float[N,4] y) { [n] y = Abs (x) }""")
    model.graph.node[0].doc_string = "why"
    model.graph.node[0].metadata_props.add(key="layer", value="2")
    model.graph.doc_string = "graph"
    data, _ = graph.serialize(graph.prepare(graph.read(model)))
    written = onnx.ModelProto.FromString(data)
    model.graph.node[0].ClearField("domain")  # the parser writes "", which means the same
    assert written == model


def test_a_failed_inference_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []

    def fail(model: onnx.ModelProto, *, data_prop: bool) -> onnx.ModelProto:
        calls.append(data_prop)
        raise onnx.shape_inference.InferenceError("[ShapeInferenceError] no luck\nmore")

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fail)
    model = prepare("""<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { [n] y = Abs (x) }""")
    assert calls == [True, False]
    assert [(note.code, note.what) for note in model.notes] == [
        ("shape-inference-failed", "onnx could not infer shapes: [ShapeInferenceError] no luck")
    ]
    assert [node.name for node in model.ir.graph] == ["n"]


def test_preparing_is_deterministic_and_repeatable() -> None:
    loaded = graph.read(parse(BRANCHES))
    first, second = graph.prepare(loaded), graph.prepare(loaded)
    assert graph.serialize(first) == graph.serialize(second)
    assert first.given == second.given


def test_serialize_gives_the_graph_as_it_is_now() -> None:
    model = prepare(
        """<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { h = Neg (x)  y = Abs (h) }"""
    )
    node = model.ir.graph[1]
    node.op_type = "Relu"
    x = np.array([-1.0, 2.0], dtype=np.float32)
    np.testing.assert_array_equal(run_model(model, {"x": x})[0], np.array([1.0, 0.0], dtype=np.float32))


@pytest.mark.parametrize("opset", [None, 17])
def test_large_weights_come_back_wherever_they_were(opset: int | None) -> None:
    """They stay out of the copies that are inlined, inferred and converted."""
    model = parse("""<ir_version: 8, opset_import: ["": 13]>
        g (float[N,64] x, bool c) => (float[N,64] y) {
            a = MatMul (x, w)
            k = Constant <value_float = 0.0> ()
            b = MatMul (a, k)
            y = If (c) < then_branch = t () => (float[N,64] o) { o = MatMul (b, own) },
                         else_branch = e () => (float[N,64] o) { o = Neg (b) } >
        }""")
    rng = np.random.default_rng(0)
    w, k, own = rng.standard_normal((3, 64, 64)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    constant = model.graph.node[1].attribute[0]
    constant.CopyFrom(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(k)))
    model.graph.node[3].attribute[0].g.initializer.append(onnx.numpy_helper.from_array(own, "own"))
    prepared = graph.prepare(graph.read(model), opset=opset)
    for name, array in {"w": w, "k": k, "own": own}.items():
        np.testing.assert_array_equal(graph.constant(prepared, name), array)
    for flag in (True, False):
        feed: Feed = {"x": np.ones((2, 64), dtype=np.float32), "c": np.array(flag)}
        want, got = run(model.SerializeToString(), feed), run_model(prepared, feed)
        np.testing.assert_array_equal(got, want)
