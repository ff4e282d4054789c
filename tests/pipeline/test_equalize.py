"""Channels of unequal size are noticed, balanced without changing the function, and said in the report."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest

import quantool
from pipeline.bed import SAMPLES, Shell, model, normal, save
from pipeline.rescaled import accuracy, rescaled, with_relu
from quantool.pipeline.choice import equalize
from quantool.schema import AnyArray

#: what equalization may cost, and what is left without it, in points of accuracy
MOST_LOST, RUINED = 0.5, 30.0


@cache
def arrays(part: str) -> dict[str, AnyArray]:
    with np.load(SAMPLES / f"digits_depthwise.{part}.npz") as archive:
        return dict(archive)


def feeds() -> list[dict[str, AnyArray]]:
    return [{"image": image[None]} for image in arrays("calib")["image"]]


@cache
def unbalanced(activation: str, seed: int = 0) -> onnx.ModelProto:
    proto = onnx.load(SAMPLES / "digits_depthwise.onnx")
    plain = with_relu(proto) if activation == "relu" else proto
    seen = {"image": np.concatenate([arrays(part)["image"] for part in ("calib", "eval")])}
    found = rescaled(plain, seen, seed=seed)
    assert accuracy(found, arrays("eval")) == accuracy(plain, arrays("eval"))
    return found


def chosen(report: Any) -> str:
    return next(trial.name for trial in report.trials if trial.chosen)


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("activation", ["relu", "relu6"])
def test_a_rescaled_depthwise_network_keeps_its_accuracy(activation: str, granularity: str) -> None:
    proto = unbalanced(activation)
    exact = accuracy(proto, arrays("eval"))
    fast = quantool.quantize(proto, data=feeds(), granularity=granularity, effort="fast")
    assert accuracy(fast.model, arrays("eval")) < RUINED
    found = quantool.quantize(proto, data=feeds(), granularity=granularity)
    assert accuracy(found.model, arrays("eval")) >= exact - MOST_LOST
    assert "equalized" in chosen(found.report)
    outputs = found.report.verification.outputs
    assert outputs["scores"].sqnr_db > 30


def test_a_balanced_network_is_left_alone() -> None:
    found = quantool.quantize(onnx.load(SAMPLES / "digits_depthwise.onnx"), data=feeds())
    assert not any("equalized" in trial.name for trial in found.report.trials)


def test_the_report_lists_the_trial_and_two_runs_write_the_same_bytes() -> None:
    first, again = (quantool.quantize(unbalanced("relu", 1), data=feeds()) for _ in range(2))
    scores = {trial.name: trial.score_db for trial in first.report.trials}
    assert scores["mse ranges, equalized"] > scores["mse ranges"] + 20
    assert first.model.SerializeToString(deterministic=True) == again.model.SerializeToString(deterministic=True)


def two_layers(tail: str) -> onnx.ModelProto:
    """Two matrix products with a rectifier between, and channels whose sizes differ a thousandfold."""
    text = f"(float[N,8] x) => (float[N,4] y) {{ h = Gemm(x, w1, b1) {tail} }}"
    sizes = np.logspace(-1.5, 1.5, 16).astype(np.float32)
    constants = {
        "w1": normal(8, 16, seed=1) * sizes, "b1": normal(16, seed=2) * sizes,
        "w2": normal(16, 4, seed=3) / sizes[:, None], "zero": np.float32(0), "top": np.float32(1e4),
    }  # fmt: skip
    used = {name: value for name, value in constants.items() if name in text}
    return model(text, used)


RELU = "r = Relu(h) y = MatMul(r, w2)"


def rows(count: int = 40) -> list[dict[str, AnyArray]]:
    return [{"x": normal(6, 8, seed=100 + seed)} for seed in range(count)]


def trials(proto: onnx.ModelProto, **options: object) -> list[str]:
    return [trial.name for trial in quantool.quantize(proto, data=rows(), **options).report.trials]


def test_fast_effort_and_pinned_ranges_are_not_equalized() -> None:
    proto = two_layers(RELU)
    assert any("equalized" in name for name in trials(proto))
    assert trials(proto, effort="fast") == []
    pinned = {"rules": [{"tensor": "r", "range": [0.0, 100.0]}]}
    assert not any("equalized" in name for name in trials(proto, recipe=pinned))


def test_gptq_learns_from_the_rescaled_inputs() -> None:
    found = quantool.quantize(two_layers(RELU), data=rows(), effort="max").report
    scores = {trial.name: trial.score_db for trial in found.trials}
    (rounded,) = [score for name, score in scores.items() if name.endswith("ranges, equalized, GPTQ in 2 layers")]
    assert rounded > scores["mse ranges, equalized"] - 1


def test_what_computes_something_else_is_left_out_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equalize, "computes_the_same", lambda *_, **__: False)
    found = quantool.quantize(two_layers(RELU), data=rows()).report
    assert not any("equalized" in trial.name for trial in found.trials)
    (warning,) = [each for each in found.warnings if each.code == "equalization-left-out"]
    assert "balanced they compute something else" in warning.what


def test_ranges_without_data_say_why_nothing_was_equalized(shell: Shell) -> None:
    save(two_layers(RELU), shell.folder / "m.onnx")
    np.savez("d.npz", x=normal(40, 8, seed=5))
    np.savez("v.npz", x=normal(20, 8, seed=6))
    assert shell("calibrate m.onnx --data d.npz -o s.qcal").code == 0
    for more in ("", "--verify-data v.npz"):
        found = shell(f"quantize m.onnx --ranges s.qcal {more} --force --json").document
        (warning,) = [each for each in found["warnings"] if each["code"] == "not-equalized"]
        assert "must be calibrated again" in warning["what"]
        assert warning["fix"] == "Give --data in place of --ranges."
        assert not any("equalized" in trial["name"] for trial in found["trials"])
    fast = shell("quantize m.onnx --ranges s.qcal --effort fast --force --json").document
    assert not any(each["code"] == "not-equalized" for each in fast["warnings"])
