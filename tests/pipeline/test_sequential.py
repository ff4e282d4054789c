"""Bias correction layer by layer: in order, in few runs, and exact where each layer depends on the one before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import quantool
from pipeline.bed import model, normal
from pipeline.test_equal_function import network, prepared
from quantool.pipeline.build import loadable, quantized_graph
from quantool.pipeline.choice import choose
from quantool.pipeline.choice.candidate import Candidate
from quantool.pipeline.choice.sequential import MOST_STAGES, in_stages, sequential_corrections
from quantool.pipeline.source import run_all
from quantool.report.model import Report
from quantool.schema import Feed
from quantool.solve import Corrections

LAYERS = 4


def clipped_chain() -> tuple[onnx.ModelProto, list[Feed]]:
    """Convolutions with Relu between them: where a range cuts the first one's output off, a Relu shifts the means."""
    held = {f"w{i}": normal(8, 8, 3, 3, seed=i, scale=0.2) for i in range(LAYERS)}
    held |= {f"b{i}": normal(8, seed=9 + i, scale=0.1) for i in range(LAYERS)}
    text, tensor = "(float[N,8,6,6] x) => (float[N,8,6,6] y) {", "x"
    for i in range(LAYERS - 1):
        text += f" a{i} = Conv<pads=[1,1,1,1]>({tensor}, w{i}, b{i}) h{i} = Relu(a{i})"
        tensor = f"h{i}"
    text += f" y = Conv<pads=[1,1,1,1]>({tensor}, w{LAYERS - 1}, b{LAYERS - 1}) }}"
    return model(text, held), [{"x": normal(1, 8, 6, 6, seed=100 + i)} for i in range(40)]


def report(effort: str) -> Report:
    proto, feeds = clipped_chain()
    rules = [{"tensor": "h0", "range": [0.0, 1.0]}]
    return quantool.quantize(proto, data=feeds, effort=effort, recipe={"rules": rules}).report


def test_the_mean_of_the_output_is_right_where_the_plain_form_leaves_it_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    shifts: dict[str, float] = {}

    def measured(candidate: Candidate, start: Corrections, feeds: Sequence[Feed], **options: Any) -> Corrections:
        found = sequential_corrections(candidate, start, feeds, **options)
        exact = run_all(candidate.source.normalized, feeds)
        for name, corrections in (("plain", start), ("in turn", found)):
            written = loadable(
                quantized_graph(candidate.source, candidate.plan, options["solved"](corrections)),
                threads=1,
                thrift=candidate.source.normalized.thrift,
            )
            pairs = zip(run_all(written, feeds), exact, strict=True)
            means = np.mean([(ours["y"] - theirs["y"]).mean(axis=(0, 2, 3)) for ours, theirs in pairs], axis=0)
            shifts[name] = float(np.abs(means).max())
        return found

    monkeypatch.setattr(choose, "sequential_corrections", measured)
    trials = report("max").trials
    assert any(trial.name.endswith("bias correction layer by layer") for trial in trials)
    assert shifts["in turn"] < 0.2 * shifts["plain"]


def test_the_default_does_not_try_it() -> None:
    assert not any("layer by layer" in trial.name for trial in report("balanced").trials)


def test_it_is_not_kept_without_a_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "sequential_corrections", lambda _, start, *__, **___: start)
    trials = report("max").trials
    assert any("layer by layer" in trial.name for trial in trials)
    assert not any("layer by layer" in trial.name for trial in trials if trial.chosen)


@pytest.mark.parametrize("seed", range(20))
def test_stages_follow_the_graph(seed: int) -> None:
    source, plan = prepared(network(seed))
    wanted = {spec.node for spec in plan.weights}
    stages = list(in_stages(source.facts, wanted))
    assert len(stages) <= MOST_STAGES
    assert sorted(node.name for stage in stages for node in stage) == sorted(wanted)
    place = {node.name: number for number, stage in enumerate(stages) for node in stage}
    behind: dict[str, int] = {}
    for node in source.facts.nodes:
        before = max((behind.get(tensor, 0) for tensor in node.inputs), default=0)
        assert place.get(node.name, before) >= before
        behind.update(dict.fromkeys(node.outputs, max(before, place.get(node.name, 0))))
