"""Equalization never changes what a network computes beyond rounding: random networks out of what it may meet."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest

from calibrators.registry import STATISTICS
from pipeline.bed import model, normal
from quantool import graph, targets
from quantool.graph.normalize import normalize
from quantool.pipeline.choice.equalize import EQUALIZED, equalized
from quantool.pipeline.choice.rescale import Rescaled
from quantool.pipeline.source import FloatModel, finished, given_loadable, run_all
from quantool.plan import make_plan
from quantool.recipe import from_options
from quantool.schema import AnyArray, Mode, Plan

#: ten layers of sums of at most 288 float32 products, each rounded once more by the factors
ROUNDING = 10 * 288 * 2.0**-24

#: as in the networks of tests/rewrite: {a}, {b} are tensors, {o} the output, {n} a number, W... fresh weights
TEMPLATES = (
    "{o} = Conv <pads = [1, 1, 1, 1]> ({a}, W3_{n}, Wb_{n})",
    "{o} = Conv <group = 8, pads = [1, 1, 1, 1]> ({a}, Wd_{n}, Wb_{n})",
    "{o} = Conv <group = 2, pads = [1, 1, 1, 1]> ({a}, Wg_{n})",
    "{o} = Conv ({a}, W1_{n}, Wb_{n})",
    "{o} = Conv <pads = [1, 1, 1, 1]> ({a}, shared, Wb_{n})",
    "{o} = Relu ({a})",
    "{o} = LeakyRelu ({a})",
    "{o} = PRelu ({a}, Wp_{n})",
    "{o} = Clip ({a}, zero, two)",
    "{o} = Clip ({a}, half, two)",
    "{o} = Min ({a}, Wm_{n})",
    "{o} = Add ({a}, {b})",
    "{o} = Sub ({a}, Wm_{n})",
    "{o} = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> ({a})",
    "{o} = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> ({a})",
    "g{n} = GlobalAveragePool ({a}) {o} = Add ({a}, g{n})",
    "g{n} = GlobalAveragePool ({a}) {o} = Mul ({a}, g{n})",
    "{o} = Tanh ({a})",
    "{o} = Conv <pads = [1, 1, 1, 1]> ({a}, W3_{n}) g{n} = Relu ({o})",
)
SHAPES = {
    "W3": (8, 8, 3, 3), "Wd": (8, 1, 3, 3), "Wg": (8, 4, 3, 3), "W1": (8, 8, 1, 1), "Wb": (8,), "Wp": (8, 1, 1),
    "Wm": (8, 1, 1), "shared": (8, 8, 3, 3),
}  # fmt: skip
HEADS = ("f = Flatten ({a}) y = Gemm (f, head)", "p = GlobalMaxPool ({a}) f = Flatten (p) y = MatMul (f, short)")


def network(seed: int) -> onnx.ModelProto:
    """A random network whose channels differ by exp(N(0, 2))."""
    choose = random.Random(seed)
    tensors, body = ["x"], []
    for n in range(choose.randint(4, 10)):
        a, b = (choose.choice(tensors[-3:]) for _ in range(2))
        body.append(choose.choice(TEMPLATES).format(a=a, b=b, o=f"t{n}", n=n))
        tensors.append(f"t{n}")
    body.append(choose.choice(HEADS).format(a=tensors[-1]))
    text = " ".join(body)
    words = set(text.replace(",", " ").replace("(", " ").replace(")", " ").split())
    constants: dict[str, AnyArray] = {
        "zero": np.float32(0), "half": np.float32(0.5), "two": np.float32(2),
        "head": normal(8 * 6 * 6, 4, seed=seed), "short": normal(8, 4, seed=seed),
    }  # fmt: skip
    rng = np.random.default_rng(seed)
    for word in sorted(words):
        if (shape := SHAPES.get(word.split("_")[0])) is not None:
            sizes = np.exp(rng.normal(0, 2, (shape[0], *[1] * (len(shape) - 1))))
            constants[word] = (rng.standard_normal(shape) * sizes / np.prod(shape[1:]) ** 0.5).astype(np.float32)
    used = {name: value for name, value in constants.items() if name in words}
    return model(f"(float[2,8,6,6] x) => (float[2,4] y) {{ {text} }}", used)


def prepared(proto: onnx.ModelProto) -> tuple[FloatModel, Plan]:
    recipe = from_options({"mode": "static"})
    loaded = graph.read(proto)
    found = graph.prepare(loaded, opset=17)
    changed = normalize(found)
    source = finished(loaded, found, given_loadable(loaded), changed=changed, threads=1)
    return source, make_plan(source.facts, recipe, target=targets.load("cpu-x64"), mode=Mode.STATIC)


def is_equalized(seed: int) -> bool:
    """Equalize a random network, if it has what that needs, and hold the result against it."""
    source, plan = prepared(network(seed))
    feeds = [{"x": normal(2, 8, 6, 6, seed=1000 + 10 * seed + i)} for i in range(4)]
    known = {name: STATISTICS["histogram"]() for name in source.facts.tensors}
    found = equalized(source, plan, known, feeds, recipe=from_options({}))
    if found is None:
        return False
    assert isinstance(found, Rescaled), found
    result, stats = found.source, found.stats
    assert EQUALIZED in result.changed
    assert stats.keys() == known.keys()
    for before, after in zip(run_all(source.normalized, feeds), run_all(result.normalized, feeds), strict=True):
        assert np.abs(before["y"] - after["y"]).max() <= ROUNDING * np.abs(before["y"]).max()
    return True


@pytest.mark.parametrize("first", range(0, 80, 10))
def test_equalization_keeps_the_function_of_random_networks(first: int) -> None:
    assert sum(is_equalized(seed) for seed in range(first, first + 10)) >= 2
