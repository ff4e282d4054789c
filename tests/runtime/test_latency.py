"""Latency: both sides run in turn, a bounded number of times."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from quantool.measured import Latency
from quantool.runtime import latency
from quantool.runtime.session import Loadable, Session

TEXT = '<ir_version: 8, opset_import: ["" : 17]> g (float[N,N] x) => (float[N,N] y) { y = MatMul(x, x) }'
SLOW = TEXT.replace("y = MatMul(x, x)", "a = MatMul(x, x)  b = MatMul(a, x)  c = MatMul(b, x)  y = MatMul(c, x)")


def session(text: str) -> Session:
    return Session(Loadable(model=parser.parse_model(text).SerializeToString(), threads=1))


def feed() -> dict[str, np.ndarray]:
    return {"x": np.ones((256, 256), "f")}


def test_four_times_the_work_takes_longer() -> None:
    measured = latency.interleaved(session(SLOW), session(TEXT), feeds=[feed()], budget_s=0.3)
    assert measured.speedup > 1.5
    assert measured.float_ms > measured.quantized_ms > 0


class Recorder:
    """Stands for a session and notes each run."""

    def __init__(self, name: str, runs: list[str]) -> None:
        self.name = name
        self.runs = runs

    def run(self, given: dict[str, np.ndarray]) -> None:
        self.runs.append(f"{self.name}{int(given['x'])}")


def recorded(budget_s: float) -> list[str]:
    runs: list[str] = []
    feeds = [{"x": np.array(0)}, {"x": np.array(1)}]
    latency.interleaved(Recorder("f", runs), Recorder("q", runs), feeds=feeds, budget_s=budget_s)
    return runs


def test_sides_alternate_on_the_same_feed_after_a_warm_up() -> None:
    assert recorded(0.0) == ["f0", "q0", *["f0", "q0", "q1", "f1"] * 2, "f0", "q0"]


def test_runs_are_bounded_where_the_budget_is_not() -> None:
    assert len(recorded(60.0)) == 2 + 2 * latency.MOST_ROUNDS


def test_no_feed_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one feed"):
        latency.interleaved(session(TEXT), session(TEXT), feeds=[])


def test_pairs_that_agree_are_clear_and_pairs_that_do_not_are_not() -> None:
    measured = latency.interleaved(session(SLOW), session(TEXT), feeds=[feed()], budget_s=0.3)
    assert measured.quartiles is not None
    assert measured.quartiles[0] <= measured.quartiles[1]
    assert Latency(float_ms=1.0, quantized_ms=1.2, quartiles=(0.7, 0.9)).is_clear
    assert not Latency(float_ms=1.0, quantized_ms=1.2, quartiles=(0.7, 1.4)).is_clear
    assert Latency(float_ms=1.0, quantized_ms=1.2, quartiles=(0.7, 1.4), interval=(0.8, 0.9)).is_clear
    assert not Latency(float_ms=1.0, quantized_ms=1.2, quartiles=(0.7, 0.9), interval=(0.8, 1.1)).is_clear


def test_the_interval_of_a_median_holds_it_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(400):
        found = latency.median_interval(list(rng.exponential(size=25)))
        assert found is not None
        held += found[0] <= np.log(2.0) <= found[1]
    # At least 95 % of 400, less three standard deviations of that count.
    assert held >= 380 - 3 * np.sqrt(400 * 0.95 * 0.05)


@pytest.mark.parametrize(("count", "ranks"), [(5, None), (6, (0, 5)), (10, (1, 8)), (25, (7, 17)), (100, (39, 60))])
def test_the_interval_of_a_median_is_that_of_the_tables(count: int, ranks: tuple[int, int] | None) -> None:
    """Ranks as the tables of the sign test give them, from 0."""
    found = latency.median_interval([float(i) for i in reversed(range(count))])
    assert found == (None if ranks is None else tuple(map(float, ranks)))
