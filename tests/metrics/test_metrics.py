"""Each metric against a value by hand, and intervals against what they must do."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from types import ModuleType

import numpy as np
import pytest

from quantool.errors import DataError
from quantool.metrics import METRICS, Measured, Paired, Sample, find, is_metric
from quantool.schema import AnyArray

SCORES = np.array([[3, 2, 1, 0, 0, 0], [0, 1, 2, 3, 4, 5], [1, 5, 0, 0, 0, 2]], np.float32)


def value(name: str, scores: AnyArray, labels: AnyArray | None, reference: AnyArray | None = None) -> float:
    """A metric of one output against labels or the float model's output."""
    given: Mapping[str, AnyArray] = {} if labels is None else {"labels": labels}
    exact = scores if reference is None else reference
    sample = Sample(feed={}, labels=given, outputs={"y": scores}, reference={"y": exact})
    metric = find(name)
    return float(metric.value(metric.parts(sample).sum(0)))


def test_top1_and_top5_count_labels_among_the_largest_scores() -> None:
    labels = np.array([0, 0, 5])
    assert value("top1", SCORES, labels) == pytest.approx(1 / 3)
    assert value("top5", SCORES, labels) == pytest.approx(2 / 3)  # the second row has its label in the sixth place
    assert value("top1", SCORES[None], labels[None]) == pytest.approx(1 / 3)  # a row of three positions
    assert value("top1", np.moveaxis(SCORES[None], -1, 1), labels[None]) == pytest.approx(1 / 3)  # classes on axis 1
    assert value("top1", SCORES[:1], np.array(0)) == 1.0


def test_f1_and_iou_are_means_over_the_classes_that_occur() -> None:
    labels = np.array([0, 5, 5])
    # class 0: 1 right; class 1: 1 wrongly said; class 5: 1 right, 1 missed
    assert value("f1", SCORES, labels) == pytest.approx((1 + 0 + 2 / 3) / 3)
    assert value("iou", SCORES, labels) == pytest.approx((1 + 0 + 1 / 2) / 3)


def test_f1_and_iou_of_a_score_for_each_label_say_yes_above_a_half() -> None:
    scores, labels = np.array([[0.9, 0.2], [0.6, 0.7]], np.float32), np.array([[1, 1], [0, 1]])
    assert value("f1", scores, labels) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert value("iou", scores, labels) == pytest.approx(2 / 4)


def test_iou_of_an_image_counts_pixels() -> None:
    scores = np.zeros((1, 2, 2, 2), np.float32)
    scores[0, 1, 0] = 1.0  # the upper row is class 1
    labels = np.array([[[1, 0], [0, 0]]])
    assert value("iou", scores, labels) == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_cer_counts_edits_after_repeats_and_blanks_are_gone() -> None:
    steps = [1, 1, 0, 1, 2, 0, 3]  # reads 1 1 2 3
    scores = np.eye(4, dtype=np.float32)[steps]
    assert value("cer", scores[None], np.array([[1, 1, 2, 3]])) == 0.0
    assert value("cer", scores[None], np.array([[1, 2, 2, 3, 0]])) == 1 / 4  # 0 fills up
    assert value("cer", scores[:, None], np.array([[3, 1, 1, 2, 3]])) == 1 / 5  # steps first


def test_what_needs_no_labels_compares_with_the_float_model() -> None:
    exact, found = np.array([[3.0, 4.0], [1.0, 0.0]], np.float32), np.array([[4.0, 3.0], [1.0, 0.0]], np.float32)
    assert value("cosine", found, None, exact) == pytest.approx(25 / 26)
    assert value("sqnr", found, None, exact) == pytest.approx(10 * math.log10(26 / 2))
    assert value("mse", found, None, exact) == pytest.approx(2 / 4)
    assert value("top1-agreement", found, None, exact) == 1 / 2
    assert value("top5-agreement", found, None, exact) == 1.0
    assert value("sqnr", exact, None, exact) == math.inf


def test_labels_of_a_named_output_belong_to_it() -> None:
    outputs = {"a": SCORES, "b": -SCORES}
    sample = Sample(feed={}, labels={"labels_b": np.array([3, 0, 2])}, outputs=outputs, reference=outputs)
    assert METRICS["top1"].parts(sample)[:, 0].tolist() == [1, 1, 1]


