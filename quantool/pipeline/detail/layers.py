"""SQNR along the graph: both models on a few samples, their layers tapped side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from quantool import graph
from quantool.errors import QuantoolError
from quantool.graph.optimized import Outline, outline
from quantool.graph.outputs import with_outputs
from quantool.report.detail import LayerRow, LayersInfo
from quantool.runtime import Loadable, Optimization, tap
from quantool.schema import Feed, NodeFact, Note
from quantool.verify.layers import Counterpart, LayerNoise, at_inputs, layers, matched_layers

#: samples that both models run, and what the tapped tensors of one run of one model may hold
MOST_FEEDS: Final = 4
MOST_BYTES: Final = 256 * 1024 * 1024
#: larger models would be held twice, and run unoptimized
LARGEST_BYTES: Final = 1_000_000_000
#: a tensor whose shape no inference tells counts as this much
_UNKNOWN_BYTES: Final = 1024 * 1024


def measure_layers(
    float_model: Loadable,
    quantized: Loadable,
    feeds: Sequence[Feed],
    *,
    size_bytes: int,
    runs_as: Mapping[str, str],
) -> tuple[LayersInfo | None, tuple[Note, ...]]:
    """Each layer's SQNR, and what could not be measured; None where nothing could.

    Both run without the runtime's optimizations, as their graphs say, so that what is not quantized is equal.
    size_bytes: of the float model;
    runs_as: node -> integer or float, where that is known.
    """
    if size_bytes > LARGEST_BYTES or not feeds:
        return None, () if not feeds else (_not_measured("the model is larger than 1 GB"),)
    try:
        return _measured(float_model, quantized, feeds, runs_as)
    except QuantoolError as error:  # a tapped form that does not load or run spoils the detail, not the result
        return None, (_not_measured(error.what),)


def _measured(
    float_model: Loadable, quantized: Loadable, feeds: Sequence[Feed], runs_as: Mapping[str, str]
) -> tuple[LayersInfo, tuple[Note, ...]]:
    chosen = [feeds[i * len(feeds) // min(MOST_FEEDS, len(feeds))] for i in range(min(MOST_FEEDS, len(feeds)))]
    before, after = outline(float_model.model), outline(quantized.model)
    candidates = layers(before.nodes)
    matched = matched_layers(before.nodes, after.nodes, after.values)
    affordable = _affordable(float_model, matched, chosen[0])
    noise = _noise(float_model, quantized, affordable, chosen)
    rows = _rows(before, noise.decibels(), runs_as)
    info = LayersInfo(samples=len(chosen), candidates=len(candidates), measured=len(rows), rows=rows)
    left_out = len(matched) - len(affordable)
    return info, (_too_large(left_out, len(matched)),) if left_out else ()


def _noise(
    float_model: Loadable, quantized: Loadable, matched: Mapping[str, Counterpart], feeds: Sequence[Feed]
) -> LayerNoise:
    """Run both models sample by sample; one sample's tensors of both are in memory at a time."""
    noise = LayerNoise()
    if not matched:
        return noise
    plain = [replace(model, optimization=Optimization.DISABLED) for model in (float_model, quantized)]
    names = list(dict.fromkeys(answer.name for answer in matched.values()))
    exact = tap(plain[0], feeds, groups=[list(matched)], with_outputs=with_outputs)
    found = tap(plain[1], feeds, groups=[names], with_outputs=with_outputs)
    for (_, reference), (_, test) in zip(exact, found, strict=True):
        noise.add(reference, test, matched)
    return noise


def _affordable(model: Loadable, matched: Mapping[str, Counterpart], feed: Feed) -> dict[str, Counterpart]:
    """The layers whose tensors fit into memory together: all, or every second, third ... of them along the graph."""
    inputs = {name: value.shape for name, value in feed.items() if isinstance(value, np.ndarray)}
    content = model.model if isinstance(model.model, bytes) else model.model.read_bytes()
    shapes = graph.shapes_for(content, inputs)
    sizes = {name: 4 * math.prod(shapes[name]) if name in shapes else _UNKNOWN_BYTES for name in matched}
    step = 1
    while True:
        names = [name for name in matched if sizes[name] <= MOST_BYTES][::step]
        if sum(sizes[name] for name in names) <= MOST_BYTES:
            return {name: matched[name] for name in names}
        step += 1


def _rows(before: Outline, measured: Mapping[str, float], runs_as: Mapping[str, str]) -> tuple[LayerRow, ...]:
    return tuple(
        LayerRow(
            node=_name(node),
            op_type=node.op_type,
            tensor=node.outputs[0],
            sqnr_db=_finite(measured[node.outputs[0]]),
            exact=measured[node.outputs[0]] == math.inf,
            input_sqnr_db=_finite(arriving),
            runs_as=runs_as.get(_name(node)),
        )
        for node, arriving in at_inputs(before.nodes, before.constants, measured)
    )


def _name(node: NodeFact) -> str:
    return node.name or f"{node.op_type}:{node.outputs[0]}"


def _finite(decibels: float) -> float | None:
    return decibels if math.isfinite(decibels) else None


def _not_measured(why: str) -> Note:
    return Note(
        code="layers-not-measured",
        what=f"SQNR along the graph was not measured: {why}",
        where="the report",
        fix="See the figures of the outputs.",
    )


def _too_large(left_out: int, whole: int) -> Note:
    return Note(
        code="layers-left-out",
        what=f"SQNR was not measured at {left_out} of {whole} layers, whose tensors do not fit into 256 MB together",
        where="the report",
        fix="Give smaller samples with --verify-data.",
    )
