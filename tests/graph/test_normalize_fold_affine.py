from __future__ import annotations

import numpy as np
import onnx_ir
import pytest

from quantool.graph.normalize import PASSES
from quantool.graph.normalize import constants as constants_module
from quantool.schema import AnyArray

from .text_model import constants_of, model_of, normal, normalized, op_types

X = normal(2, 4, 5, 5)
NORM = {
    "gamma": normal(6, seed=1),
    "beta": normal(6, seed=2),
    "mean": normal(6, seed=3),
    "variance": np.abs(normal(6, seed=4)) + np.float32(0.01),
}
CONV = {"w": normal(6, 4, 3, 3, seed=5), "b": normal(6, seed=6)}
BN = "BatchNormalization<epsilon=0.01>"


def conv_model(nodes: str, *, opset: int = 13, outputs: str = "float[N, M, H, W] y") -> str:
    return f"""
    <ir_version: 8, opset_import: ["": {opset}]> g (float[2, 4, 5, 5] x) => ({outputs}) {{ {nodes} }}
    """


LAYERS = [
    pytest.param("c = Conv(x, w, b)", CONV, "Conv", id="conv"),
    pytest.param("c = Conv(x, w)", CONV, "Conv", id="conv-without-bias"),
    pytest.param('c = Conv(x, w, "")', CONV, "Conv", id="conv-empty-bias"),
    pytest.param(
        "c = Conv<group=2, auto_pad='SAME_UPPER'>(x, w)".replace("'", '"'),
        {"w": normal(6, 2, 3, 3)},
        "Conv",
        id="conv-group",
    ),
    pytest.param("c = ConvTranspose(x, w, b)", CONV | {"w": normal(4, 6, 3, 3)}, "ConvTranspose", id="transpose"),
    pytest.param(
        "c = ConvTranspose<group=2, strides=[2, 2], output_padding=[1, 1]>(x, w)",
        {"w": normal(4, 3, 3, 3)},
        "ConvTranspose",
        id="transpose-group-2",
    ),
    pytest.param(
        "c = ConvTranspose<group=4>(x, w)", {"w": normal(4, 1, 3, 3)}, "ConvTranspose", id="transpose-depthwise"
    ),
]


@pytest.mark.parametrize(("layer", "constants", "op_type"), LAYERS)
@pytest.mark.parametrize("opset", [9, 13, 15])
def test_batch_norm_is_folded_into_the_layer(
    layer: str, constants: dict[str, AnyArray], op_type: str, opset: int
) -> None:
    channels = 4 if "group=4" in layer else 6
    norm = {name: array[:channels] for name, array in NORM.items()}
    text = conv_model(f"{layer}  y = {BN}(c, gamma, beta, mean, variance)", opset=opset)
    model = normalized(text, constants | norm, feed={"x": X}, only="fold-batchnorm")
    assert op_types(model) == [op_type]
    assert model.absorbed == {"BatchNormalization:y": f"{op_type}:c"}
    assert model.ir.graph[0].meta["quantool.origins"] == (f"{op_type}:c", "BatchNormalization:y")
    assert model.ir.graph[0].outputs[0].name == "y"


PER_CHANNEL = [
    pytest.param(normal(1, 6, 1, 1), id="[1,C,1,1]"),
    pytest.param(normal(6, 1, 1), id="[C,1,1]"),
    pytest.param(normal(), id="[]"),
    pytest.param(normal(1), id="[1]"),
    pytest.param(normal(1, 1, 1), id="[1,1,1]"),
]
AFFINE = ["Add(c, k)", "Add(k, c)", "Sub(c, k)", "Sub(k, c)", "Mul(c, k)", "Mul(k, c)", "Div(c, k)"]


@pytest.mark.parametrize("operation", AFFINE)
@pytest.mark.parametrize("constant", PER_CHANNEL)
def test_factors_and_terms_of_channels_are_folded(operation: str, constant: AnyArray) -> None:
    text = conv_model(f"c = Conv(x, w, b)  y = {operation}")
    model = normalized(text, CONV | {"k": np.asarray(constant)}, feed={"x": X}, only="fold-batchnorm")
    assert op_types(model) == ["Conv"]


