"""The verdict's sentence, case by case."""

from __future__ import annotations

import math

import pytest

from quantool.measured import Latency, OutputComparison
from quantool.schema import Mode
from quantool.verify.verdict import Evidence, other_ways, verdict


def output(
    sqnr_db: float | None = 38.24, top1: float | None = 0.994, worst: float | None = None, exact: bool = False
) -> OutputComparison:
    return OutputComparison(
        sqnr_db=sqnr_db, worst_channel_sqnr_db=worst, cosine=0.99, max_abs_error=0.1, top1_agreement=top1, exact=exact
    )


GOOD = {
    "mode": Mode.STATIC, "float_bytes": 390, "quantized_bytes": 100, "outputs": {"y": output()},
    "latency": Latency(float_ms=1.8, quantized_ms=1.0), "samples": 16, "held_out": True,
}  # fmt: skip
SLOW = Latency(float_ms=0.83, quantized_ms=1.0)

CASES = {
    "good": ({}, "3.9x smaller, 1.8x faster, SQNR 38.2 dB, top-1 agreement 99.4 % on 16 held-out samples."),
    "slower": (
        {"latency": SLOW},
        "Not worth it: slower than float (0.83x); 3.9x smaller, SQNR 38.2 dB, "
        "top-1 agreement 99.4 % on 16 held-out samples.",
    ),
    "slower, but for size": (
        {"latency": SLOW, "mode": Mode.WEIGHT_ONLY},
        "3.9x smaller, but slower than float (0.83x), SQNR 38.2 dB, top-1 agreement 99.4 % on 16 held-out samples.",
    ),
    "slower, but the pairs disagree": (
        {"latency": Latency(float_ms=0.83, quantized_ms=1.0, quartiles=(0.6, 1.3))},
        "3.9x smaller, no significant difference in speed, SQNR 38.2 dB, "
        "top-1 agreement 99.4 % on 16 held-out samples.",
    ),
    "no data": ({"outputs": {}, "latency": None}, "3.9x smaller, outputs were not compared (no data)."),
    "no data, weights judged": (
        {"outputs": {}, "latency": None, "weights_db": 41.27},
        "3.9x smaller, outputs were not compared (no data), the worst weight has 41.3 dB.",
    ),
    "no data, nothing lost": (
        {"outputs": {}, "latency": None, "weights_db": math.inf},
        "3.9x smaller, outputs were not compared (no data), weights are exact.",
    ),
    "not asked": (
        {"outputs": {}, "latency": None, "not_compared": "--no-verify"},
        "3.9x smaller, outputs were not compared (--no-verify).",
    ),
    "same samples": (
        {"held_out": False, "samples": 1, "outputs": {"y": output(top1=None)}},
        "3.9x smaller, 1.8x faster, SQNR 38.2 dB on 1 sample that also calibrated.",
    ),
    "compared only": (
        {"held_out": None, "samples": 3, "outputs": {"y": output(top1=None)}},
        "3.9x smaller, 1.8x faster, SQNR 38.2 dB on 3 samples.",
    ),
    "even": (
        {"latency": Latency(float_ms=1.01, quantized_ms=1.0)},
        "3.9x smaller, as fast as float, SQNR 38.2 dB, top-1 agreement 99.4 % on 16 held-out samples.",
    ),
    "larger and even": (
        {"quantized_bytes": 780, "latency": Latency(float_ms=1.0, quantized_ms=1.0)},
        "Not worth it: neither smaller nor faster; 2.0x larger, as fast as float, SQNR 38.2 dB, "
        "top-1 agreement 99.4 % on 16 held-out samples.",
    ),
    "not smaller, unmeasured": (
        {"quantized_bytes": 390, "latency": None, "outputs": {}},
        "Not worth it: not smaller; same size, outputs were not compared (no data).",
    ),
    "two outputs": (
        {"outputs": {"a": output(), "b": output(12.0, 0.5)}},
        "3.9x smaller, 1.8x faster, worst SQNR ('b') 12.0 dB, worst top-1 agreement 50.0 % on 16 held-out samples.",
    ),
    "noise": (
        {"outputs": {"y": output(2.5, None)}},
        "Not worth it: the output 'y' is mostly noise; 3.9x smaller, 1.8x faster, SQNR 2.5 dB on 16 held-out samples.",
    ),
    "not finite": (
        {"outputs": {"y": output(-math.inf, None)}},
        "Not worth it: the output 'y' is mostly noise; 3.9x smaller, 1.8x faster, "
        "outputs compared on 16 held-out samples.",
    ),
    "exact": (
        {"outputs": {"y": output(None, 1.0, exact=True)}},
        "3.9x smaller, 1.8x faster, outputs equal on 16 held-out samples.",
    ),
    "lost channel": (
        {"outputs": {"boxes": output(30.1, None, -2.04)}},
        "3.9x smaller, 1.8x faster, SQNR 30.1 dB on 16 held-out samples. One channel lost: 'boxes' reads 30.1 dB "
        "as a whole and -2.0 dB in its worst channel.",
    ),
    "worse channel, not lost": (
        {"outputs": {"y": output(30.1, None, 20.0)}},
        "3.9x smaller, 1.8x faster, SQNR 30.1 dB on 16 held-out samples.",
    ),
    "another machine's target": (
        {"elsewhere": "directml-1.0"},
        "3.9x smaller, 1.8x faster, SQNR 38.2 dB, top-1 agreement 99.4 % on 16 held-out samples. The speed is that of "
        "this machine's CPU; the target directml-1.0 may differ.",
    ),
    "another machine's target, not timed": (
        {"elsewhere": "directml-1.0", "outputs": {}, "latency": None},
        "3.9x smaller, outputs were not compared (no data).",
    ),
    "activations rounded by the runtime": (
        {"accuracy_levels": (4,)},
        "3.9x smaller, 1.8x faster, SQNR 38.2 dB, top-1 agreement 99.4 % on 16 held-out samples. Its MatMulNBits ran "
        "at accuracy level 4 (activations rounded to 8 bits), the runtime's default for this model.",
    ),
    "activations not rounded": (
        {"outputs": {}, "latency": None, "accuracy_levels": (0, 1)},
        "3.9x smaller, outputs were not compared (no data). Its MatMulNBits ran at accuracy level 0 and 1, the "
        "runtime's default for this model.",
    ),
    "low coverage": (
        {"outputs": {}, "latency": None, "coverage": 0.12},
        "3.9x smaller, outputs were not compared (no data). Only 12 % of the multiplications are quantized.",
    ),
}


