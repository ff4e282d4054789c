"""EDGE_CASES, weights alone and low bits."""

from __future__ import annotations

import numpy as np
import pytest

import quantool
from quantool.kernels.metrics import sqnr_db
from tests.edge.driver import FOUR_BITS_DB, WEIGHTS_DB, check, run
from tests.edge.graphs import feeds, model, normal, weight

MATMUL = "(float[N,K] x) => (float[N,M] y) { y = MatMul (x, w) }"


def matmul(w: np.ndarray) -> object:
    text = MATMUL.replace("K", str(w.shape[0])).replace("M]", f"{w.shape[1]}]")
    return model(text, {"w": w})


@pytest.mark.parametrize("weights", ["int4", "uint4", "int2", "uint2"])
def test_low_bits_in_qoperator_format_are_refused_by_option(weights: str) -> None:
    with pytest.raises(quantool.OptionError, match=r"--weights|--format") as caught:
        quantool.quantize(matmul(weight(64, 32)), feeds(x=(8, 64)), format="qoperator", weights=weights)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("weights", ["int4", "uint4"])
@pytest.mark.parametrize("opset", [11, 17, 21])
def test_static_with_four_bit_weights(weights: str, opset: int) -> None:
    text = "(float[N,64] x) => (float[N,10] y) { a = Gemm (x, w, b)  r = Relu (a)  y = MatMul (r, v) }"
    constants = {"w": weight(64, 32), "b": normal(32, scale=0.2), "v": weight(32, 10, seed=1)}
    result = check(model(text, constants, opset=opset), feeds(x=(8, 64)), weights=weights, db=14)
    assert result.proto.opset_import[0].version >= 21
    assert any(a.dtype.name == weights for a in result.constants().values())


BLOCKS = {
    "positive": lambda w: np.abs(w) + 0.5,
    "negative": lambda w: -np.abs(w) - 0.5,
    "constant": lambda w: np.full_like(w, 0.3),
    "zero blocks": lambda w: np.where(np.arange(len(w))[:, None] < 32, 0, w),
    "one huge": lambda w: np.where(np.arange(w.size).reshape(w.shape) == 5, 40, w),
    "mixed signs by block": lambda w: np.abs(w) * np.where(np.arange(len(w))[:, None] < 32, 1, -1),
}


@pytest.mark.parametrize("weights", ["int4", "uint4"])
@pytest.mark.parametrize("name", BLOCKS)
def test_four_bit_blocks_of_one_sign_keep_zero(name: str, weights: str) -> None:
    w = BLOCKS[name](weight(64, 16)).astype(np.float32)
    result = check(matmul(w), feeds(8, x=(8, 64)), "weight-only", weights=weights)
    assert result.db() >= (18 if name != "one huge" else 12)
    zero = [{"x": np.zeros((2, 64), np.float32)}]
    assert np.array_equal(run(result.proto, zero)[0]["y"], np.zeros((2, 16)))


@pytest.mark.parametrize("formula", ["onnx", "onnx-symmetric"])
@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize("name", ["positive", "negative", "constant", "mixed signs by block"])
def test_eight_bit_blocks_of_one_sign_keep_thirty_decibels(name: str, weights: str, formula: str) -> None:
    w = BLOCKS[name](weight(64, 16)).astype(np.float32)
    options = {"weights": weights, "granularity": "block:32", "formula": formula}
    assert check(matmul(w), feeds(8, x=(8, 64)), "weight-only", **options).db() >= WEIGHTS_DB


@pytest.mark.parametrize("k", [64, 100])
@pytest.mark.parametrize(("weights", "db"), [("int8", WEIGHTS_DB), ("int4", 11), ("uint2", 1)])
def test_the_verdict_names_the_accuracy_level_that_was_verified(weights: str, db: float, k: int) -> None:
    for target in ("cpu-x64", "generic"):
        result = check(matmul(weight(k, 8)), feeds(6, x=(8, k)), "weight-only", weights=weights, target=target, db=db)
        assert "accuracy level 4 (activations rounded to 8 bits)" in result.report.verdict


