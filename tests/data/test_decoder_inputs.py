"""What a causal language model takes beside token ids is filled in, or the error says why it cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from quantool.data import DataOptions, InputSpec, open_data
from quantool.errors import DataError
from quantool.schema import AnyArray

IDS = InputSpec(name="input_ids", dtype="int64", shape=("batch", "tokens"))
MASK = InputSpec(name="attention_mask", dtype="int64", shape=("batch", "all"))
POSITIONS = InputSpec(name="position_ids", dtype="int32", shape=("batch", "tokens"))
BRANCH = InputSpec(name="use_cache_branch", dtype="bool", shape=(1,))
KEY = InputSpec(name="past_key_values.0.key", dtype="float16", shape=("batch", 2, "past", 8))
BOTH = InputSpec(name="past_0", dtype="float32", shape=(2, "batch", 3, "past", 4))
DECODER = (IDS, MASK, POSITIONS, KEY, BRANCH)


def lines(folder: Path, *entries: object) -> Path:
    path = folder / "tokens.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def feeds(source: object, *inputs: InputSpec) -> list[dict[str, AnyArray]]:
    return list(open_data(source, inputs, DataOptions()))  # type: ignore[arg-type]


@pytest.mark.parametrize("entry", [[5, 6, 7], {"input_ids": [5, 6, 7]}, {"input_ids": [[5, 6, 7]]}], ids=str)
def test_a_line_of_ids_becomes_a_feed_with_an_empty_cache(tmp_path: Path, entry: object) -> None:
    (feed,) = feeds(lines(tmp_path, entry), *DECODER)
    assert {name: (array.dtype.name, array.tolist()) for name, array in feed.items() if "past" not in name} == {
        "input_ids": ("int64", [[5, 6, 7]]),
        "attention_mask": ("int64", [[1, 1, 1]]),
        "position_ids": ("int32", [[0, 1, 2]]),
        "use_cache_branch": ("bool", [False]),
    }
    assert (feed[KEY.name].shape, feed[KEY.name].dtype) == ((1, 2, 0, 8), np.float16)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (None, "not-an-array"),
        ({"a": 1}, "not-an-array"),
        ("text", "wrong-rank"),
        ([[[1, 2]]], "wrong-rank"),
        (["a"], "wrong-type"),
        ([1.5], "wrong-type"),
        ([], "no-tokens: sample 0 .line 1. has no token ids"),
    ],
    ids=str,
)
@pytest.mark.parametrize("inputs", [DECODER, (IDS, MASK)], ids=["decoder", "encoder"])
def test_unusable_ids_are_what_the_error_is_about(
    tmp_path: Path, ids: object, words: str, inputs: tuple[InputSpec, ...]
) -> None:
    with pytest.raises(DataError, match=f"^{words}.*'input_ids'"):
        feeds(lines(tmp_path, {"input_ids": ids}), *inputs)


def test_lines_of_other_lengths_are_feeds_of_their_own(tmp_path: Path) -> None:
    found = feeds(lines(tmp_path, [1, 2], [3, 4, 5, 6]), *DECODER)
    assert [feed["position_ids"].tolist() for feed in found] == [[[0, 1]], [[0, 1, 2, 3]]]


def test_key_and_value_in_one_tensor_are_known_too() -> None:
    (feed,) = feeds([{"input_ids": np.ones((2, 5), np.int64)}], IDS, BOTH)
    assert feed["past_0"].shape == (2, 2, 3, 0, 4)


def test_a_bfloat16_cache_is_made_as_bfloat16() -> None:
    key = InputSpec(name="past.0.key", dtype="bfloat16", shape=("batch", 2, "past", 8))
    (feed,) = feeds([{"input_ids": np.ones((1, 5), np.int64)}], IDS, key)
    assert feed["past.0.key"].dtype == ml_dtypes.bfloat16


def test_a_given_cache_makes_mask_positions_and_branch_those_of_a_later_step() -> None:
    given = {"input_ids": np.array([[9]]), KEY.name: np.zeros((1, 2, 4, 8), np.float16)}
    (feed,) = feeds([given], *DECODER)
    assert feed["attention_mask"].tolist() == [[1] * 5]
    assert feed["position_ids"].tolist() == [[4]]
    assert feed["use_cache_branch"].tolist() == [True]


def test_positions_do_not_count_padding() -> None:
    given = {"input_ids": np.array([[0, 0, 7, 8]]), "attention_mask": np.array([[0, 0, 1, 1]])}
    (feed,) = feeds([given], *DECODER)
    assert feed["position_ids"].tolist() == [[0, 0, 0, 1]]
    assert feed["attention_mask"].tolist() == [[0, 0, 1, 1]]


def test_what_the_data_holds_is_not_replaced() -> None:
    given = {
        "input_ids": np.array([[1, 2]]), "attention_mask": np.array([[0, 1]]), "position_ids": np.array([[7, 8]]),
        "use_cache_branch": np.array([True]), KEY.name: np.ones((1, 2, 0, 8), np.float16),
    }  # fmt: skip
    (feed,) = feeds([given], *DECODER)
    for name, array in given.items():
        np.testing.assert_array_equal(feed[name], array)


def test_the_report_names_what_was_filled_in(tmp_path: Path) -> None:
    source = open_data(lines(tmp_path, [1, 2]), DECODER, DataOptions())
    assert source.description.endswith(
        "filled in: attention_mask, position_ids, use_cache_branch, past_key_values.0.key"
    )
    full = open_data(lines(tmp_path, {"x": [1.0]}), [InputSpec(name="x", dtype="float32", shape=(1,))], DataOptions())
    assert "filled" not in full.description


@pytest.mark.parametrize(
    "shape",
    [("batch", "heads", "past", "size"), ("batch", 2, "past", "size"), ("batch", 2, 16, 8), ("a", "b")],
    ids=str,
)
def test_a_cache_of_unknown_sizes_is_refused_with_the_way_out(tmp_path: Path, shape: tuple[int | str, ...]) -> None:
    key = InputSpec(name="past_key_values.0.key", dtype="float32", shape=shape)
    with pytest.raises(DataError, match=r"cache-unknown: .*'past_key_values\.0\.key'.*Export the model with"):
        feeds(lines(tmp_path, [1, 2]), IDS, key)


def test_the_rows_of_a_model_without_cache_may_be_padded_so_that_only_flat_ids_get_a_mask(tmp_path: Path) -> None:
    (feed,) = feeds(lines(tmp_path, [1, 2]), IDS, MASK)
    assert feed["attention_mask"].tolist() == [[1, 1]]
    with pytest.raises(DataError, match="missing-input"):
        feeds([{"input_ids": np.array([[1, 2]])}], IDS, MASK)


def test_several_files_of_ids_follow_one_another(tmp_path: Path) -> None:
    first, second = (lines(tmp_path, [number, 2]) for number in (1, 1))
    assert len(feeds([first, second], *DECODER)) == 2


def test_other_models_are_left_alone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Expected `object`"):
        feeds(lines(tmp_path, [1, 2]), InputSpec(name="x", dtype="float32", shape=(2,)))


def test_random_data_of_a_decoder_is_random_token_ids_and_what_follows_from_them() -> None:
    found = feeds("random", *DECODER)
    assert len(found) == 8
    assert {feed["attention_mask"].shape == feed["input_ids"].shape for feed in found} == {True}
    assert {feed["position_ids"].tolist() == [[0]] for feed in found} == {True}
    assert {feed[KEY.name].shape for feed in found} == {(1, 2, 0, 8)}
