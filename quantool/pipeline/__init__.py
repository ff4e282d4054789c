"""The pipeline: composes the stages; the only package that knows their order."""

from __future__ import annotations

from quantool.pipeline.calibrate import calibrate
from quantool.pipeline.compare import compare
from quantool.pipeline.explain import explain
from quantool.pipeline.inspect import inspect, inspect_stats
from quantool.pipeline.merge import merge
from quantool.pipeline.quantize import quantize
from quantool.pipeline.tensor import tensor

__all__ = ["calibrate", "compare", "explain", "inspect", "inspect_stats", "merge", "quantize", "tensor"]
