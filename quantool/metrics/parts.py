"""What a sample adds to a metric: parts whose sums over samples give its value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quantool.errors import DataError
from quantool.schema import AnyArray, Feed

Parts: TypeAlias = NDArray[np.float64]

#: a score above this says yes, where a head has one score a label
YES: Final = 0.5
#: what to do where labels are missing
LABELS_FIX: Final = (
    "Add an array 'labels' beside the inputs, or use a metric without labels: top1-agreement, cosine, sqnr."
)
#: the symbol between symbols in what a CTC head writes, and what fills labels up
BLANK: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One feed, the labels beside it, what the model made of it, and what the float model did."""

    feed: Feed
    labels: Mapping[str, AnyArray]
    outputs: Mapping[str, AnyArray]
    reference: Mapping[str, AnyArray]


# --- with labels ----------------------------------------------------------------------------------------


def top(sample: Sample, count: int) -> Parts:
    """Rows x (labels among the largest scores, labels)."""
    scores, labels = _classified(sample)
    found = _hits(scores, labels, count).reshape(len(labels), -1) if labels.ndim else _hits(scores, labels, count)
    return np.stack([found.sum(-1), np.full(len(found), found.shape[-1])], axis=-1).astype(np.float64)


def _hits(scores: AnyArray, labels: AnyArray, count: int) -> AnyArray:
    """Whether each label is among the largest scores of the last axis."""
    most = min(count, scores.shape[-1])
    best = (
        np.argmax(scores, axis=-1)[..., None]
        if most == 1
        else np.argsort(-scores.astype(np.float64), axis=-1, kind="stable")
    )
    return np.asarray((best[..., :most] == labels[..., None]).any(-1))


def confusion(sample: Sample) -> Parts:
    """Rows x classes x (right, wrongly said, missed), flat; a head with one score a label has one class."""
    name, scores, labels = _paired(sample)
    if labels.size == scores.size:
        said, true = (array.astype(np.float64).reshape(labels.shape) > YES for array in (scores, labels))
        counts = [said & true, said & ~true, ~said & true]
        return np.stack([c.reshape(len(labels), -1).sum(-1) for c in counts], axis=-1).astype(np.float64)
    scores, labels = _by_class(name, scores, labels)
    classes = np.arange(scores.shape[-1])
    said = np.argmax(scores, axis=-1).reshape(len(labels), -1, 1) == classes
    true = labels.reshape(len(labels), -1, 1) == classes
    counts = [(said & true).sum(1), (said & ~true).sum(1), (~said & true).sum(1)]
    return np.stack(counts, axis=-1).reshape(len(labels), -1).astype(np.float64)


def f1(sums: Parts) -> Parts:
    """Mean over the classes that occur of 2 right / (2 right + wrongly said + missed)."""
    right, wrong, missed = _counts(sums)
    return _mean_of_classes(2 * right, 2 * right + wrong + missed)


def iou(sums: Parts) -> Parts:
    """Mean over the classes that occur of right / (right + wrongly said + missed)."""
    right, wrong, missed = _counts(sums)
    return _mean_of_classes(right, right + wrong + missed)


def edits(sample: Sample) -> Parts:
    """Rows x (edits from what a CTC head reads to the label, symbols of the label)."""
    name, scores, labels = _paired(sample)
    if labels.ndim != 2 or scores.ndim != 3 or len(labels) not in scores.shape[:2]:
        raise _other_shape(name, scores, labels, "scores [rows, steps, symbols] and labels [rows, symbols]")
    if scores.shape[0] != len(labels):
        scores = np.swapaxes(scores, 0, 1)
    rows = []
    for row, label in zip(np.argmax(scores, axis=-1), labels, strict=True):
        read = [int(symbol) for symbol, _ in groupby(row) if symbol != BLANK]
        wanted = [int(symbol) for symbol in label if symbol > BLANK]
        rows.append((_distance(read, wanted), len(wanted)))
    return np.asarray(rows, np.float64)


def _distance(read: list[int], wanted: list[int]) -> int:
    """Insertions, deletions and replacements that make one of the other (Levenshtein)."""
    costs = list(range(len(wanted) + 1))
    for i, symbol in enumerate(read, start=1):
        before, costs[0] = costs[0], i
        for j, other in enumerate(wanted, start=1):
            before, costs[j] = costs[j], min(costs[j] + 1, costs[j - 1] + 1, before + (symbol != other))
    return costs[-1]


# --- against the float model ----------------------------------------------------------------------------


def agreement(sample: Sample, count: int) -> Parts:
    """One row: (largest float scores that are among the largest, their number)."""
    _, name = chosen_output(sample.outputs, "")
    best = np.argmax(sample.reference[name], axis=-1)
    found = _hits(sample.outputs[name], best, count)
    return np.array([[found.sum(), found.size]], np.float64)


