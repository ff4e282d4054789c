"""The metrics by name, and those that a user writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from quantool.data.function import imported, names_callable
from quantool.errors import DataError, QuantoolError
from quantool.metrics import language, parts
from quantool.metrics.parts import Parts, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. Its value follows from the sums of its parts over rows: independent samples.

    parts: float64[rows, k] of a sample; value: of sums, float64[..., k]. higher: more is better. needs_labels: else
    outputs are compared with the float model's. share: from 0 to 1, so that no row moves it by more than its share.
    """

    name: str
    parts: Callable[[Sample], Parts]
    value: Callable[[Parts], Parts]
    higher: bool = True
    needs_labels: bool = True
    share: bool = True


def _top(count: int) -> Callable[[Sample], Parts]:
    return lambda sample: parts.top(sample, count)


def _agreement(count: int) -> Callable[[Sample], Parts]:
    return lambda sample: parts.agreement(sample, count)


METRICS: Final[Mapping[str, Metric]] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            Metric(name="top1", parts=_top(1), value=parts.mean),
            Metric(name="top5", parts=_top(5), value=parts.mean),
            Metric(name="f1", parts=parts.confusion, value=parts.f1),
            Metric(name="iou", parts=parts.confusion, value=parts.iou),
            Metric(name="cer", parts=parts.edits, value=parts.mean, higher=False),
            Metric(
                name="perplexity",
                parts=language.losses,
                value=language.perplexity,
                higher=False,
                needs_labels=False,
                share=False,
            ),
            Metric(
                name="kl",
                parts=language.divergences,
                value=language.divergence,
                higher=False,
                needs_labels=False,
                share=False,
            ),
            Metric(name="top1-agreement", parts=_agreement(1), value=parts.mean, needs_labels=False),
            Metric(name="top5-agreement", parts=_agreement(5), value=parts.mean, needs_labels=False),
            Metric(name="cosine", parts=parts.cosines, value=parts.least_mean, needs_labels=False, share=False),
            Metric(name="sqnr", parts=parts.powers, value=parts.sqnr, needs_labels=False, share=False),
            Metric(name="mse", parts=parts.squares, value=parts.mean, higher=False, needs_labels=False, share=False),
        )
    }
)


def is_metric(name: str) -> bool:
    """Whether a text names a metric; a user's own is not imported yet."""
    return name in METRICS or names_callable(name)


def find(name: str) -> Metric:
    """The metric of a name for which `is_metric` holds.

    A user's own is called with the outputs, the labels and the feed of a sample, each a dict from name to array, and
    gives a number or one a row; more is better. Raises DataError where it cannot be imported or fails.
    """
    if name in METRICS:
        return METRICS[name]
    call = imported(name, _failed)

    def own(sample: Sample) -> Parts:
        try:
            found = call(dict(sample.outputs), dict(sample.labels), dict(sample.feed))
            scores = np.asarray(found, np.float64).reshape(-1)
        except Exception as error:  # the user's own code may fail in any way
            raise _failed(name, f"it failed: {type(error).__name__}: {error}") from error
        return np.stack([scores, np.ones_like(scores)], axis=-1)

    return replace(METRICS["top1"], name=name, parts=own, needs_labels=False, share=False)


def _failed(source: str, what: str) -> QuantoolError:
    return DataError(
        "metric-callable",
        what,
        where=f"--metric {source}",
        fix="Name a function of (outputs, labels, feed), each a dict from name to array, that gives a number: more is "
        "better.",
    )