@pytest.mark.parametrize(("change", "sentence"), CASES.values(), ids=CASES.keys())
def test_verdict(change: dict[str, object], sentence: str) -> None:
    assert verdict(Evidence(**{**GOOD, **change})) == sentence


def test_sizes_must_be_positive() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Evidence(mode=Mode.STATIC, float_bytes=0, quantized_bytes=1)


@pytest.mark.parametrize(("mode", "named"), [(Mode.STATIC, "dynamic"), (Mode.DYNAMIC, "static")])
def test_where_a_result_is_slower_other_modes_are_named(mode: Mode, named: str) -> None:
    said = other_ways(Evidence(**{**GOOD, "mode": mode, "latency": SLOW}))
    assert f"`--mode {named}`" in said
    assert "`--mode weight-only`" in said
    assert said.endswith("`quantool tune` searches modes and operators by measured time.")


def ways(**changes: object) -> str:
    """What is named beside the good result with these changes."""
    return other_ways(Evidence(**{**GOOD, **changes}))


def test_nothing_else_is_named_where_a_result_is_fast_or_wanted_for_its_size() -> None:
    assert ways() == ways(latency=None) == ways(mode=Mode.WEIGHT_ONLY, latency=SLOW) == ""


@pytest.mark.parametrize("figures", [(3.0, 3.0), (40.0, 2.0)], ids=["all of it", "one channel"])
def test_where_integer_activations_lose_an_output_more_exact_ways_are_named(figures: tuple[float, float]) -> None:
    whole, channel = figures
    lost = {"y": output(sqnr_db=whole, worst=channel)}
    assert "`--mode weight-only`" in ways(outputs=lost)
    assert ways(outputs=lost, mode=Mode.WEIGHT_ONLY) == ""
