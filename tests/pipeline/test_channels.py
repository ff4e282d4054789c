"""Which tensors can be scaled channel by channel: what lies between layers of their own, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.bed import model, normal
from quantool import graph
from quantool.pipeline.choice.channels import Group, Layout, scalable_groups

CONSTANTS = {
    "w": normal(4, 3, 3, 3), "v": normal(5, 4, 1, 1), "d": normal(4, 1, 3, 3), "m": normal(100, 2), "b": normal(4),
    "six": np.float32(6), "zero": np.float32(0), "one": np.float32(1), "vector": normal(4, 1, 1),
}  # fmt: skip


def groups(body: str, *, output: str = "y") -> tuple[Group, ...]:
    text = f"(float[N,3,5,5] x) => (float[N,a,b,c] {output}) {{ {body} }}"
    words = set(text.replace(",", " ").replace("(", " ").replace(")", " ").split())
    proto = model(text.replace("[N,a,b,c]", ""), {name: v for name, v in CONSTANTS.items() if name in words})
    return scalable_groups(graph.facts(graph.prepare(graph.read(proto))))


CONV = "h = Conv <pads = [1, 1, 1, 1]> (x, w, b)"


@pytest.mark.parametrize(
    ("between", "tensors"),
    [
        ("r = Relu (h)", {"h", "r"}),
        ("r = LeakyRelu (h)", {"h", "r"}),
        ("r = Clip (h, zero, six)", {"h", "r"}),
        ("p = MaxPool <kernel_shape = [2, 2]> (h) r = Relu (p)", {"h", "p", "r"}),
        ("r = Max (h, zero)", {"h", "r"}),
        ("r = Min (h, vector)", {"h", "r"}),
        ("a = Relu (h) c = Conv <pads = [1, 1, 1, 1], group = 4> (a, d) r = Add (a, c)", {"h", "a", "c", "r"}),
    ],
)
def test_what_positive_factors_pass_is_one_group(between: str, tensors: set[str]) -> None:
    (group,) = groups(f"{CONV} {between} y = Conv (r, v)")
    assert set(group.tensors) == tensors
    assert group.count == 4


@pytest.mark.parametrize(
    "between",
    [
        "r = Sigmoid (h)",
        "r = Clip (h, one, six)",
        "r = Min (h, six)",
        "a = Relu (h) s = ReduceSum (h) r = Add (a, s)",
        "a = Relu (h) r = Mul (a, h)",
        "a = Conv <pads = [1, 1, 1, 1]> (x, w) r = Add (a, h)",
    ],
    ids=["curved", "lower bound", "scalar", "second reader", "product", "shared weight"],
)
def test_what_they_do_not_pass_is_left_alone(between: str) -> None:
    assert groups(f"{CONV} {between} y = Conv (r, v)") == ()


def test_graph_outputs_keep_their_scale() -> None:
    assert groups(f"{CONV} y = Relu (h) z = Conv (y, v)") == ()


def test_a_depthwise_layer_stands_between_two_groups() -> None:
    first, second = groups(f"{CONV} r = Relu (h) c = Conv <group = 4> (r, d) y = Conv (c, v)")
    assert first.readers == second.writers
    assert (first.bounds, second.operands) == ({}, ())


def test_flattening_repeats_channels() -> None:
    (group,) = groups(f"{CONV} r = Relu (h) f = Flatten (r) y = MatMul (f, m)")
    assert group.tensors["f"] == Layout(count=4, axis=1, repeats=25)


def test_a_subgraph_that_reads_a_tensor_keeps_its_scale() -> None:
    body = """r = Relu (h) t = ReduceMax <keepdims = 0> (x) g = Greater (t, one)
      o = If (g) < then_branch = a () => (float p) { p = ReduceMax <keepdims = 0> (r) },
                   else_branch = c () => (float q) { q = Identity (one) } >
      z = Conv (r, v) y = Add (z, o)"""
    assert groups(f"{CONV} {body}") == ()
