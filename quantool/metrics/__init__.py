"""Metrics of a task: how good outputs are, sample by sample, and how sure a difference between two models is."""

from __future__ import annotations

from quantool.metrics.named import METRICS, Metric, find, is_metric
from quantool.metrics.paired import Measured, Paired
from quantool.metrics.parts import LABELS_FIX, Sample

__all__ = ["LABELS_FIX", "METRICS", "Measured", "Metric", "Paired", "Sample", "find", "is_metric"]
