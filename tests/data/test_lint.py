from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from quantool.data import InputSpec, open_data
from quantool.data.lint import checked_feed
from quantool.errors import DataError

IMAGE = InputSpec(name="image", dtype="float32", shape=("N", 3, 8, 8))
IDS = InputSpec(name="input_ids", dtype="int32", shape=(1, "T"))
MASK = InputSpec(name="mask", dtype="bool", shape=("N",), required=False)
TEXT = InputSpec(name="text", dtype="string", shape=(None,))
GOOD = np.zeros((1, 3, 8, 8), np.float32)
TOKENS = np.array([[1, 2]])


def check(raw, *specs, allow_nonfinite=False):
    return checked_feed(raw, specs or (IMAGE,), sample="sample 7", allow_nonfinite=allow_nonfinite)


def with_value(value):
    array = GOOD.copy()
    array[0, 2, 1, 0] = value
    return array


REFUSED = {
    "missing": (
        {},
        (IMAGE,),
        r"missing-input: sample 7 has no array for input 'image' .*Add an array float32 \(N,3,8,8\)",
    ),
    "misspelt": ({"Image": GOOD}, (IMAGE,), r"missing-input: .*Rename 'Image' to 'image'"),
    "unnamed": ({"arr_0": GOOD}, (IMAGE,), r"missing-input: .*Rename 'arr_0' to 'image'"),
    "unknown": (
        {"image": GOOD, "zebra": GOOD},
        (IMAGE,),
        r"unknown-input: .*'zebra', which is no input .*Remove it. The model takes: image",
    ),
    "nearly known": ({"input_ids": TOKENS, "maks": 1}, (IDS, MASK), r"unknown-input: .*Rename it to 'mask'"),
    "no dict": ([GOOD], (IMAGE,), r"feed-type: sample 7 is a list .*dict from input name"),
    "no batch axis": ({"image": GOOD[0]}, (IMAGE,), r"wrong-rank: .*shape \(3,8,8\).*batch axis: array\[None\]"),
    "extra axis of 1": ({"image": GOOD[None]}, (IMAGE,), r"wrong-rank: .*Remove axis 0"),
    "stacked": ({"image": np.zeros((4, 1, 3, 8, 8), "f4")}, (IMAGE,), r"wrong-rank: .*feeds of their own"),
    "other rank": ({"image": np.zeros(5, "f4")}, (IMAGE,), r"wrong-rank: .*Give an array of 4 axes"),
    "channels last": (
        {"image": GOOD.transpose(0, 2, 3, 1)},
        (IMAGE,),
        r"wrong-size: .*axis 1 is 8, not 3 .*array.transpose\(0, 3, 1, 2\)",
    ),
    "wrong size": (
        {"image": np.zeros((1, 3, 8, 9), "f4")},
        (IMAGE,),
        r"wrong-size: .*\(1,3,8,9\), and the model takes float32 \(N,3,8,8\): axis 3 is 9, not 8 .*'image', sample 7",
    ),
    "integers for floats": (
        {"image": GOOD.astype(np.uint8)},
        (IMAGE,),
        r"wrong-type: the array holds uint8, and the model takes float32 .*Scale the values as in training",
    ),
    "floats for integers": ({"input_ids": TOKENS + 0.5}, (IDS,), r"wrong-type: .*float64.*takes int32"),
    "integers for flags": ({"input_ids": TOKENS, "mask": np.array([1])}, (IDS, MASK), r"wrong-type: .*Give bool"),
    "too large": ({"input_ids": TOKENS + 2**40}, (IDS,), r"out-of-range: the array holds 10995\d+, beyond int32"),
    "too small": ({"input_ids": TOKENS - 2**40}, (IDS,), r"out-of-range: the array holds -10995\d+, beyond int32"),
    "nan": (
        {"image": with_value(np.nan)},
        (IMAGE,),
        r"nonfinite: 1 of 192 elements are NaN or infinite, the first at \(0,2,1,0\) .*--allow-nonfinite",
    ),
    "infinite after the cast": (
        {"image": with_value(1.0).astype(np.float64) * 1e300},
        (IMAGE,),
        r"nonfinite: .* infinite after the cast to float32",
    ),
    "ragged": ({"image": [[1.0], [1.0, 2.0]]}, (IMAGE,), r"not-an-array: the value is no array"),
    "objects": ({"image": np.array([None])}, (IMAGE,), r"not-an-array: .*ndarray of Python objects"),
    "bytes for text": ({"text": np.array([b"a"])}, (TEXT,), r"wrong-type: .*Give an array of str"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_feed_that_does_not_fit_is_refused_with_the_fix(case):
    raw, specs, message = REFUSED[case]
    with pytest.raises(DataError, match=message) as info:
        check(raw, *specs)
    assert info.value.exit_code == 2
    assert "sample 7" in str(info.value)


def test_a_fitting_feed_passes_unchanged():
    feed = check({"image": GOOD})
    assert list(feed) == ["image"]
    assert feed["image"] is GOOD


def test_labels_are_left_out_unless_the_model_takes_them():
    assert list(check({"image": GOOD, "labels": [1], "label_x": [2]})) == ["image"]
    taken = InputSpec(name="labels", dtype="int64", shape=None)
    assert list(check({"image": GOOD, "labels": [1]}, IMAGE, taken)) == ["image", "labels"]


def test_optional_inputs_may_be_absent():
    assert list(check({"input_ids": TOKENS}, IDS, MASK)) == ["input_ids"]


CASTS = {
    "float64": (np.float64, "float32"),
    "float16": (np.float16, "float32"),
    "bfloat16 to float": (ml_dtypes.bfloat16, "float32"),
    "float to bfloat16": (np.float32, "bfloat16"),
    "big endian": (">f4", "float32"),
    "int64 to int8": (np.int64, "int8"),
    "uint8 to int64": (np.uint8, "int64"),
}


@pytest.mark.parametrize("case", CASTS)
def test_widths_are_cast_where_the_values_fit(case):
    given, wanted = CASTS[case]
    x = np.array([1, 2, 100]).astype(given)
    cast = check({"x": x}, InputSpec(name="x", dtype=wanted, shape=("N",)))["x"]
    assert cast.dtype == np.dtype(wanted)
    assert cast.astype(np.float64).tolist() == [1, 2, 100]


def test_bfloat16_that_numpy_stored_without_a_name_is_recognized():
    x = np.array([1.5], ml_dtypes.bfloat16)
    cast = check({"x": x.view("V2")}, InputSpec(name="x", dtype="bfloat16", shape=(1,)))["x"]
    assert cast.dtype == x.dtype
    assert cast[0] == x[0]


def test_nonfinite_values_pass_when_allowed_and_where_the_input_holds_integers():
    assert np.isinf(check({"image": with_value(-np.inf)}, allow_nonfinite=True)["image"]).sum() == 1
    assert check({"input_ids": TOKENS}, IDS)["input_ids"].dtype == np.int32


def test_nan_in_bfloat16_is_found():
    x = np.array([np.nan], ml_dtypes.bfloat16)
    with pytest.raises(DataError, match="nonfinite: 1 of 1"):
        check({"x": x}, InputSpec(name="x", dtype="bfloat16", shape=(1,)))


def test_lists_and_scalars_are_arrays():
    feed = check({"text": ["a", "b"], "rate": 16000}, TEXT, InputSpec(name="rate", dtype="int64", shape=()))
    assert feed["text"].tolist() == ["a", "b"]
    assert feed["rate"].shape == ()


def test_strings_given_as_objects_pass():
    assert check({"text": np.array(["a"], object)}, TEXT)["text"].tolist() == ["a"]


def test_empty_arrays_and_unknown_ranks_are_the_models_business():
    past = InputSpec(name="past", dtype="float32", shape=(1, "P", 4))
    free = InputSpec(name="free", dtype="int8", shape=None)
    feed = check({"past": np.zeros((1, 0, 4)), "free": np.zeros((0, 2), np.int64)}, past, free)
    assert (feed["past"].shape, feed["free"].dtype) == ((1, 0, 4), np.int8)


def test_a_tensor_that_cannot_become_an_array_is_refused():
    class OnAnotherDevice:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("move it to the CPU first")

    with pytest.raises(DataError, match=r"not-an-array: the value is no array: move it to the CPU first"):
        check({"image": OnAnotherDevice()})


def test_what_is_no_tensor_is_passed_on():
    sequence = InputSpec(name="steps", dtype="", shape=None)
    assert check({"steps": [GOOD]}, sequence)["steps"] == [GOOD]


def test_without_a_like_name_the_array_that_fits_is_suggested(tmp_path):
    image = InputSpec(name="image", dtype="float32", shape=("N", 3, 8))
    ids = InputSpec(name="tokens", dtype="int64", shape=("N", 5))
    arrays = {"arr_0": np.zeros((4, 5), np.int32), "arr_1": np.zeros((4, 3, 8), np.float64)}
    np.savez(tmp_path / "d.npz", **arrays)
    for source in (tmp_path / "d.npz", [arrays]):
        with pytest.raises(DataError, match=r"no array for input 'image' .*Rename 'arr_1' to 'image'"):
            list(open_data(source, [image, ids]))
        with pytest.raises(DataError, match=r"no array for input 'tokens' .*Rename 'arr_0' to 'tokens'"):
            list(open_data(source, [ids, image]))
    alike = {"a": np.zeros((4, 3, 8), np.float32), "b": np.zeros((4, 3, 8), np.float32)}
    with pytest.raises(DataError, match=r"no array for input 'image' .*Add an array float32 \(N,3,8\) as 'image'"):
        list(open_data([alike], [image]))
