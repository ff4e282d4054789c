"""Small models with weights and feeds that resemble trained ones, and the command line as one call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from quantool.__main__ import main
from quantool.schema import AnyArray

SAMPLES = Path(__file__).parents[2] / "sample_models"

KEYS = {
    "schema", "command", "status", "exit_code", "model", "output", "recipe", "data", "nodes", "tensors", "coverage",
    "verification", "runtime", "latency", "gates", "verdict", "warnings", "errors", "trials",
    "memory", "metric", "candidates", "chosen", "responsible", "recipe_file", "check", "layers", "fixes",
    "environment", "command_line",
}  # fmt: skip

CNN = """
(float[N,3,8,8] image) => (float[N,5] scores) {
    c1 = Conv<pads=[1,1,1,1]>(image, w1, b1)
    a1 = Relu(c1)
    [second] c2 = Conv<pads=[1,1,1,1]>(a1, w2, b2)
    [residual] s = Add(c2, a1)
    p = GlobalAveragePool(s)
    f = Flatten(p)
    [head] scores = Gemm(f, w3, b3)
}
"""

BRANCHES = """
(float[N,6] x) => (float[N,4] y) {
    [up] h = MatMul(x, w1)
    [norm] n = ReduceMean<axes=[0,1], keepdims=0>(h)
    [big] b = Greater(n, limit)
    [choose] y = If(b) <
        then_branch = on () => (float[N,4] t) { [inner] t = MatMul(h, w2) },
        else_branch = off () => (float[N,4] e) { [other] e = MatMul(h, w3) }
    >
    }
"""


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> AnyArray:
    """Normal float32 values."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def model(text: str, constants: Mapping[str, AnyArray], *, opset: int = 17) -> onnx.ModelProto:
    """A model from its signature and body in ONNX text; `constants` become initializers that it may read."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {text}')
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    onnx.checker.check_model(proto)
    return proto


def cnn() -> onnx.ModelProto:
    """Two convolutions with a residual Add, a pool and a Gemm; the first Conv and others have no name."""
    return model(
        CNN,
        {
            "w1": normal(8, 3, 3, 3, seed=1, scale=0.3), "b1": normal(8, seed=2, scale=0.1),
            "w2": normal(8, 8, 3, 3, seed=3, scale=0.15), "b2": normal(8, seed=4, scale=0.1),
            "w3": normal(8, 5, seed=5), "b3": normal(5, seed=6, scale=0.1),
        },
    )  # fmt: skip


def branches() -> onnx.ModelProto:
    """A MatMul whose result goes through one of two branches of an If."""
    constants = {"w1": normal(6, 8, seed=1), "w2": normal(8, 4, seed=2), "w3": normal(8, 4, seed=3)}
    return model(BRANCHES, {**constants, "limit": np.float32(0)})


def mlp(inner: int = 16) -> onnx.ModelProto:
    """Two MatMuls with a Relu between."""
    text = "(float[N,8] x) => (float[N,4] y) { h = MatMul(x, w1) r = Relu(h) y = MatMul(r, w2) }"
    return model(text, {"w1": normal(8, inner, seed=1), "w2": normal(inner, 4, seed=2)})


def nothing() -> onnx.ModelProto:
    """A model in which no operator has weights."""
    return model("(float[N,4] x) => (float[N,4] y) { [soft] s = Softmax(x) [ex] y = Exp(s) }", {})


def images(count: int, *, seed: int = 7) -> AnyArray:
    """Images for the CNN, each of its own brightness and contrast, as real ones are."""
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((count, 3, 8, 8))
    return (base * rng.uniform(0.3, 1.5, (count, 1, 1, 1)) + rng.normal(0, 0.3, (count, 3, 1, 1))).astype(np.float32)


def feeds(count: int = 24, *, seed: int = 7) -> list[dict[str, AnyArray]]:
    """Feeds of one image."""
    return [{"image": image[None]} for image in images(count, seed=seed)]


def save(proto: onnx.ModelProto, path: Path) -> bytes:
    """Write a model; gives its bytes."""
    onnx.save(proto, path)
    return path.read_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a command line left: exit code, both streams, and the document of --json."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one strict JSON document on stdout."""
        return dict(json.loads(self.out, parse_constant=_no_constants))


def _no_constants(name: str) -> float:
    raise AssertionError(f"{name} is no strict JSON")


class Shell:
    """Runs command lines in this process, in an empty folder."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capsys = capsys
        self.folder = folder

    def __call__(self, line: str, *more: str) -> Ran:
        code = main([*line.split(), *more])
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err or "--debug" in line
        return Ran(code=code, out=out, err=err)

    def files(self) -> list[str]:
        """Everything in the folder, hidden files too."""
        return sorted(path.name for path in self.folder.iterdir())


def process(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "quantool", *words],
        cwd=folder, capture_output=True, text=True, env={**os.environ, **environment}, check=False,
    )  # fmt: skip


def given_nodes(graph: onnx.GraphProto, scope: str = "") -> Iterator[tuple[str, str, str]]:
    """Name, operator and scope of every node of a graph, subgraphs included, by the rules of the contract."""
    for node in graph.node:
        name = node.name or f"{node.op_type}:{node.output[0]}"
        yield name, node.op_type, scope
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                inner = f"{name}/{attribute.name}"
                yield from given_nodes(attribute.g, f"{scope}/{inner}" if scope else inner)
