"""EDGE_CASES, constants, shared tensors and exclusion."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.edge.driver import FORMS, STATIC_DB, Checked, check
from tests.edge.graphs import feeds, model, normal, weight

SAME = "<pads = [1, 1, 1, 1]>"
STATIC = pytest.mark.parametrize("form", ["qdq", "qoperator"])
ALL_FORMS = pytest.mark.parametrize("form", FORMS)
FEEDS = feeds(20, x=(4, 3, 10, 10))
INTEGERS = {"int8", "uint8", "int4", "uint4"}


def integer_constants(result: Checked) -> list[str]:
    """The names of the weights stored as integers."""
    return [n for n, a in result.constants().items() if a.dtype.name in INTEGERS and a.ndim > 1 and "zero" not in n]


def float_bytes(result: Checked, *, least: int = 64) -> int:
    """The bytes of the float constants of at least so many elements."""
    return sum(a.nbytes for a in result.constants().values() if a.dtype == np.float32 and a.size >= least)


@STATIC
@pytest.mark.parametrize("factor", [100.0, 1e4])
@pytest.mark.parametrize("named", [True, False])
def test_convs_that_share_a_bias_have_their_own_codes(form: str, factor: float, named: bool) -> None:
    names = ("[first]", "[second]") if named else ("", "")
    text = f"""(float[N,3,10,10] x) => (float[N,4,10,10] y, float[N,4,10,10] z) {{
        {names[0]} y = Conv {SAME} (x, w, b)  {names[1]} z = Conv {SAME} (x, v, b)
    }}"""
    constants = {
        "w": weight(4, 3, 3, 3),
        "v": weight(4, 3, 3, 3, seed=1) / np.float32(factor),
        "b": normal(4, scale=0.3),
    }
    result = check(model(text, constants), FEEDS, form, db=STATIC_DB)
    assert sum(a.dtype == np.int32 for a in result.constants().values()) == 2


@ALL_FORMS
@pytest.mark.parametrize("opset", [9, 12, 13, 21])
@pytest.mark.parametrize("op", ["Conv", "Gemm", "MatMul"])
def test_constant_nodes_are_treated_like_initializers(form: str, opset: int, op: str) -> None:
    if form == "dynamic" and op == "Conv":
        pytest.skip("dynamic mode leaves Conv alone")
    w, b = (weight(16, 3, 3, 3), normal(16)) if op == "Conv" else (weight(32, 64), normal(64))
    shapes = (
        ("float[N,3,10,10] x", f"y = Conv {SAME} (x, w, b)")
        if op == "Conv"
        else ("float[N,32] x", "y = Gemm (x, w, b)")
    )
    body = "p = MatMul (x, w)  y = Add (p, b)" if op == "MatMul" else shapes[1]
    proto = model(f"({shapes[0]}) => (float[] y) {{ {body} }}", opset=opset)
    for name, array in (("w", w), ("b", b)):
        proto.graph.node.insert(
            0, onnx.helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(array))
        )
    samples = FEEDS if op == "Conv" else feeds(x=(8, 32))
    result = check(proto, samples, form, db=24)
    assert "Constant" not in result.ops
    assert result.size < proto.ByteSize() * (0.9 if op == "Conv" else 0.5)
    kept = {name: code for name, code in result.decisions().items() if name.startswith("Constant")}
    assert kept == {"Constant:w": "folded", "Constant:b": "folded"}


BEHIND = {
    "Identity": ("v = Identity (w)", (32, 24)),
    "Transpose": ("v = Transpose <perm = [1, 0]> (w)", (24, 32)),
    "Reshape": ("v = Reshape (w, dims)", (4, 8, 24)),
    "Cast": ("v = Cast <to = 1> (w)", (32, 24)),
    "Mul": ("v = Mul (w, two)", (32, 24)),
    "all": ("a = Cast <to = 1> (w)  b = Transpose <perm = [1, 0]> (a)  c = Mul (b, two)  v = Identity (c)", (24, 32)),
}


@ALL_FORMS
@pytest.mark.parametrize("name", BEHIND)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_weight_behind_constant_operators_is_folded(form: str, name: str, dtype: str) -> None:
    if dtype != "float32" and name not in ("Cast", "all"):
        pytest.skip("without a Cast the types do not fit")
    body, shape = BEHIND[name]
    proto = model(
        f"(float[N,32] x) => (float[N,24] y) {{ {body}  y = MatMul (x, v) }}",
        {"w": weight(*shape).astype(dtype), "dims": np.array([32, 24]), "two": np.float32(2)},
    )
    result = check(proto, feeds(x=(8, 32)), form, db=26)
    assert len(integer_constants(result)) == 1
    assert float_bytes(result) == 0
    assert result.decisions()["MatMul:y"] == "quantized"


TIED = """(int64[N,6] ids) => (float[N,6,500] y) {
    e = Gather (table, ids)  h = MatMul (e, w)  r = Relu (h)
    t = Transpose <perm = [1, 0]> (table)  y = MatMul (r, t)
}"""
IDS = [{"ids": np.random.default_rng(i).integers(0, 500, (4, 6))} for i in range(24)]


def tied() -> onnx.ModelProto:
    return model(TIED, {"table": normal(500, 32), "w": weight(32, 32, seed=1)})


@STATIC
def test_a_table_tied_to_the_head_is_accurate_and_smaller(form: str) -> None:
    result = check(tied(), IDS, form, db=24 if form == "qdq" else 20)
    assert result.size < 0.8 * tied().ByteSize()


@pytest.mark.parametrize(("weights", "share", "db"), [("int8", 0.65, 30), ("int4", 0.65, 14)])
def test_a_tied_table_leaves_no_float_copy_weight_only(weights: str, share: float, db: float) -> None:
    result = check(tied(), IDS, "weight-only", weights=weights, db=db)
    assert result.size < share * tied().ByteSize()
    assert float_bytes(result, least=16_000) == 0
    found = result.decisions()
    assert found["Gather:e"] == found["MatMul:y"] == found["MatMul:h"] == "quantized"


@ALL_FORMS
@pytest.mark.parametrize("op", ["MatMul", "Gemm", "Conv"])
@pytest.mark.parametrize("excluded", ["first", "second"])
def test_an_excluded_reader_of_a_shared_weight_reads_the_float_weight(form: str, op: str, excluded: str) -> None:
    if form == "dynamic" and op == "Conv":
        pytest.skip("dynamic mode leaves Conv alone")
    attributes = SAME if op == "Conv" else ""
    kind = "float[N,8,6,6]" if op == "Conv" else "float[N,24]"
    text = f"""({kind} x) => ({kind} y, {kind} z) {{
        [first] a = {op} {attributes} (x, w)  t = Tanh (a)  [second] b = {op} {attributes} (t, w)
        y = Identity (a)  z = Identity (b)
    }}"""
    w = weight(8, 8, 3, 3) if op == "Conv" else weight(24, 24)
    samples = feeds(20, x=(4, 8, 6, 6)) if op == "Conv" else feeds(20, x=(8, 24))
    result = check(model(text, {"w": w}), samples, form, exclude=[excluded], db=24)
    assert result.decisions()[excluded] == "excluded"
    assert result.decisions()["second" if excluded == "first" else "first"] == "quantized"
    assert any(a.shape == w.shape and np.array_equal(a, w) for a in result.constants().values())
    if excluded == "first":
        assert result.db("y") >= 100


@STATIC
def test_an_excluded_conv_that_shares_the_input_reads_it_in_float(form: str) -> None:
    text = f"""(float[N,3,10,10] x) => (float[N,4,10,10] y, float[N,4,10,10] z) {{
        [first] y = Conv {SAME} (x, w)  [second] z = Conv {SAME} (x, v)
    }}"""
    constants = {"w": weight(4, 3, 3, 3), "v": weight(4, 3, 3, 3, seed=1)}
    result = check(model(text, constants), FEEDS, form, exclude=["second"], db=STATIC_DB)
    assert result.db("z") >= 100
    assert any(np.array_equal(a, constants["v"]) for a in result.constants().values())


@ALL_FORMS
@pytest.mark.parametrize("body", ["y = MatMul (x, w)  z = MatMul (t, w)", "y = MatMul (x, w)  z = MatMul (x, w)"])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_one_weight_in_two_matmuls_is_stored_once(form: str, body: str, weights: str) -> None:
    if weights == "int4" and form != "weight-only":
        pytest.skip("other forms take 8 bits")
    text = f"(float[N,32] x) => (float[N,32] y, float[N,32] z) {{ t = Tanh (x)  {body} }}"
    result = check(model(text, {"w": weight(32, 32)}), feeds(x=(8, 32)), form, weights=weights, db=16)
    assert len(integer_constants(result)) == 1
    assert float_bytes(result, least=1000) == 0
    assert result.decisions()["MatMul:y"] == result.decisions()["MatMul:z"] == "quantized"


def test_two_convs_that_read_one_activation_share_its_quantizer() -> None:
    text = f"""(float[N,3,10,10] x) => (float[N,4,10,10] y, float[N,4,10,10] z) {{
        a = Conv {SAME} (x, u)  y = Conv {SAME} (a, w)  z = Conv {SAME} (a, v)
    }}"""
    constants = {"u": weight(4, 3, 3, 3), "w": weight(4, 4, 3, 3, seed=1), "v": weight(4, 4, 3, 3, seed=2)}
    result = check(model(text, constants), FEEDS, db=STATIC_DB - 2)
    assert result.ops["QuantizeLinear"] == 4  # x, a, y and z
    assert result.report.runtime.fused == {"QLinearConv": 3}
