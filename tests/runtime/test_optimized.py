"""Reading the optimized model back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import parser

from quantool.graph.optimized import OptimizedGraph, read_optimized
from quantool.runtime.optimized import load_and_inspect
from quantool.runtime.session import Loadable

BRANCHES = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4] x, uint8[4] u, bool c) => (float[4] y, uint8[4] v)
<float[4] w = {1, 2, 3, 4}>
{
    v = Identity(u)
    d = Identity(x)
    e = Mul(d, w)
    y = If(c) <
        then_branch = yes () => (float[4] t) { t = Tanh(e) },
        else_branch = no () => (float[4] f) { f = Sin(e) }
    >
}
"""


def test_nodes_of_all_scopes_are_read_and_identities_are_gone() -> None:
    model = parser.parse_model(BRANCHES)
    model.graph.node[-1].name = "choice"
    session, graph = load_and_inspect(Loadable(model=model.SerializeToString()), read_optimized)
    found = {(node.scope, node.op_type, node.outputs) for node in graph.nodes}
    assert {
        ("", "Mul", ("e",)),
        ("", "If", ("y",)),
        ("choice/then_branch", "Tanh", ("t",)),
        ("choice/else_branch", "Sin", ("f",)),
    } <= found
    assert graph.dtypes["", "u"] == "uint8"
    assert graph.dtypes["", "w"] == "float"
    feed = {"x": np.zeros(4, "f"), "u": np.zeros(4, np.uint8), "c": np.array(True)}
    assert session.run(feed)["y"].tolist() == [0, 0, 0, 0]


def test_large_weights_go_beside_the_optimized_model_and_nothing_stays() -> None:
    weight = onnx.numpy_helper.from_array(np.ones((64, 64), "f"), "w")
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N,64] x) => (float[N,64] y) {y = MatMul(x, w)}'
    model = parser.parse_model(text)
    model.graph.initializer.append(weight)
    folders: list[Path] = []

    def read(path: Path) -> OptimizedGraph:
        folders.append(path.parent)
        assert path.stat().st_size < weight.ByteSize()
        return read_optimized(path)

    session, graph = load_and_inspect(Loadable(model=model.SerializeToString()), read)
    assert [node.op_type for node in graph.nodes] == ["MatMul"]
    assert not folders[0].exists()
    assert session.run({"x": np.ones((1, 64), "f")})["y"][0, 0] == 64