@pytest.mark.parametrize(("k", "n"), [(40, 16), (33, 7), (16, 7), (7, 3), (1, 5), (64, 1), (100, 33)])
@pytest.mark.parametrize("block", [16, 32, 128])
@pytest.mark.parametrize("weights", ["int4", "uint4", "int8"])
def test_blocks_that_do_not_divide_k(k: int, n: int, block: int, weights: str) -> None:
    proto = matmul(weight(k, n))
    options = {"weights": weights, "granularity": f"block:{block}"}
    try:
        result = check(proto, feeds(6, x=(4, k)), "weight-only", **options)
    except quantool.OptionError as refusal:
        assert "block" in refusal.what  # noqa: PT017
        return
    for rows in (1, 4, 33) if n > 1 else (33,):
        given = [{"x": normal(rows, k, seed=rows)}]
        exact, found = run(proto, given)[0]["y"], run(result.proto, given)[0]["y"]
        assert sqnr_db(exact, found) >= (WEIGHTS_DB - 4 if weights == "int8" else 11 if min(k, block) > 1 else 0)


@pytest.mark.parametrize(("weights", "share"), [("int4", 0.25), ("int8", 0.32)])
@pytest.mark.parametrize("op", ["MatMul (x, w)", "Gemm (x, w)", "Gemm <transB = 1> (x, w)"])
def test_large_weights_leave_no_float_copy(weights: str, share: float, op: str) -> None:
    proto = model(f"(float[N,512] x) => (float[N,512] y) {{ y = {op} }}", {"w": weight(512, 512)})
    db = FOUR_BITS_DB if weights == "int4" else WEIGHTS_DB
    result = check(proto, feeds(4, x=(4, 512)), "weight-only", weights=weights, db=db)
    assert result.size < share * proto.ByteSize()
    # A block's scale takes a 32nd of what its weights took, and four bits reach 18.5 dB on normal weights.
    assert sum(a.nbytes for a in result.constants().values() if a.dtype == np.float32) <= 512 * 512 // 8


KEPT = {
    "batched B": ("y = MatMul (x, b)", "float[3,6,64] x", (3, 6, 64)),
    "constant A": ("y = MatMul (a, x)", "float[64,6] x", (64, 6)),
    "1-D B": ("y = MatMul (x, d)", "float[6,64] x", (6, 64)),
    "Conv": ("y = Conv (x, c)", "float[2,32,6,6] x", (2, 32, 6, 6)),
    "ConvTranspose": ("y = ConvTranspose (x, c)", "float[2,32,6,6] x", (2, 32, 6, 6)),
    "depthwise Conv": ("y = Conv <group = 32> (x, p)", "float[2,32,6,6] x", (2, 32, 6, 6)),
}


@pytest.mark.parametrize("weights", ["int4", "uint4", "int8"])
@pytest.mark.parametrize("name", KEPT)
def test_other_operators_are_quantized_or_kept_but_right(name: str, weights: str) -> None:
    body, declared, shape = KEPT[name]
    constants = {
        "b": weight(3, 64, 8), "a": weight(8, 64), "d": normal(64), "c": weight(32, 32, 3, 3), "p": weight(32, 1, 3, 3),
        "m": weight(32, 32, seed=7),
    }  # fmt: skip
    letter = body.split(")")[0][-1] if "(a, x" not in body else "a"
    text = f"({declared}, float[4,32] k) => (float[] y, float[4,32] z) {{ {body}  z = MatMul (k, m) }}"
    proto = model(text, {letter: constants[letter], "m": constants["m"]})
    result = check(proto, feeds(6, x=shape, k=(4, 32)), "weight-only", weights=weights)
    quantized = [node for node in result.decisions().items() if node[1] == "quantized"]
    assert quantized
    assert result.db() >= (WEIGHTS_DB if weights == "int8" else 12)


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_an_embedding_is_stored_in_few_bits(weights: str) -> None:
    text = "(int64[N,6] ids) => (float[N,6,32] y) { e = Gather (table, ids)  y = MatMul (e, w) }"
    proto = model(text, {"table": normal(300, 32), "w": weight(32, 32)})
    samples = [{"ids": np.random.default_rng(i).integers(0, 300, (4, 6))} for i in range(6)]
    result = check(proto, samples, "weight-only", weights=weights, db=14)
    assert result.decisions()["Gather:e"] == "quantized"
    assert result.size < 0.45 * proto.ByteSize()
