"""EDGE_CASES, calibration and data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import quantool
from quantool import DataError
from quantool.schema import AnyArray
from tests.edge.driver import FORMS, check
from tests.edge.graphs import feeds, model, normal, weight

STATIC = pytest.mark.parametrize("form", ["qdq", "qoperator"])
CALIBRATORS = ["mse", "minmax", "percentile", "entropy", "moving-average"]
UNORDERED = pytest.mark.parametrize("calibrator", [None, *CALIBRATORS[:-1]])
GEMMS = """(float[N,12] x, float[N,12] z) => (float[N,5] y) {
    s = Add (x, z)  a = Gemm (s, w, b)  r = Relu (a)  y = Gemm (r, v, c)
}"""
CONSTANTS = {
    "w": weight(12, 8),
    "b": normal(8, scale=0.3),
    "v": weight(8, 5, seed=1),
    "c": normal(5, seed=2, scale=0.3),
}
FIXED = GEMMS.replace("float[N,", "float[8,")


def samples(count: int = 20, rows: int = 8) -> list[dict[str, AnyArray]]:
    return feeds(count, x=(rows, 12), z=(rows, 12))


def scales(calibrator: str | None, data: list, **options: object) -> dict[str, tuple]:
    """Scale and zero point of every quantized activation."""
    chosen = {} if calibrator is None else {"calibrator": calibrator}
    report = quantool.quantize(model(GEMMS, CONSTANTS), data, verify=False, **chosen, **options).report
    return {row.name: (row.scale, row.zero_point) for row in report.tensors if isinstance(row.scale, float)}


BAD = {
    "missing input": (lambda feed: {"x": feed["x"]}, r"missing-input.*'z'"),
    "wrong rank": (lambda feed: {**feed, "z": feed["z"][None]}, r"wrong-rank.*'z'"),
    "scalar": (lambda feed: {**feed, "x": np.float32(1)}, r"wrong-rank.*'x'"),
    "unknown key": (lambda feed: {**feed, "other": feed["x"]}, r"unknown-input.*'other'"),
    "wrong dimension": (lambda feed: {**feed, "x": feed["x"][:, :11]}, r"wrong-size.*'x'"),
    "wrong batch": (lambda feed: {**feed, "x": feed["x"][:7]}, r"wrong-size.*'x'"),
    "integers": (lambda feed: {**feed, "x": feed["x"].astype(np.int64)}, r"wrong-type.*'x'"),
    "text": (lambda feed: {**feed, "x": "a text"}, r"'x'"),
    "no dict": (lambda feed: [feed["x"]], r"feed-type"),
    "ragged": (lambda feed: {**feed, "x": [[1.0], [1.0, 2.0]]}, r"not-an-array.*'x'"),
}


@STATIC
@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("at", [0, 13])
def test_data_that_does_not_fit_is_refused_by_input(form: str, name: str, at: int) -> None:
    spoil, message = BAD[name]
    data: list = samples()
    data[at] = spoil(data[at])
    with pytest.raises(DataError, match=rf"{message}") as caught:
        quantool.quantize(model(FIXED, CONSTANTS), data, **FORMS[form])
    assert f"sample {at}" in str(caught.value)
    assert caught.value.exit_code == 2


@STATIC
@pytest.mark.parametrize("empty", [[], iter([]), (feed for feed in [])], ids=["list", "iterator", "generator"])
def test_no_sample_is_refused_by_the_inputs(form: str, empty: object) -> None:
    with pytest.raises(DataError, match=r"no-samples.*'x', 'z'"):
        quantool.quantize(model(GEMMS, CONSTANTS), empty, **FORMS[form])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [3, 40])
def test_a_generator_is_read_once(form: str, count: int) -> None:
    read = []

    def once() -> Iterator[dict[str, AnyArray]]:
        for number, feed in enumerate(samples(count)):
            read.append(number)
            yield feed

    result = quantool.quantize(model(GEMMS, CONSTANTS), once(), **FORMS[form])
    assert read == list(range(count))
    assert result.model.graph.node


def test_a_generator_that_reuses_its_arrays_gives_the_same_result() -> None:
    def reusing() -> Iterator[dict[str, AnyArray]]:
        shared = {"x": np.empty((8, 12), np.float32), "z": np.empty((8, 12), np.float32)}
        for feed in samples():
            for name in shared:
                shared[name][:] = feed[name]
            yield shared

    plain = quantool.quantize(model(GEMMS, CONSTANTS), samples()).model
    assert quantool.quantize(model(GEMMS, CONSTANTS), reusing()).model == plain


WIDE = "(float[N,500] x) => (float[N,8] y) { y = MatMul (x, w) }"


@STATIC
@pytest.mark.parametrize("calibrator", [None, "mse", "percentile", "entropy"])
@pytest.mark.parametrize("outlier", [1e6, -1e6])
def test_one_huge_value_among_half_a_million(form: str, calibrator: str | None, outlier: float) -> None:
    rng = np.random.default_rng(0)
    data = [{"x": rng.standard_normal((50, 500)).astype(np.float32)} for _ in range(20)]
    clean = [{"x": rng.standard_normal((50, 500)).astype(np.float32)} for _ in range(4)]
    data[7]["x"][3, 4] = outlier
    chosen = {} if calibrator is None else {"calibrator": calibrator}
    proto = model(WIDE, {"w": weight(500, 8)})
    result = check(proto, data, form, held_out=clean, exclude_op=[], **chosen)
    (bounds,) = (row.range for row in result.report.tensors if row.name == "x")
    if calibrator in ("percentile", "entropy"):
        assert 2.5 <= max(-bounds[0], bounds[1]) <= 12
    if form == "qdq":
        told = [note for note in result.report.warnings if note.where == "x"]
        assert result.db() >= (26 if calibrator in ("percentile", "entropy") else 20) or told


@STATIC
@UNORDERED
def test_a_second_batch_ten_thousand_times_larger(form: str, calibrator: str | None) -> None:
    small, large = samples(8), samples(8)
    for feed in large:
        feed["x"] = feed["x"] * np.float32(1e4)
    there = scales(calibrator, small + large, **FORMS[form])
    assert there == scales(calibrator, large + small, **FORMS[form])
    assert all(0 < scale < 1e5 for scale, _ in there.values())


@STATIC
@UNORDERED
@pytest.mark.parametrize("count", [5, 30])
def test_the_order_of_the_samples_changes_nothing(form: str, calibrator: str | None, count: int) -> None:
    data = samples(count)
    shuffled = [data[i] for i in np.random.default_rng(3).permutation(count)]
    expected = scales(calibrator, data, **FORMS[form])
    assert len(expected) >= 2
    assert scales(calibrator, data[::-1], **FORMS[form]) == expected
    assert scales(calibrator, shuffled, **FORMS[form]) == expected


@STATIC
@UNORDERED
def test_how_rows_are_cut_into_batches_changes_nothing(form: str, calibrator: str | None) -> None:
    (whole,) = samples(1, rows=8)
    expected = scales(calibrator, [whole], effort="fast", **FORMS[form])
    for size in (1, 4):
        cut = [{name: rows[i : i + size] for name, rows in whole.items()} for i in range(0, 8, size)]
        found = scales(calibrator, cut, effort="fast", **FORMS[form])
        for name, (scale, zero_point) in expected.items():
            assert found[name][0] == pytest.approx(scale, rel=1e-5)
            assert abs(found[name][1] - zero_point) <= 1
