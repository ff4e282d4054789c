"""Comparison of outputs: sums over samples equal what all samples at once would give."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from quantool.errors import VerificationError
from quantool.kernels import metrics
from quantool.measured import OutputComparison
from quantool.verify.comparison import Comparator, relative_differences, same

EPS = np.finfo(np.float64).eps


def compared(reference: list[np.ndarray], test: list[np.ndarray]) -> OutputComparison:
    comparator = Comparator()
    for r, t in zip(reference, test, strict=True):
        comparator.add({"y": r}, {"y": t})
    assert comparator.samples == len(reference)
    return comparator.result()["y"]


def noisy(shape: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal(shape).astype("f")
    return reference, reference + 0.01 * rng.standard_normal(shape).astype("f")


values = st.floats(-1e3, 1e3, width=32)


@given(
    arrays.arrays(np.float32, (6, 3, 4), elements=values),
    arrays.arrays(np.float32, (6, 3, 4), elements=values),
    st.integers(1, 5),
)
def test_sample_by_sample_equals_all_at_once(reference: np.ndarray, test: np.ndarray, cut: int) -> None:
    whole = compared([reference], [test])
    pieces = compared([reference[:cut], reference[cut:]], [test[:cut], test[cut:]])
    assert pieces.exact == whole.exact == bool(np.array_equal(reference, test))
    assert pieces.max_abs_error == whole.max_abs_error
    assert pieces.top1_agreement == whole.top1_agreement
    for name in ("sqnr_db", "worst_channel_sqnr_db", "cosine"):
        a, b = getattr(whole, name), getattr(pieces, name)
        # sums of n terms in another order differ by at most n eps; in dB by 10/ln 10 times that, twice
        assert a == b or a == pytest.approx(b, abs=reference.size * EPS * 20 / math.log(10))


@given(
    arrays.arrays(np.float32, (5, 3, 4), elements=values),
    arrays.arrays(np.float32, (5, 3, 4), elements=values),
)
def test_figures_equal_the_kernels_on_one_array(reference: np.ndarray, test: np.ndarray) -> None:
    result = compared([reference], [test])
    if result.exact:
        return
    assert result.sqnr_db == pytest.approx(metrics.sqnr_db(reference, test))
    assert result.max_abs_error == metrics.max_abs_error(reference, test)
    assert result.top1_agreement == metrics.top1_agreement(reference, test)
    if result.cosine is not None:
        assert result.cosine == pytest.approx(metrics.cosine(reference, test), abs=1e-12)


def test_worst_channel_is_found_along_axis_1_and_the_last_axis() -> None:
    for axis in (1, 2):
        reference, test = noisy((4, 5, 6))
        bad = [slice(None)] * 3
        bad[axis] = 2
        test[tuple(bad)] = -reference[tuple(bad)]
        result = compared([reference], [test])
        # t = -r: noise is (2r)^2, four times the signal
        assert result.worst_channel_sqnr_db == pytest.approx(-10 * math.log10(4), abs=1e-5)
        assert result.worst_channel_sqnr_db < result.sqnr_db


def test_small_scores_beside_large_boxes_are_a_channel_of_their_own() -> None:
    rng = np.random.default_rng(0)
    reference = np.concatenate([rng.uniform(0, 640, (1, 100, 4)), rng.uniform(0, 1, (1, 100, 1))], -1).astype("f")
    test = np.rint(reference / 2.5).astype("f") * np.float32(2.5)  # one scale for both: the scores are gone
    result = compared([reference], [test])
    assert result.sqnr_db > 45
    assert result.worst_channel_sqnr_db < 1


def test_channels_without_signal_do_not_count() -> None:
    reference, test = noisy((8, 4))
    reference[:, 1] = 0
    reference[:, 2] = 1e-6 * reference[:, 0]  # a class that softmax never chooses
    assert compared([reference], [test]).worst_channel_sqnr_db > 20


def test_lengths_that_change_are_no_channels() -> None:
    first, second = noisy((1, 5, 4)), noisy((1, 9, 4))
    result = compared([first[0], second[0]], [first[1], second[1]])
    along_last = [
        metrics.sqnr_db(
            np.concatenate([first[0][..., c], second[0][..., c]], axis=1),
            np.concatenate([first[1][..., c], second[1][..., c]], axis=1),
        )
        for c in range(4)
    ]
    assert result.worst_channel_sqnr_db == pytest.approx(min(along_last))


@pytest.mark.parametrize("shape", [(), (7,), (3, 1)])
def test_outputs_without_channels_have_no_worst_one_nor_a_top_1(shape: tuple[int, ...]) -> None:
    reference, test = noisy(shape or (1,))
    result = compared([reference.reshape(shape)], [test.reshape(shape)])
    assert result.sqnr_db is not None
    assert result.worst_channel_sqnr_db is None
    assert result.top1_agreement is None


def test_equal_outputs_are_exact() -> None:
    reference, _ = noisy((3, 4))
    assert compared([reference], [reference.copy()]) == OutputComparison(
        sqnr_db=None, worst_channel_sqnr_db=None, cosine=1.0, max_abs_error=0.0, top1_agreement=1.0, exact=True
    )


def test_values_that_are_not_finite_are_equal_where_both_have_the_same() -> None:
    reference, test = noisy((2, 5))
    odd = [np.nan, np.inf, -np.inf]
    plain = compared([reference[:, 3:]], [test[:, 3:]])
    reference[:, :3] = test[:, :3] = odd
    result = compared([reference], [test])
    assert result.sqnr_db == plain.sqnr_db
    assert result.max_abs_error == plain.max_abs_error
    assert compared([reference], [reference.copy()]).exact


@pytest.mark.parametrize(("r", "t"), [(np.nan, 1.0), (1.0, np.nan), (np.inf, -np.inf), (-np.inf, -1e38)])
def test_a_value_lost_to_nan_or_infinity_never_reads_well(r: float, t: float) -> None:
    reference, test = noisy((2, 5))
    reference[1, 2], test[1, 2] = r, t
    result = compared([reference], [test])
    assert result.sqnr_db == -math.inf
    assert result.max_abs_error == math.inf
    assert result.cosine is None
    assert not result.exact


def test_noise_where_the_reference_is_all_zero_reads_as_lost() -> None:
    result = compared([np.zeros((2, 3), "f")], [np.ones((2, 3), "f")])
    assert result.sqnr_db == -math.inf
    assert result.worst_channel_sqnr_db is None
    assert not result.exact


def test_discrete_outputs_tell_the_share_of_equal_elements() -> None:
    result = compared([np.arange(4), np.arange(4)], [np.arange(4), np.array([0, 1, 2, 9])])
    assert result == OutputComparison(
        sqnr_db=None, worst_channel_sqnr_db=None, cosine=None, max_abs_error=None, top1_agreement=7 / 8, exact=False
    )
    assert compared([np.array([True])], [np.array([True])]).exact
    assert compared([np.array(["a"], object)], [np.array(["b"], object)]).top1_agreement == 0.0


def test_empty_outputs_are_exact() -> None:
    assert compared([np.zeros((0, 10), "f")], [np.zeros((0, 10), "f")]).exact
    assert compared([np.zeros((0,), np.int64)], [np.zeros((0,), np.int64)]).exact


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_other_float_types_are_compared_as_numbers(dtype: type) -> None:
    reference = np.array([[1.0, 2.0]], dtype)
    result = compared([reference], [np.array([[1.0, 2.5]], dtype)])
    assert result.max_abs_error == 0.5
    assert result.sqnr_db == pytest.approx(10 * math.log10(5 / 0.25))


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ({}, "output 'y' of the float model is missing"),
        ({"y": np.zeros((2, 4), "f")}, r"float32\[2, 4\]; the float model gives float32\[2, 3\]"),
        ({"y": np.zeros((2, 3), int)}, r"int64\[2, 3\]; the float model gives float32"),
    ],
    ids=["missing", "shape", "kind"],
)
def test_outputs_that_do_not_match_are_an_error_naming_the_output(test: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(VerificationError, match=words) as caught:
        Comparator().add({"y": np.zeros((2, 3), "f")}, test)
    assert caught.value.where == "y"


def test_relative_differences_are_by_the_largest_value() -> None:
    reference = {"y": np.array([0.0, -4.0]), "i": np.array([1, 2]), "z": np.zeros(2)}
    test = {"y": np.array([1.0, -4.0]), "i": np.array([1, 3]), "z": np.zeros(2)}
    assert relative_differences(reference, test) == {"y": 0.25, "i": 0.5, "z": 0.0}
    assert same(reference, {**test, "i": reference["i"]}, rtol=0.25)
    assert not same(reference, {**test, "i": reference["i"]}, rtol=0.24)


def test_differences_against_zero_or_nan_are_infinite_and_equal_ones_none() -> None:
    nan, zero = np.array([np.nan, 1.0]), np.zeros(1)
    assert relative_differences({"y": nan}, {"y": nan}) == {"y": 0.0}
    assert relative_differences({"y": nan}, {"y": np.ones(2)}) == {"y": math.inf}
    assert relative_differences({"y": zero}, {"y": zero + 1e-9}) == {"y": math.inf}
