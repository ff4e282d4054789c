"""One way to quantize a model, as the choice by measurement compares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from calibrators.statistic import Statistic
from quantool.pipeline.choice.rescale import Origin
from quantool.pipeline.choice.round_weights import Rounding
from quantool.pipeline.source import FloatModel
from quantool.schema import Parameters, Plan, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to quantize the model.

    label: as a report names it; source: the float graph, rescaled or not; stats: its statistics; calibrator: what the
    ranges come from; allowed: nodes before a Log that are quantized all the same; origins: of tensors that were
    rescaled since calibration; roundings: node -> how its weight is rounded, where not to nearest.
    """

    label: str
    source: FloatModel
    stats: Mapping[str, Statistic]
    calibrator: str
    allowed: frozenset[str]
    plan: Plan
    ranges: Mapping[str, Range]
    parameters: Parameters
    origins: Mapping[str, Origin] = field(default_factory=lambda: MappingProxyType({}))
    roundings: Mapping[str, Rounding] = field(default_factory=lambda: MappingProxyType({}))


#: (float graph, statistics, calibrator, allowed nodes, nodes that lose too much) -> plan and ranges
Planner = Callable[
    [FloatModel, Mapping[str, Statistic], str, frozenset[str], frozenset[str]], tuple[Plan, Mapping[str, Range]]
]
#: a candidate like another one, with these nodes in float
InFloat = Callable[[Candidate, frozenset[str]], Candidate]
