"""The bed's own instruments, on inputs whose answer is plain; these need no download."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.real import boxes, incumbent, measure, speech, wordpiece
from tests.real.incumbent import Outcome
from tests.real.measure import Figures
from tests.real.model import Feed, RealModel, Run, top1_accuracy
from tests.real.models import layout, ppocr_rec


def _model(*, higher_is_better: bool = True) -> RealModel:
    return RealModel(
        name="stand-in",
        path=Path("stand-in.onnx"),
        calib=list,
        eval_feeds=list,
        evaluate=lambda run: 0.0,
        metric="accuracy",
        higher_is_better=higher_is_better,
        resolution=0.01,
    )


def _outcome(config: str, metric: float, sqnr_db: float, *, size_ratio: float = 0.3) -> Outcome:
    figures = Figures(metric=metric, sqnr_db=sqnr_db, speedup=1.0, size_ratio=size_ratio)
    return Outcome(config=config, figures=figures, error=None)


def _runs(**outputs: NDArray[np.float32] | NDArray[np.int64]) -> Run:
    return lambda feed: dict(outputs)


def test_components_join_what_touches_at_a_corner_and_keep_apart_what_does_not() -> None:
    picture = """
        ##....#
        ..#...#
        ......#
        #.#....
        ###..##
    """
    mask = np.array([[cell == "#" for cell in row] for row in picture.split()])
    assert sorted(boxes.components(mask)) == [(0, 0, 3, 2), (0, 3, 3, 5), (5, 4, 7, 5), (6, 0, 7, 3)]


def test_components_of_random_masks_equal_a_flood_fill() -> None:
    rng = np.random.default_rng(5)
    for density in (0.2, 0.4, 0.5, 0.7):
        mask = rng.random((24, 31)) < density
        assert sorted(boxes.components(mask)) == sorted(_flood_fill(mask))


def _flood_fill(mask: NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    left = {(int(y), int(x)) for y, x in np.argwhere(mask)}
    found = []
    while left:
        edge, region = [left.pop()], []
        while edge:
            y, x = edge.pop()
            region.append((y, x))
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= near
            edge += near
        rows, columns = zip(*region, strict=True)
        found.append((min(columns), min(rows), max(columns) + 1, max(rows) + 1))
    return found


def test_a_text_map_gives_its_line_grown_back() -> None:
    scores = np.zeros((40, 60), np.float32)
    scores[10:20, 10:50] = 0.9
    (box,) = boxes.text_boxes(scores)
    grow = 40 * 10 * boxes.UNCLIP_RATIO / 100
    assert box == (10 - grow, 10 - grow, 50 + grow, 20 + grow)


def test_one_found_box_matches_one_line_of_the_truth_only() -> None:
    line = (0.0, 0.0, 10.0, 4.0)
    assert boxes.matches([line], [line, line]) == 1
    assert boxes.matches([line, (20.0, 0.0, 30.0, 4.0)], [line]) == 1
    assert boxes.matches([(0.0, 3.0, 10.0, 7.0)], [line]) == 0


def test_sqnr_is_that_of_the_worst_float_output() -> None:
    signal = np.full((4,), 10.0, np.float32)
    expected = _runs(good=signal, bad=signal, ids=np.arange(4), silent=np.zeros(4, np.float32))
    got = _runs(good=signal + np.float32(0.125), bad=signal + np.float32(1.0), ids=np.zeros(4, np.int64), silent=signal)
    feeds: list[Feed] = [{}, {}]
    # 10 log10(10^2 / 1^2) = 20, and powers of ten are exact in float64
    assert measure.worst_sqnr(expected, got, feeds) == 20.0
    assert measure.worst_sqnr(expected, expected, feeds) == math.inf


def test_the_incumbents_best_has_the_best_metric_then_the_best_sqnr() -> None:
    found = [_outcome("a", 0.9, 30.0), _outcome("b", 0.95, 10.0), _outcome("c", 0.95, 12.0)]
    failed = Outcome(config="d", figures=None, error="does not load")
    best = incumbent.best(_model(), [*found, failed])
    assert best is not None
    assert best.config == "c"
    lower = incumbent.best(_model(higher_is_better=False), [*found, failed])
    assert lower is not None
    assert lower.config == "a"
    assert incumbent.best(_model(), [failed]) is None


def test_an_outcome_that_saves_nothing_is_not_the_incumbents_best() -> None:
    idle = _outcome("idle", 0.99, 80.0, size_ratio=0.95)
    best = incumbent.best(_model(), [idle, _outcome("small", 0.9, 20.0)])
    assert best is not None
    assert best.config == "small"
    assert incumbent.best(_model(), [idle]) == idle


@pytest.mark.parametrize(("higher_is_better", "gain"), [(True, 0.5), (False, -0.5)])
def test_gain_is_positive_where_the_value_is_better(*, higher_is_better: bool, gain: float) -> None:
    assert _model(higher_is_better=higher_is_better).gain(1.0, 0.5) == gain


def test_accuracy_counts_the_feeds_whose_largest_score_is_at_the_label() -> None:
    feeds: list[Feed] = [{"x": np.eye(3, dtype=np.float32)[index][None]} for index in (0, 1, 2, 2)]
    assert top1_accuracy(lambda feed: {"y": feed["x"]}, feeds, [0, 1, 2, 0], output="y") == 0.75


def test_wordpiece_splits_greedily_and_marks_both_ends() -> None:
    # "license" and "." stand whole in the vocabulary; [CLS] is 101 and [SEP] 102 there.
    ids = wordpiece.tokenize("License.")
    assert (ids[0], ids[-1]) == (101, 102)
    assert len(ids) == 4
    assert wordpiece.tokenize("LICENSE .") == ids


def test_wordpiece_names_the_word_it_has_no_piece_for() -> None:
    with pytest.raises(KeyError, match="☃"):
        wordpiece.tokenize("a ☃ here")


def test_windows_carry_the_end_of_the_chunk_before() -> None:
    samples = np.arange(3 * speech.CHUNK, dtype=np.float32)
    rows = speech.windows(samples, context=64)
    assert rows.shape == (3, 64 + speech.CHUNK)
    assert np.array_equal(rows[0], np.concatenate((np.zeros(64, np.float32), samples[: speech.CHUNK])))
    assert np.array_equal(rows[2], samples[2 * speech.CHUNK - 64 :])


def test_short_gaps_belong_to_the_speech_around_them() -> None:
    loud = np.array([0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0], np.float32)
    truth = speech.truth(np.repeat(loud, speech.CHUNK))
    assert truth.tolist() == [False, True, True, True, True, True, True, False, False, False, False, True, False]


def test_edits_are_the_least_insertions_deletions_and_replacements() -> None:
    assert ppocr_rec.edits("kitten", "sitting") == 3
    assert ppocr_rec.edits("", "abc") == ppocr_rec.edits("abc", "") == 3
    assert ppocr_rec.edits("License", "License") == 0
    assert ppocr_rec.edits("abcabc", "bcabca") == 2


def test_a_detector_finds_the_box_that_its_heads_spell() -> None:
    outputs = {}
    for stride, (scores, sides) in layout.HEADS.items():
        cells = -(-layout.HEIGHT // stride) * -(-layout.WIDTH // stride)
        outputs[scores] = np.zeros((1, cells, 10), np.float32)
        outputs[sides] = np.full((1, cells, 32), -50.0, np.float32)
    # Cell (2, 3) of stride 32, sides of 1, 2, 3 and 4 strides; its neighbour says the same box with a lower score.
    scores, sides = layout.HEADS[32]
    for row, column, score in ((2, 3, 0.9), (2, 4, 0.5)):
        cell = row * -(-layout.WIDTH // 32) + column
        outputs[scores][0, cell, 1] = score
        outputs[sides][0, cell].reshape(4, 8)[range(4), [1 + column - 3, 2, 3 - column + 3, 4]] = 50.0
    ((score, kind, box),) = layout.detect(outputs)
    assert (kind, box) == ("title", (112.0 - 32, 80.0 - 64, 112.0 + 96, 80.0 + 128))
    assert math.isclose(score, 0.9, rel_tol=1e-6)