def cosines(sample: Sample) -> Parts:
    """One row: the cosine of each output, and 1."""
    row = [float(_cosine(sample.reference[name], array)) for name, array in _floats(sample).items()]
    return np.array([[*row, 1.0]])


def powers(sample: Sample) -> Parts:
    """One row: signal and noise of each output."""
    pairs = []
    for name, array in _floats(sample).items():
        exact = sample.reference[name].astype(np.float64)
        pairs += [np.square(exact).sum(), np.square(exact - array.astype(np.float64)).sum()]
    return np.array([pairs], np.float64)


def squares(sample: Sample) -> Parts:
    """One row: (squared error, elements), all outputs together."""
    found = powers(sample)
    return np.array([[found[0, 1::2].sum(), sum(array.size for array in _floats(sample).values())]], np.float64)


# --- values of sums -------------------------------------------------------------------------------------


def mean(sums: Parts) -> Parts:
    """Of (sum, count)."""
    return _ratio(sums[..., 0], sums[..., 1])


def least_mean(sums: Parts) -> Parts:
    """Of (a sum for each output, count): that of the worst output."""
    return np.asarray(_ratio(sums[..., :-1], sums[..., -1:]).min(-1))


def sqnr(sums: Parts) -> Parts:
    """10 log10(signal / noise) of the worst output."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = 10.0 * (np.log10(sums[..., 0::2]) - np.log10(sums[..., 1::2]))
    return np.asarray(np.where(np.isnan(found), np.inf, found).min(-1))


def _counts(sums: Parts) -> tuple[Parts, Parts, Parts]:
    return sums[..., 0::3], sums[..., 1::3], sums[..., 2::3]


def _mean_of_classes(above: Parts, below: Parts) -> Parts:
    """Classes that neither occur nor are said do not count."""
    return _ratio(_ratio(above, below).sum(-1), (below > 0).sum(-1))


def _ratio(above: Parts, below: Parts) -> Parts:
    return np.divide(above, below, out=np.zeros(np.broadcast_shapes(above.shape, below.shape)), where=below > 0)


def _cosine(a: AnyArray, b: AnyArray) -> float:
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    norm = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / norm if norm else float(not (x.any() or y.any()))


# --- which output, which labels -------------------------------------------------------------------------


def _floats(sample: Sample) -> dict[str, AnyArray]:
    """The float outputs, each of the shape that the float model gives."""
    found = {name: array for name, array in sample.outputs.items() if array.dtype.kind == "f"}
    if not found:
        raise _incomparable("the model has no float output")
    for name, array in found.items():
        exact = sample.reference[name]
        if array.shape != exact.shape:
            shapes = f"{list(array.shape)}, and {list(exact.shape)} in the float model"
            raise _incomparable(f"the output '{name}' has shape {shapes}")
    return found


def _incomparable(what: str) -> DataError:
    fix = "Name a metric with labels, or a callable of your own."
    return DataError("metric-output", what, where="--metric", fix=fix)


def chosen_output(outputs: Mapping[str, AnyArray], wanted: str) -> tuple[AnyArray, str]:
    """The output that is named, else the first one with classes, else the first."""
    classes = (name for name, array in outputs.items() if array.ndim > 1 and array.dtype.kind == "f")
    name = wanted if wanted in outputs else next(classes, next(iter(outputs)))
    return outputs[name], name


def output_of(labels: str) -> str:
    """The name of the output that labels are for by their own: ``labels_NAME``, else ""."""
    return labels.removeprefix("label").removeprefix("s").lstrip("_-:. ")


def _paired(sample: Sample) -> tuple[str, AnyArray, AnyArray]:
    """The labels' key, scores, and labels with rows along axis 0. ``labels_NAME`` belongs to the output NAME."""
    if not sample.labels:
        raise DataError(
            "labels-missing",
            "the evaluation data holds no labels",
            where="--eval, --verify-data",
            fix=LABELS_FIX,
        )
    key, labels = next(iter(sample.labels.items()))
    array, _ = chosen_output(sample.outputs, output_of(key))
    return key, array, labels.reshape(1) if labels.ndim == 0 else labels


def _classified(sample: Sample) -> tuple[AnyArray, AnyArray]:
    return _by_class(*_paired(sample))


def _by_class(key: str, scores: AnyArray, labels: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Scores with classes last and labels of the shape before them. In images classes are axis 1 if that fits."""
    for axis in (1, -1) if scores.ndim > 3 else (-1, 1) if scores.ndim > 1 else ():
        last = np.moveaxis(scores, axis, -1)
        if labels.size == last[..., 0].size:
            return last, labels.reshape(last.shape[:-1])
    raise _other_shape(key, scores, labels, "one class number for each row of scores")


def _other_shape(key: str, scores: AnyArray, labels: AnyArray, wanted: str) -> DataError:
    return DataError(
        "labels-shape",
        f"the labels '{key}' have shape {list(labels.shape)} and the scores {list(scores.shape)}",
        where=f"labels '{key}'",
        fix=f"Give {wanted}.",
    )
