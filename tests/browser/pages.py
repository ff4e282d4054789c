"""What every page of a report must hold in a browser, and a report as large as they come."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from report.examples import report

from browser.chromium import Tab
from quantool.report import html
from quantool.report.detail import Histogram, LayerRow, LayersInfo
from quantool.report.model import NodeRow, Report, TensorRow
from quantool.schema import AnyArray, Reason

#: rules of axe-core for what a report promises: contrast, headings, structure, names of controls, tables
AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
#: what the screenshots are taken at
SCREENS = [(1280, False), (1280, True), (420, False), (420, True)]


def saved(run: Report, folder: Path) -> Path:
    """A report as a page."""
    path = folder / "report.html"
    path.write_text(html.render(run), encoding="utf-8")
    return path


def problems(tab: Tab, axe: str) -> list[str]:
    """What axe-core finds wrong with the page that is open, folded parts unfolded."""
    tab.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    tab.evaluate(axe + "\n;0")
    options = json.dumps({"runOnly": {"type": "tag", "values": AXE_TAGS}, "resultTypes": ["violations"]})
    found = json.loads(tab.evaluate(f"axe.run(document, {options}).then((r) => JSON.stringify(r.violations))"))
    return [f"{rule['id']}: {node['html'][:200]}: {node['failureSummary']}" for rule in found for node in rule["nodes"]]


def asked_elsewhere(tab: Tab) -> list[str]:
    """Requests that leave the file."""
    return [address for address in tab.requests if not address.startswith("file:") and address != "about:blank"]


def overflow(tab: Tab) -> float:
    """By how much the page is wider than the window."""
    return float(tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def large(count: int = 5000) -> Report:
    """A run over a model with so many quantized tensors, and half as many layers."""
    return replace(
        report("large"),
        tensors=tuple(_tensors(count)),
        nodes=tuple(_nodes(count)),
        layers=LayersInfo(samples=4, candidates=count, measured=count // 2, rows=tuple(_layers(count // 2))),
    )


def chain(count: int) -> tuple[onnx.ModelProto, list[dict[str, AnyArray]]]:
    """A model of so many layers, each a rotation, and its data. Twice as many of its tensors become integers."""
    rng = np.random.default_rng(0)
    names = ["x", *(f"t{i}" for i in range(count))]
    rotations = [np.linalg.qr(rng.standard_normal((8, 8)))[0].astype(np.float32) for _ in range(count)]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 8]) for name in (names[0], names[-1])]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]], name=f"layer_{i}") for i in range(count)]
    weights = [numpy_helper.from_array(rotation, f"w{i}") for i, rotation in enumerate(rotations)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, [{"x": rng.standard_normal((1, 8)).astype(np.float32)} for _ in range(20)]


def _tensors(count: int) -> Iterator[TensorRow]:
    for i in range(count):
        spread = 1.0 + i % 7
        bell = tuple(round(9000 * math.exp(-(((j - 24) / (4 + i % 9)) ** 2))) for j in range(48))
        yield TensorRow(
            name=f"/model/encoder/layers.{i // 50}/block.{i % 50}/attention/output/dense/MatMul_{i}_output_0",
            dtype="uint8" if i % 2 else "int8", scale=spread / 128, zero_point=i % 256, range=(-spread, spread),
            observed_min=-1.2 * spread, observed_max=1.1 * spread, clipped_share=0.0001 * (i % 30),
            sqnr_db=30.0 + i % 23, calibrator="mse",
            histogram=Histogram(low=-1.2 * spread, high=1.1 * spread, counts=bell, below=0, above=i % 3),
        )  # fmt: skip


def _nodes(count: int) -> Iterator[NodeRow]:
    why = Reason(code="softmax", text="Softmax amplifies small errors.", fix="Ask for it with --include-op Softmax.")
    for i in range(2 * count):
        kept = i % 4 == 0
        yield NodeRow(
            name=f"/model/encoder/layers.{i // 50}/block.{i % 50}/node_{i}", op_type="Softmax" if kept else "MatMul",
            scope="", decision="kept" if kept else "quantized", runs_as="float" if kept else "integer",
            reason=why if kept else None,
        )  # fmt: skip


def _layers(count: int) -> Iterator[LayerRow]:
    before = None
    for i in range(count):
        level = 45.0 - 15.0 * i / count + 4 * math.sin(i / 20) - (8.0 if i > count // 2 else 0.0)
        yield LayerRow(
            node=f"/model/layer_{i}", op_type="MatMul", tensor=f"t{i}", sqnr_db=level, exact=False,
            input_sqnr_db=before, runs_as="integer" if i % 5 else "float",
        )  # fmt: skip
        before = level
