"""Labels beside inputs: cut like them, known to feeds, invisible to models and hashes."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from quantool.data import DataOptions, InputSpec, labels_of, open_data, split_feeds
from quantool.data.held_out import content_hash
from quantool.errors import DataError

INPUTS = [InputSpec(name="x", dtype="float32", shape=("n", 3))]
X = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_labels_of_rows_are_cut_like_the_inputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X, labels=np.arange(4), label_box=np.arange(8).reshape(4, 2))
    feeds = list(open_data(tmp_path / "d.npz", INPUTS, DataOptions(labels=True)))
    assert [list(feed) for feed in feeds] == [["x"]] * 4
    assert [labels_of(feed)["labels"].tolist() for feed in feeds] == [[0], [1], [2], [3]]
    assert labels_of(feeds[2])["label_box"].tolist() == [[4, 5]]
    pairs = list(open_data(tmp_path / "d.npz", INPUTS, DataOptions(labels=True, batch_size=2)))
    assert [labels_of(feed)["labels"].tolist() for feed in pairs] == [[0, 1], [2, 3]]


def test_labels_are_not_read_unless_asked_for(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X, labels=np.arange(3))  # of another length, which then does not matter
    assert [labels_of(feed) for feed in open_data(tmp_path / "d.npz", INPUTS)] == [{}] * 4
    with pytest.raises(DataError, match="'x' makes 4 feeds and 'labels' makes 3"):
        open_data(tmp_path / "d.npz", INPUTS, DataOptions(labels=True))


def test_labels_survive_the_choice_of_what_verifies_and_change_no_hash() -> None:
    source = [{"x": X[i % 4 : i % 4 + 1] + i, "labels": np.array([i])} for i in range(20)]
    feeds = list(open_data(source, INPUTS, DataOptions(labels=True)))
    plain = list(open_data(source, INPUTS))
    assert [content_hash(feed) for feed in feeds] == [content_hash(feed) for feed in plain]
    split = split_feeds(feeds)
    list(split)
    for feed in map(deepcopy, split.verification):
        (label,) = labels_of(feed)["labels"]
        assert (feed["x"] == source[label]["x"]).all()


def test_an_input_that_is_called_labels_is_an_input() -> None:
    inputs = [InputSpec(name="labels", dtype="float32", shape=("n", 3))]
    (feed,) = open_data([{"labels": X}], inputs, DataOptions(labels=True))
    assert list(feed) == ["labels"]
    assert labels_of(feed) == {}