def test_a_chain_is_folded_as_a_whole() -> None:
    text = conv_model(f"c = Conv(x, w)  d = Mul(c, k)  e = {BN}(d, gamma, beta, mean, variance)  y = Add(e, k)")
    constants = {"w": CONV["w"], "k": normal(6, 1, 1)} | NORM
    model = normalized(text, constants, feed={"x": X}, only="fold-batchnorm")
    assert op_types(model) == ["Conv"]
    assert set(model.absorbed.values()) == {"Conv:c"}


NOT_FOLDED = [
    pytest.param("y = Add(c, k)", {"k": normal(1, 1, 1, 3)}, id="per-column"),
    pytest.param("y = Add(c, k)", {"k": normal(3)}, id="per-column-rank-1"),
    pytest.param("y = Mul(c, k)", {"k": normal(2, 1, 1, 1)}, id="per-sample"),
    pytest.param("y = Mul(c, k)", {"k": normal(6, 3, 3)}, id="per-element"),
    pytest.param("y = Add(c, k)", {"k": normal(1, 1, 6, 1, 1)}, id="higher-rank"),
    pytest.param("y = Div(k, c)", {"k": np.float32(2)}, id="reciprocal"),
    pytest.param("y = Div(c, k)", {"k": np.zeros((6, 1, 1), np.float32)}, id="division-by-zero"),
    pytest.param("y = Add(c, c)", {}, id="itself"),
    pytest.param("r = Relu(c)  y = Add(r, k)", {"k": np.float32(2)}, id="something-between"),
    pytest.param("d = Add(c, k)  y = Add(c, d)", {"k": np.float32(2)}, id="two-readers"),
    pytest.param("m = ReduceMean<axes=[0, 2, 3]>(x)  n = ReduceMean(m)  y = Add(c, n)", {}, id="not-constant"),
]


@pytest.mark.parametrize(("nodes", "constants"), NOT_FOLDED)
def test_anything_else_after_a_conv_stays(nodes: str, constants: dict[str, AnyArray]) -> None:
    text = conv_model(f"c = Conv(x, w, b)  {nodes}", outputs="float y")
    model = model_of(text, CONV | constants)
    assert PASSES["fold-batchnorm"](model) == 0
    assert len(op_types(model)) == len(model.given)


def test_a_conv_that_is_an_output_keeps_its_values() -> None:
    text = conv_model("c = Conv(x, w, b)  y = Mul(c, k)", outputs="float[N, M, H, W] c, float[N, M, H, W] y")
    model = normalized(text, CONV | {"k": np.float32(2)}, feed={"x": X}, only="fold-batchnorm")
    assert op_types(model) == ["Conv", "Mul"]


@pytest.mark.parametrize("attribute", ["training_mode=1", "spatial=0"])
def test_a_norm_with_statistics_of_its_own_stays(attribute: str) -> None:
    from .text_model import model_of

    opset, extra = (15, "y, m, v") if "training" in attribute else (8, "y")
    text = conv_model(
        f"c = Conv(x, w)  {extra} = BatchNormalization<{attribute}>(c, gamma, beta, mean, variance)", opset=opset
    )
    model = model_of(text, CONV | NORM)
    assert PASSES["fold-batchnorm"](model) == 0


def test_shared_weights_and_biases_are_copied() -> None:
    nodes = f"c = Conv(x, w, b)  d = Conv(x, w, b)  e = {BN}(c, gamma, beta, mean, variance)  y = Add(d, e)"
    model = normalized(conv_model(nodes), CONV | NORM, feed={"x": X}, only="fold-batchnorm")
    assert op_types(model) == ["Conv", "Conv", "Add"]
    np.testing.assert_array_equal(constants_of(model)["w"], CONV["w"])
    assert set(constants_of(model)) == {"w", "b", "w_scaled", "c_bias"}


