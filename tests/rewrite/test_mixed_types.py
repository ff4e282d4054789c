"""Several types in one model: it loads, runs as planned, and is as exact as its coarsest type."""

from __future__ import annotations

import pytest

from tests.rewrite.flow import flow, normal, normal_feeds, parse

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
PRODUCTS = """(float[3,32] x) => (float[3,8] y) {
    [m1] a = MatMul (x, w1)
    [r1] b = Relu (a)
    [m2] c = MatMul (b, w2)
    [m3] d = MatMul (c, w2)
    [m4] y = MatMul (d, w4)
}"""
CONSTANTS = {
    "k1": normal(16, 4, 3, 3, seed=2, scale=0.2), "b1": normal(16, seed=3),
    "k2": normal(16, 16, 3, 3, seed=4, scale=0.1), "b2": normal(16, seed=5), "w3": normal(10, 16, seed=6),
    "b3": normal(10, seed=7, scale=3), "w1": normal(32, 64, seed=1), "w2": normal(64, 64, seed=2, scale=0.2),
    "w4": normal(64, 8, seed=3),
}  # fmt: skip
IMAGES, ROWS = normal_feeds(x=(1, 4, 8, 8)), normal_feeds(x=(3, 32))


def network(*rules: dict[str, object], **options: object):
    return flow(parse(NETWORK, CONSTANTS), IMAGES, rules=list(rules), **options)


def products(*rules: dict[str, object], **options: object):
    return flow(parse(PRODUCTS, CONSTANTS), ROWS, rules=list(rules), **options)


def in_float(result) -> set[str]:
    """The nodes with weights, or of integer operators, that are planned to run in float."""
    return {name for name, d in result.plan.decisions.items() if d.quantized and d.expected == "float"}


@pytest.mark.parametrize(
    ("rule", "floating"),
    [
        ({"name": "c1"}, {"c1", "r1"}),
        ({"name": "c2"}, {"c1", "r1", "p", "c2", "s", "r2"}),
        ({"name": "g"}, {"s", "r2", "g"}),
        ({"name": "fc"}, {"g", "f", "fc"}),
        ({"tensor": "d"}, {"c2", "s", "r2"}),
    ],
    ids=lambda part: str(part) if isinstance(part, dict) else "",
)
@pytest.mark.parametrize("dtype", ["uint16", "int16"])
def test_wide_activations_at_one_place_of_a_network(rule, floating, dtype):
    result = network({**rule, "activations": dtype})
    assert result.problems == ()
    assert in_float(result) == floating
    assert {spec.dtype for spec in result.plan.activations.values()} == {"uint8", dtype}
    assert result.db() > 40


@pytest.mark.parametrize("name", ["m1", "m2", "m3", "m4"])
@pytest.mark.parametrize("dtype", ["uint16", "int16"])
def test_a_product_before_another_type_still_runs_on_integers(name, dtype):
    result = products({"name": name, "activations": dtype})
    assert result.problems == ()
    assert in_float(result) == {name}
    assert result.runs["MatMulIntegerToFloat"] + result.runs["QLinearMatMul"] == 3
    assert result.db() > 30


@pytest.mark.parametrize("build", [network, products])
def test_a_few_narrow_places_in_a_wide_model(build):
    name, dtype = ("fc", "uint8") if build is network else ("m4", "uint8")
    result = build({"name": name, "activations": dtype}, activations="uint16")
    assert result.problems == ()
    assert result.plan.decisions[name].expected == "integer"
    assert result.db() > 35 if build is network else result.db() > 30


@pytest.mark.parametrize("name", ["c1", "c2", "fc"])
def test_float_activations_store_the_weights_alone(name):
    result = network({"name": name, "activations": "float"})
    assert result.problems == ()
    assert in_float(result) == {name}
    assert result.db() > 40


@pytest.mark.parametrize("name", ["m1", "m2", "m3", "m4"])
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_float_activations_of_a_product(name, mode):
    result = products({"name": name, "activations": "float"}, mode=mode)
    assert result.problems == ()
    assert in_float(result) == {name}
    assert result.db() > 30


@pytest.mark.parametrize(
    ("dtype", "db"),
    [("uint8", 40), ("int16", 40), ("float8_e4m3fn", 25), ("int4", 18), ("uint4", 18), ("int2", 6)],
)
def test_one_weight_of_another_type(dtype, db):
    for build, names in ((network, ("c1", "c2", "fc")), (products, ("m1", "m3", "m4"))):
        for name in names:
            result = build({"name": name, "weights": dtype})
            assert result.problems == ()
            assert in_float(result) - {"r1"} == (set() if dtype == "uint8" else {name})
            types = {spec.node: spec.dtype for spec in result.plan.weights}
            assert types.pop(name) == dtype
            assert set(types.values()) == {"int8"}
            if build is network:
                assert result.db() > db


@pytest.mark.parametrize("granularity", ["tensor", "channel", "block:16"])
def test_one_weight_of_another_granularity(granularity):
    result = products({"name": "m2", "granularity": granularity}, {"name": "m3", "weights": "int4"})
    assert result.problems == ()
    forms = {spec.node: (spec.dtype, spec.axis, spec.block_size) for spec in result.plan.weights}
    assert forms["m2"] == ("int8", *{"tensor": (None, 0), "channel": (1, 0), "block:16": (0, 16)}[granularity])
    assert (forms["m1"], forms["m3"]) == (("int8", 1, 0), ("int4", 0, 32))


def test_one_tensor_read_by_two_products_is_stored_once_for_each_type():
    result = products({"name": "m3", "weights": "uint8"})
    kinds = [str(array.dtype) for name, array in result.constants().items() if array.shape == (64, 64)]
    assert sorted(kinds) == ["int8", "uint8"]


def test_weights_of_both_types_in_integer_operators():
    result = products({"name": "m2", "weights": "uint8"}, format="qoperator")
    assert result.problems == ()
    assert result.ops["QLinearMatMul"] == 4
