"""Random networks out of the operators of image and sequence models: they run as planned, whatever is excluded."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from quantool.schema import AnyArray
from tests.rewrite.flow import flow, normal, normal_feeds, parse

#: templates: {a} and {b} are tensors, {o} the output, {n} a number; names that begin with W are fresh weights
IMAGES = (
    "{o} = Conv <pads = [1, 1, 1, 1]> ({a}, W3_{n}, Wb_{n})",
    "{o} = Conv <group = 8, pads = [1, 1, 1, 1]> ({a}, Wd_{n})",
    "{o} = Conv ({a}, W1_{n})",
    "{o} = Conv <pads = [1, 1, 1, 1]> ({a}, shared, Wb_{n})",
    "{o} = ConvTranspose ({a}, W1_{n})",
    "{o} = Relu ({a})",
    "{o} = Clip ({a}, zero, two)",
    "{o} = Clip ({a}, half, two)",
    "{o} = Add ({a}, {b})",
    "{o} = Mul ({a}, {b})",
    "{o} = Mul ({a}, half)",
    "s{n} = Sigmoid ({a}) [k{n}] {o} = Mul ({a}, s{n})",
    "{o} = LeakyRelu ({a})",
    "{o} = Tanh ({a})",
    "{o} = HardSwish ({a})",
    "{o} = Softmax <axis = 1> ({a})",
    "{o} = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> ({a})",
    "{o} = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> ({a})",
    "g{n} = GlobalAveragePool ({a}) [k{n}] {o} = Mul ({a}, g{n})",
    "{o} = Transpose <perm = [0, 1, 3, 2]> ({a})",
    "{o} = Reshape ({a}, shape)",
    "c{n} = Concat <axis = 1> ({a}, {b}) [k{n}] {o} = Conv (c{n}, Wc_{n})",
    "p{n}, q{n} = Split <axis = 1> ({a}, halves) [k{n}] {o} = Concat <axis = 1> (q{n}, p{n})",
    'p{n} = Pad <mode = "reflect"> ({a}, pads) [k{n}] {o} = Conv (p{n}, W3_{n})',
    "{o} = Where (flags, {a}, {b})",
)
ROWS = (
    "{o} = MatMul ({a}, Wm_{n})",
    "{o} = MatMul ({a}, shared)",
    "m{n} = MatMul ({a}, Wm_{n}) [k{n}] {o} = Add (m{n}, Wb_{n})",
    "m{n} = MatMul ({a}, Wm_{n}) [k{n}] {o} = Add ({b}, m{n})",
    "{o} = Relu ({a})",
    "{o} = Clip ({a}, zero, two)",
    "{o} = Add ({a}, {b})",
    "{o} = Mul ({a}, {b})",
    "{o} = Sub ({a}, {b})",
    "s{n} = Sigmoid ({a}) [k{n}] {o} = Mul ({a}, s{n})",
    "{o} = Tanh ({a})",
    "{o} = LayerNormalization ({a}, gamma, beta)",
    "{o} = Softmax ({a})",
)
MATRICES = (*ROWS, "{o} = Gemm ({a}, Wm_{n}, Wb_{n})", "{o} = Gemm ({a}, Wm_{n})")
STACKS = (
    *ROWS,
    """l{n} = MatMul ({a}, Wm_{n}) [i{n}] r{n} = Transpose <perm = [0, 2, 1]> ({b}) [j{n}] s{n} = MatMul (l{n}, r{n})
       [k{n}] e{n} = Softmax (s{n}) [h{n}] {o} = MatMul (e{n}, {a})""",
)


@dataclass(frozen=True)
class Kind:
    """A family of networks whose tensors all have one shape."""

    templates: tuple[str, ...]
    shape: tuple[int, ...]
    channels: int
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def constant(self, name: str, seed: int) -> AnyArray:
        """Fresh values for a weight, by the kind that its name tells."""
        shape = self.weights[name.split("_")[0]]
        return normal(*shape, seed=seed, scale=float(np.prod(shape[1:] or (9,))) ** -0.5)

    def fixed(self) -> dict[str, AnyArray]:
        shared = next(iter(self.weights))
        return {
            "shared": self.constant(shared, 77), "zero": np.float32(0), "half": np.float32(0.5), "two": np.float32(2),
            "shape": np.array([0, 8, -1, 12]), "halves": np.array([4, 4]), "flags": normal(1, 8, 12, 12) > 0,
            "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "gamma": normal(self.channels, scale=0.2) + 1,
            "beta": normal(self.channels, seed=2, scale=0.2),
        }  # fmt: skip


CONVS = {"W3": (8, 8, 3, 3), "W1": (8, 8, 1, 1), "Wd": (8, 1, 3, 3), "Wc": (8, 16, 1, 1), "Wb": (8,)}
SQUARES = {"Wm": (16, 16), "Wb": (16,)}
KINDS = {
    "images": Kind(IMAGES, (2, 8, 12, 12), 8, CONVS),
    "matrices": Kind(MATRICES, (20, 16), 16, SQUARES),
    "stacks": Kind(STACKS, (2, 10, 16), 16, SQUARES),
}


def network(kind: Kind, seed: int) -> tuple[str, dict[str, AnyArray], list[str]]:
    """The text of a random network, its constants, and the names of its nodes."""
    choose = random.Random(seed)
    tensors, body = ["x"], []
    for n in range(choose.randint(4, 10)):
        a, b = (choose.choice(tensors[-4:]) for _ in range(2))
        body.append(f"[n{n}] {choose.choice(kind.templates).format(a=a, b=b, o=f't{n}', n=n)}")
        tensors.append(f"t{n}")
    text = "\n".join(body)
    words = set(text.replace(",", " ").replace("(", " ").replace(")", " ").split())
    read = [t for t in tensors[1:] if any(f"{t}{end}" in text.replace(f"{t} =", "") for end in (",", ")"))]
    outputs = [t for t in tensors[1:] if t not in read or choose.random() < 0.1]
    constants = {w: kind.constant(w, seed + i) for i, w in enumerate(sorted(w for w in words if w.startswith("W")))}
    constants |= {name: value for name, value in kind.fixed().items() if name in words}
    dims = ",".join(map(str, kind.shape))
    results = ", ".join(f"float[{dims}] {name}" for name in outputs)
    return f"(float[{dims}] x) => ({results}) {{ {text} }}", constants, [f"n{n}" for n in range(len(body))]


@pytest.mark.parametrize(
    "way", ["qdq", "qoperator", "excluded", "excluded qoperator", "dynamic", "weight-only", "auto"]
)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", KINDS)
def test_random_network_runs_as_planned(name, seed, way):
    kind = KINDS[name]
    text, constants, nodes = network(kind, seed)
    options: dict[str, object] = {}
    if "qoperator" in way:
        options["format"] = "qoperator"
    if "excluded" in way:
        options["exclude"] = [random.Random(seed).choice(nodes)]
    mode = way if way in ("dynamic", "weight-only", "auto") else "static"
    result = flow(parse(text, constants), normal_feeds(24, x=kind.shape), mode, **options)
    assert result.problems == ()
    assert result.db() > 18  # up to ten layers, softmaxes and products among them
