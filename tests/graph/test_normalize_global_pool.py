"""A mean over all spatial axes becomes GlobalAveragePool, unless it is a statistic."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.text_model import normal, normalized, op_types

CONSTANTS = {"w": normal(4, 3, 1, 1, seed=1), "m": normal(3, 5, seed=2), "axes": np.array([-1, -2])}


def _normalized(opset, rank, mean, rest):
    dims = (2, 3, 4, 5, 6)[:rank]
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]> agraph
        (float[{",".join(map(str, dims))}] x) => (float[] y) {{ p = {mean} {rest} }}"""
    return normalized(text, CONSTANTS, feed={"x": normal(*dims)}, only="global-pool")


POOLS = {
    "attribute": (13, 4, "ReduceMean <axes=[2,3]> (x)", "y = Conv (p, w)", ["GlobalAveragePool", "Conv"]),
    "input": (18, 4, "ReduceMean (x, axes)", "y = Conv (p, w)", ["GlobalAveragePool", "Conv"]),
    "squeezed": (18, 4, "ReduceMean <keepdims=0> (x, axes)", "y = MatMul (p, m)", None),
    "sequence": (13, 3, "ReduceMean <axes=[2]> (x)", "y = Flatten (p)", ["GlobalAveragePool", "Flatten"]),
    "volume": (13, 5, "ReduceMean <axes=[4,2,3]> (x)", "y = Flatten (p)", ["GlobalAveragePool", "Flatten"]),
}


@pytest.mark.parametrize(("opset", "rank", "mean", "rest", "ops"), POOLS.values(), ids=POOLS)
def test_means_over_space_are_pools(opset, rank, mean, rest, ops):
    model = _normalized(opset, rank, mean, rest)
    assert op_types(model) == (ops or ["GlobalAveragePool", "Flatten", "MatMul"])


OTHERS = {
    "one-axis": (13, 4, "ReduceMean <axes=[3]> (x)", "y = Flatten (p)"),
    "channels": (13, 4, "ReduceMean <axes=[1,2]> (x)", "y = Flatten (p)"),
    "all-axes": (13, 4, "ReduceMean (x)", "y = Flatten (p)"),
    "matrix": (13, 2, "ReduceMean <axes=[1]> (x)", "y = Flatten (p)"),
    "statistic": (13, 4, "ReduceMean <axes=[2,3]> (x)", "y = Sub (x, p)"),
    "statistic-too": (13, 4, "ReduceMean <axes=[2,3]> (x)", "c = Conv (p, w) d = Sub (x, p) y = Mul (d, d)"),
}


@pytest.mark.parametrize(("opset", "rank", "mean", "rest"), OTHERS.values(), ids=OTHERS)
def test_other_means_stay(opset, rank, mean, rest):
    assert op_types(_normalized(opset, rank, mean, rest))[0] == "ReduceMean"


def test_a_mean_that_the_graph_returns_stays():
    text = """<ir_version: 8, opset_import: ["" : 13]> agraph
        (float[2,3,4,5] x) => (float[2,3,1,1] p) { p = ReduceMean <axes=[2,3]> (x) }"""
    assert op_types(normalized(text, {}, feed={"x": normal(2, 3, 4, 5)}, only="global-pool")) == ["ReduceMean"]


def test_a_mean_of_integers_stays():
    text = """<ir_version: 8, opset_import: ["" : 13]> agraph
        (int32[2,3,4,5] x) => (int32[2,3] y) { p = ReduceMean <axes=[2,3]> (x) y = Flatten (p) }"""
    feed = {"x": np.arange(120, dtype=np.int32).reshape(2, 3, 4, 5)}
    assert op_types(normalized(text, {}, feed=feed, only="global-pool")) == ["ReduceMean", "Flatten"]