def test_labels_that_are_missing_or_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="holds no labels"):
        value("top1", SCORES, None)
    with pytest.raises(DataError, match=r"shape \[2\]"):
        value("f1", SCORES, np.array([1, 2]))
    with pytest.raises(DataError, match="shape"):
        value("cer", SCORES, np.array([1, 2, 3]))


def test_a_metric_of_ones_own_is_called_with_outputs_labels_and_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mine")
    vars(module)["score"] = lambda outputs, labels, feed: outputs["y"].sum(-1) + len(labels) + len(feed)
    vars(module)["broken"] = lambda outputs, labels, feed: outputs["z"]
    monkeypatch.setitem(sys.modules, "mine", module)
    assert is_metric("mine:score")
    assert value("mine:score", SCORES, np.arange(3)) == pytest.approx((6 + 15 + 8) / 3 + 1)
    with pytest.raises(DataError, match="KeyError"):
        value("mine:broken", SCORES, None)


# --- pairs ----------------------------------------------------------------------------------------------


def measured(before: list[int], after: list[int], name: str = "top1") -> Measured:
    """Two classes; each row is right (1) or wrong before and after."""
    paired = Paired(find(name))
    for right in zip(before, after, strict=True):
        both = [
            Sample(
                feed={},
                labels={"labels": np.array([1])},
                outputs={"y": np.array([[0.5, hit]], np.float32)},
                reference={"y": np.array([[0.5, right[0]]], np.float32)},
            )
            for hit in right
        ]
        paired.add(*both)
    found = paired.result()
    assert found is not None
    return found


def test_a_drop_is_paired_and_its_interval_is_that_of_the_rows_that_changed() -> None:
    found = measured([1] * 100, [0] * 10 + [1] * 90)
    assert (found.float_value, found.value, found.rows) == (1.0, 0.9, 100)
    assert found.drop == pytest.approx(0.1)
    lost, won = 11 / 102, 1 / 102
    half = 1.959964 * math.sqrt((lost + won - (lost - won) ** 2) / 102)
    assert found.interval == pytest.approx((lost - won - half, lost - won + half))
    assert found.resolved
    assert found.tells(0.01)
    assert not found.tells(0.1)


def test_rows_that_do_not_change_leave_what_their_number_cannot_rule_out() -> None:
    found = measured([1, 0] * 30, [1, 0] * 30)
    assert (found.drop, found.interval) == (0.0, (-0.05, 0.05))
    assert not found.resolved
    assert measured([1], [0]).interval is None
    assert Paired(find("top1")).result() is None


def test_other_metrics_are_resampled_the_same_way_each_time() -> None:
    before, after = [1] * 60, [0] * 20 + [1] * 40
    first, second = (measured(before, after, "f1") for _ in range(2))
    assert first == second
    assert first.drop is not None
    assert first.interval is not None
    assert 0 < first.interval[0] < first.drop < first.interval[1] < 1


def test_less_is_better_of_errors_and_sqnr_has_no_drop() -> None:
    mse, sqnr = (measured([1] * 20, [0] * 5 + [1] * 15, name) for name in ("mse", "sqnr"))
    assert mse.drop == pytest.approx(5 / 40)
    assert mse.interval is not None
    assert mse.interval[0] > 0
    assert sqnr.drop is None
    assert sqnr.interval is not None
    assert sqnr.interval[0] < sqnr.value < sqnr.interval[1]


@pytest.mark.parametrize("name", ["cosine", "sqnr", "mse"])
@pytest.mark.parametrize(
    ("scores", "exact", "words"),
    [
        (np.arange(3), np.arange(3), "no float output"),
        (SCORES[:2], SCORES, r"'y' has shape \[2, 6\], and \[3, 6\] in the float model"),
        (SCORES[:1], SCORES, r"'y' has shape \[1, 6\]"),
    ],
    ids=["integers", "fewer rows", "a row that would be spread"],
)
def test_outputs_that_cannot_be_compared_are_refused(name: str, scores: AnyArray, exact: AnyArray, words: str) -> None:
    with pytest.raises(DataError, match=f"metric-output: .*{words}"):
        value(name, scores, None, exact)
