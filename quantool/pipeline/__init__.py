"""The pipeline: composes the stages; the only package that knows their order."""

from __future__ import annotations

from quantool.pipeline.calibration.calibrate import calibrate
from quantool.pipeline.calibration.merge import merge
from quantool.pipeline.check import check
from quantool.pipeline.compare import compare
from quantool.pipeline.explain import explain
from quantool.pipeline.inspect import inspect, inspect_stats
from quantool.pipeline.quantize import quantize
from quantool.pipeline.tensors.tensor import tensor
from quantool.pipeline.tuning.recipes import check_recipe, export_recipe, show_recipe
from quantool.pipeline.tuning.sensitivity import sensitivity
from quantool.pipeline.tuning.tune import tune

__all__ = [
    "calibrate",
    "check",
    "check_recipe",
    "compare",
    "explain",
    "export_recipe",
    "inspect",
    "inspect_stats",
    "merge",
    "quantize",
    "sensitivity",
    "show_recipe",
    "tensor",
    "tune",
]
