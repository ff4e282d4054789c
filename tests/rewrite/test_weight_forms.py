"""Weights alone as MatMulNBits and GatherBlockQuantized, and as DequantizeLinear: the same numbers, as predicted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantool.kernels.nbits import gather_block_quantized, matmul_nbits
from quantool.schema import AnyArray
from tests.rewrite.flow import normal, parse
from tests.rewrite.stored import LEVELS, Stored, run, stored

#: float32 sums in another order (SPEC: MatMulNBits agrees to 1e-4)
SAME = 1e-4
GRANULARITIES = ("channel", "tensor", "block:16", "block:32", "block:256", "block:48")
TYPES = ("int8", "uint8", "int4", "uint4", "int2", "uint2")
TARGETS = ("cpu-x64", "generic")
ROWS = 50


@dataclass(frozen=True)
class Case:
    """A graph, the shapes of its constants and of its inputs by K and N, in ONNX text."""

    body: str
    constants: dict[str, tuple[object, ...]]
    x: tuple[object, ...] = ()
    term: tuple[object, ...] = ()


CASES = {
    "vector": Case("y = MatMul (x, w)", {"w": ("K", "N")}, ("K",)),
    "matrix": Case("y = MatMul (x, w)", {"w": ("K", "N")}, (4, "K")),
    "stack": Case("y = MatMul (x, w)", {"w": ("K", "N")}, (2, 3, "K")),
    "stack of weights": Case("y = MatMul (x, w)", {"w": (3, "K", "N")}, (3, 4, "K")),
    "constant in front": Case("y = MatMul (w, x)", {"w": ("N", "K")}, ("K", 4)),
    "behind a Transpose": Case("v = Transpose <perm = [1, 0]> (w) y = MatMul (x, v)", {"w": ("N", "K")}, (4, "K")),
    "gemm": Case("y = Gemm <alpha = 0.5, beta = 2.0> (x, w, b)", {"w": ("K", "N"), "b": ("N",)}, (4, "K")),
    "gemm, all transposed": Case(
        "y = Gemm <transA = 1, transB = 1> (x, w, b)", {"w": ("N", "K"), "b": (4, 1)}, ("K", 4)
    ),
    "gemm with a term": Case("y = Gemm (x, w, c)", {"w": ("K", "N")}, (4, "K"), (4, "N")),
    "one weight twice": Case("t = MatMul (x, w) r = Tanh (t) y = MatMul (r, w)", {"w": ("K", "K")}, (4, "K")),
    "lookup": Case("y = Gather (w, ids)", {"w": (ROWS, "K")}),
    "tied by a Transpose": Case(
        "h = Gather (w, ids) v = Transpose <perm = [1, 0]> (w) y = MatMul (h, v)", {"w": (ROWS, "K")}
    ),
    "tied in a Gemm": Case("h = Gather (w, ids) y = Gemm <transB = 1> (h, w)", {"w": (ROWS, "K")}),
    "in a branch": Case(
        "y = If (yes) < then_branch = a () => (float[4,N] t) { t = MatMul (x, w) }, "
        "else_branch = b () => (float[4,N] e) { e = MatMul (x, w) } >",
        {"w": ("K", "N")},
        (4, "K"),
    ),
}


def built(case: Case, k: int, n: int, kind: str = "float") -> tuple[onnx.ModelProto, dict[str, AnyArray]]:
    """The case as a model with weights of one sign in some blocks, and a feed."""
    sizes = {"K": k, "N": n}
    dtype = {"float": np.float32, "float16": np.float16}[kind]

    def array(shape: tuple[object, ...], seed: int) -> AnyArray:
        values = normal(*(sizes.get(str(extent), extent) for extent in shape), seed=seed)
        return (values if seed % 3 else np.abs(values) + np.float32(0.5)).astype(dtype)

    constants = {name: array(shape, seed) for seed, (name, shape) in enumerate(case.constants.items(), start=k)}
    feed = {name: array(shape, 9) for name, shape in (("x", case.x), ("c", case.term)) if shape}
    declared = [f"{kind}[{','.join(map(str, value.shape))}] {name}" for name, value in feed.items()]
    body = case.body.replace("N]", f"{n}]").replace("float[", f"{kind}[")
    if "ids" in body:
        declared.append("int64[2,3] ids" if "Gemm" not in body else "int64[6] ids")
        feed["ids"] = np.random.default_rng(k).integers(-ROWS, ROWS, 6).reshape((2, 3) if "Gemm" not in body else 6)
    if "yes" in body:
        declared.append("bool yes")
        feed["yes"] = np.array(k % 2 == 0)
    if "(w, ids)" in body:
        constants["w"] = np.resize(constants["w"], (max(ROWS, 1024 // k + 1), k))
    return parse(f"({', '.join(declared)}) => ({kind} y) {{ {body} }}", constants), feed


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(max_examples=6, deadline=None)
def test_both_forms_compute_what_the_codes_stand_for(target, name, data):
    k, n = data.draw(st.sampled_from((1, 5, 16, 33, 48, 100, 130))), data.draw(st.sampled_from((1, 7, 8, 33)))
    options = {
        "weights": data.draw(st.sampled_from(TYPES)),
        "granularity": data.draw(st.sampled_from(GRANULARITIES)),
        "formula": data.draw(st.sampled_from((None, "onnx", "onnx-symmetric"))),
    }
    proto, feed = built(CASES[name], k, n)
    result = stored(proto, target=target, **{key: value for key, value in options.items() if value})
    assert result.plan.weights
    assert result.disagreement(feed) < SAME
    assert not {"MatMulNBits", "GatherBlockQuantized"} & result.kernels or target == "cpu-x64"


@pytest.mark.parametrize("weights", TYPES)
@pytest.mark.parametrize("name", ["matrix", "gemm, all transposed", "lookup", "tied by a Transpose"])
def test_half_precision_stays_half_precision(name, weights):
    proto, feed = built(CASES[name], 100, 8, "float16")
    for target in TARGETS:
        result = stored(proto, target=target, weights=weights)
        assert result.disagreement(feed) < 5e-3  # sums and products in 11 bits
        kinds = {onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in result.written.graph.initializer}
        assert not kinds & {"FLOAT", "DOUBLE"}


def both(case: str, k: int, n: int, **options: object) -> tuple[dict[str, AnyArray], Stored, Stored]:
    proto, feed = built(CASES[case], k, n)
    ours, plain = (stored(proto, target=target, **options) for target in TARGETS)
    return feed, ours, plain


@pytest.mark.parametrize("weights", TYPES)
@pytest.mark.parametrize("granularity", ["channel", "block:32", "block:48"])
def test_both_forms_hold_the_same_numbers(weights, granularity):
    feed, ours, plain = both("matrix", 100, 8, weights=weights, granularity=granularity)
    assert ours.kernels == {"MatMulNBits"}
    assert plain.kernels == {"DequantizeLinear"}
    left, right = (run(result.written, feed, LEVELS[1])[0] for result in (ours, plain))
    assert np.abs(left - right).max() < SAME * np.abs(right).max()
    for one, other in zip(ours.parameters.weights.values(), plain.parameters.weights.values(), strict=True):
        assert np.array_equal(one.codes(), other.codes())
        assert np.array_equal(one.params.scale, other.params.scale)


def constants(result: Stored) -> dict[str, AnyArray]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in result.written.graph.initializer}


def node(result: Stored, op_type: str) -> tuple[list[AnyArray | None], dict[str, int]]:
    """The constants that the one node of a type reads, absent ones None, and its attributes."""
    (found,) = [n for n in result.written.graph.node if n.op_type == op_type]
    known = constants(result)
    return [known.get(name) for name in found.input], {a.name: a.i for a in found.attribute}


@pytest.mark.parametrize("weights", TYPES)
@pytest.mark.parametrize("formula", ["onnx", "onnx-symmetric"])
def test_kernels_predict_matmulnbits(weights, formula):
    proto, feed = built(CASES["matrix"], 100, 7)
    result = stored(proto, weights=weights, granularity="block:32", formula=formula)
    (_, codes, scales, *rest), attributes = node(result, "MatMulNBits")
    assert attributes.pop("accuracy_level") == 4
    predicted = matmul_nbits(feed["x"], codes, scales, *rest, **attributes)
    found = run(result.written, feed, LEVELS[0])[0]
    assert np.abs(found - predicted).max() < SAME * np.abs(predicted).max()


@pytest.mark.parametrize("weights", TYPES)
@pytest.mark.parametrize("k", [96, 100, 37])
def test_kernels_predict_gatherblockquantized(weights, k):
    proto, feed = built(CASES["lookup"], k, 8)
    result = stored(proto, weights=weights, granularity="block:32")
    (codes, _, scales, *rest), attributes = node(result, "GatherBlockQuantized")
    predicted = gather_block_quantized(codes, feed["ids"], scales, *rest, **attributes)[..., :k]
    assert np.abs(run(result.written, feed, LEVELS[0])[0] - predicted).max() < SAME


@pytest.mark.parametrize("case", ["tied by a Transpose", "tied in a Gemm"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("options", [{}, {"weights": "int4"}, {"weights": "uint4"}, {"weights": "int2"}], ids=str)
@pytest.mark.parametrize("k", [64, 100])
def test_a_tied_table_is_stored_once_and_no_float_copy_is_left(case, target, options, k):
    proto, feed = built(CASES[case], k, 8)
    result = stored(proto, target=target, **options)
    assert all(d.quantized for name, d in result.plan.decisions.items() if not name.startswith(("Tanh", "Transpose")))
    rows = next(t.dims[0] for t in proto.graph.initializer if t.name == "w")
    large = [a for a in constants(result).values() if a.size >= rows * k // 4 and a.dtype != np.float32]
    assert len(large) == 1
    floats = sum(a.size for a in constants(result).values() if a.dtype == np.float32)
    assert floats <= rows * -(-k // 8)  # scales, of both views where the codes are transposed
    assert result.disagreement(feed) < SAME


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("rules", "copies"),
    [
        ([{"op_type": "Gemm", "weights": "int8"}], 1),
        ([{"op_type": "Gemm", "granularity": "block:16"}], 1),
        ([{"op_type": "Gather", "weights": "int8"}], 2),
    ],
    ids=["a rule for the head", "blocks for the head", "a rule for the table"],
)
def test_a_tied_table_follows_its_head_but_for_a_rule_of_its_own(target, rules, copies):
    proto, feed = built(CASES["tied in a Gemm"], 64, 8)
    result = stored(proto, target=target, weights="int4", rules=rules)
    assert sum(a.size >= ROWS * 32 for a in constants(result).values() if a.dtype != np.float32) == copies
    assert (result.disagreement(feed) < SAME) == (copies == 1)  # one prediction stands for both


def test_one_weight_of_two_products_is_stored_once():
    for target in TARGETS:
        proto, _ = built(CASES["one weight twice"], 48, 8)
        result = stored(proto, target=target, weights="int4")
        assert sum(a.size >= 48 * 24 for a in constants(result).values()) == 1


@pytest.mark.parametrize(
    ("k", "options", "block"),
    [
        (2048, {}, 256), (384, {}, 128), (96, {}, 32), (37, {}, 16), (5, {}, 16),
        (256, {"weights": "int2", "granularity": "block:256"}, 128),
        (96, {"weights": "int4", "granularity": "block:48"}, 16),
        (96, {"weights": "int4", "granularity": "block:512"}, 256),
    ],
)  # fmt: skip
def test_stored_blocks_are_powers_of_two_and_waste_little(k, options, block):
    proto, _ = built(CASES["matrix"], k, 8)
    assert next(iter(stored(proto, **options).plan.decisions.values())).stored_block == block


@pytest.mark.parametrize("granularity", ["block:8", "block:20"])
def test_blocks_that_the_form_does_not_hold_are_dequantized(granularity):
    proto, feed = built(CASES["matrix"], 100, 8)
    result = stored(proto, weights="int4", granularity=granularity)
    assert result.kernels == {"DequantizeLinear"}
    assert result.disagreement(feed) < SAME