def test_a_weight_read_in_a_branch_counts_as_shared() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (float[2, 4, 5, 5] x, bool f) => (float[N, M, H, W] y) {
      c = Conv(x, w)
      d = Mul(c, k)
      z = If(f) <
        then_branch = t () => (float[N, M, H, W] p) { p = Conv(x, w) },
        else_branch = e () => (float[N, M, H, W] q) { q = Mul(c, k) }
      >
      y = Add(d, z)
    }
    """
    for flag in (True, False):
        feed = {"x": X, "f": np.array(flag)}
        model = normalized(text, {"w": CONV["w"], "k": np.float32(3)}, feed=feed, only="fold-batchnorm")
    assert op_types(model) == ["Conv", "Mul", "If", "Add"]


def test_names_of_new_constants_are_free() -> None:
    text = conv_model("c_bias = Neg(x)  c = Conv(c_bias, w)  y = Add(c, k)")
    model = normalized(text, {"w": CONV["w"], "k": np.float32(3)}, feed={"x": X}, only="fold-batchnorm")
    assert set(constants_of(model)) == {"w", "c_bias_1"}


MATRIX = {"w": normal(4, 6), "v": normal(6, 4), "b": normal(6), "r": normal(1, 6), "m": normal(3, 6)}
DENSE = [
    pytest.param("c = MatMul(x, w)", True, id="matmul"),
    pytest.param("c = Gemm(x, w)", True, id="gemm"),
    pytest.param("c = Gemm<alpha=0.5, beta=-2.0>(x, w, b)", True, id="gemm-alpha-beta"),
    pytest.param("c = Gemm<transB=1, beta=0.5>(x, v, r)", True, id="gemm-transposed-row"),
    pytest.param("c = Gemm(x, w, m)", False, id="gemm-matrix-term"),
    pytest.param("c = MatMul(q, w)", False, id="matmul-of-unknown-rank"),
]


@pytest.mark.parametrize(("layer", "folded"), DENSE)
def test_batch_norm_after_a_matrix_product(layer: str, folded: bool) -> None:
    text = f"""
    <ir_version: 8, opset_import: ["": 13]>
    g (float[3, 4] x, int64[n] s) => (float[3, 6] y) {{
      q = Reshape(x, s)  {layer}  y = {BN}(c, gamma, beta, mean, variance)
    }}
    """
    feed = {"x": normal(3, 4), "s": np.array([3, 4])}
    model = normalized(text, MATRIX | NORM, feed=feed, only="fold-batchnorm")
    assert ("BatchNormalization" not in op_types(model)) == folded
    assert ("Gemm" in op_types(model)) == (folded or "Gemm" in layer)


def test_a_large_weight_is_folded_lazily() -> None:
    weight = normal(64, 128, 3, 3)
    assert weight.size > constants_module.EAGER_ELEMENTS
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (float[1, 128, 3, 3] x) => (float[N, M, H, W] y) { c = Conv(x, w)  y = Mul(c, k) }
    """
    factors = normal(64, 1, 1)
    model = normalized(text, {"w": weight, "k": factors}, feed={"x": normal(1, 128, 3, 3)}, only="fold-batchnorm")
    tensor = model.ir.graph.initializers["w"].const_value
    assert isinstance(tensor, onnx_ir.LazyTensor)
    np.testing.assert_array_equal(tensor.numpy(), (weight.astype(np.float64) * factors[:, None]).astype(np.float32))


def test_half_precision_constants_are_left_alone() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (float16[2, 4, 5, 5] x) => (float16[N, M, H, W] y) { c = Conv(x, w)  y = Mul(c, k) }
    """
    from .text_model import model_of

    constants = {"w": CONV["w"].astype(np.float16), "k": np.float16(2)}
    assert PASSES["fold-batchnorm"](model_of(text, constants)) == 0
