"""What stays in float because it was measured to lose too much, in networks where one unit is to blame."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import quantool
from pipeline.bed import model, normal
from quantool.pipeline.choice import noise
from quantool.report.model import Report
from quantool.schema import AnyArray

CHANNELS = 8


def feeds(count: int = 48) -> list[dict[str, AnyArray]]:
    """Feeds of one image."""
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((1, CHANNELS, 10, 10)).astype(np.float32)} for _ in range(count)]


def kept(report: Report) -> dict[str, str]:
    """Node -> reason code, for those that stay in float."""
    return {row.name: row.reason.code for row in report.nodes if row.decision == "kept" and row.reason is not None}


def network(ending: str, output: str = "float[N,8,10,10] y", layers: int = 6, **constants: AnyArray) -> onnx.ModelProto:
    """Six convolutions of 3x3 with Relu, which `ending` makes `output` of, from the tensor h."""
    text, tensor = f"(float[N,{CHANNELS},10,10] x) => ({output}) {{", "x"
    held: dict[str, AnyArray] = {}
    for i in range(layers):
        held[f"w{i}"] = normal(CHANNELS, CHANNELS, 3, 3, seed=i, scale=0.15)
        held[f"b{i}"] = normal(CHANNELS, seed=50 + i, scale=0.05)
        name = "h" if i == layers - 1 else f"h{i}"
        text += f"[c{i}] a{i} = Conv<pads=[1,1,1,1]>({tensor}, w{i}, b{i}) [r{i}] {name} = Relu(a{i})\n"
        tensor = name
    return model(f"{text} {ending} }}", {**held, **constants})


def last(*scales: float, seed: int = 77, outputs: int = CHANNELS) -> AnyArray:
    """The weight of a convolution of 1x1, its output channels scaled."""
    weight = normal(outputs, CHANNELS, 1, 1, seed=seed, scale=0.2)
    weight[: len(scales)] *= np.array(scales, np.float32)[:, None, None, None]
    return weight


def boxes_and_scores() -> onnx.ModelProto:
    """Values of 0..300 and of 0..1 in the channels of one convolution, as detectors have them."""
    return network("[last] y = Conv(h, w)", w=last(300.0, 300.0))


def before_a_logarithm() -> onnx.ModelProto:
    """A convolution with values close to zero, whose logarithm is the output."""
    return network(
        "[last] s = Conv(h, w) [up] r = Relu(s) [shift] t = Add(r, e) [log] y = Log(t)",
        w=np.abs(last()) * 0.1,
        e=np.float32(1e-4),
    )


def small_margins() -> onnx.ModelProto:
    """Scores that differ by little beside what they have in common."""
    return network(
        "[last] s = Conv(h, w, b) [probabilities] y = Softmax<axis=1>(s)",
        w=last(*[0.5] * CHANNELS),
        b=np.full(CHANNELS, 100, np.float32),
    )


@pytest.mark.parametrize(
    ("proto", "units"),
    [
        (boxes_and_scores(), {"last"}),
        (before_a_logarithm(), {"last", "up"}),
        (small_margins(), {"last"}),
    ],
    ids=["boxes-and-scores", "before-a-logarithm", "small-margins"],
)
def test_exactly_the_unit_that_ruins_the_output_stays_in_float(proto: onnx.ModelProto, units: set[str]) -> None:
    report = quantool.quantize(proto, data=feeds()).report
    found = kept(report)
    assert {name for name, code in found.items() if code == "too-lossy"} == units
    assert not any(name.startswith(("c", "r")) for name in found)
    chosen = [trial for trial in report.trials if trial.chosen]
    others = [trial.score_db for trial in report.trials if "in float" not in trial.name]
    assert len(chosen) == 1
    assert "in float: last (1.8 % of multiply-adds)" in chosen[0].name
    assert chosen[0].score_db > max(others) + 4


def test_the_reason_says_what_quantizing_costs_and_saves() -> None:
    report = quantool.quantize(boxes_and_scores(), data=feeds()).report
    row = next(row for row in report.nodes if row.name == "last")
    assert row.reason is not None
    assert "Quantizing it costs" in row.reason.text
    assert "saves 1.8 % of the multiply-adds" in row.reason.text
    assert "--include" in row.reason.fix


def test_two_units_that_ruin_an_output_each_stay_in_float_together() -> None:
    proto = network(
        "[one] y = Conv(h, w) [two] z = Conv(h, v)",
        "float[N,8,10,10] y, float[N,8,10,10] z",
        w=last(300.0),
        v=last(1.0, 200.0, seed=78),
    )
    assert set(kept(quantool.quantize(proto, data=feeds()).report)) == {"one", "two"}


@pytest.mark.parametrize("scales", [(), (2.0, 0.5)])
def test_a_network_that_loses_a_little_everywhere_is_quantized_whole(scales: tuple[float, ...]) -> None:
    report = quantool.quantize(network("[last] y = Conv(h, w)", w=last(*scales)), data=feeds()).report
    assert kept(report) == {}


def test_most_of_the_work_is_not_given_up_for_accuracy() -> None:
    report = quantool.quantize(network("[last] y = Identity(h)", layers=1), data=feeds(), weights="int4").report
    assert "too-lossy" not in kept(report).values()


def test_what_is_multiplied_counts_where_shapes_are_unknown() -> None:
    proto = model(
        "(float x) => (float y) { [one] h = MatMul(x, w) [two] y = MatMul(h, v) }",
        {"w": normal(CHANNELS, CHANNELS, seed=1), "v": normal(CHANNELS, CHANNELS, seed=2)},
    )
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    rows = [{"x": feed["x"][0, :, 0, :8]} for feed in feeds()]
    assert kept(quantool.quantize(proto, data=rows).report) == {}


@pytest.mark.parametrize("options", [{"effort": "fast"}, {"include": ["*"]}])
def test_nothing_is_measured_without_effort_and_nothing_kept_that_was_asked_for(options: dict[str, Any]) -> None:
    report = quantool.quantize(boxes_and_scores(), data=feeds(), **options).report
    assert kept(report) == {}
    assert not any("in float" in trial.name for trial in report.trials)


def test_the_choice_is_repeatable_and_follows_from_the_reports_recipe() -> None:
    first = quantool.quantize(boxes_and_scores(), data=feeds())
    again = quantool.quantize(boxes_and_scores(), data=feeds())
    told = quantool.quantize(boxes_and_scores(), data=feeds(), recipe=first.report.to_dict()["recipe"])
    content = {result.model.SerializeToString(deterministic=True) for result in (first, again, told)}
    assert len(content) == 1


def test_what_is_too_large_to_be_measured_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "LARGEST_BYTES", 1000)
    report = quantool.quantize(boxes_and_scores(), data=feeds()).report
    assert kept(report) == {}
    assert "groups-not-measured" in {note.code for note in report.warnings}
    assert not any("in float" in trial.name for trial in report.trials)


@pytest.mark.parametrize("count", [17, 24, 48, 120])
def test_measuring_runs_the_model_no_more_often_than_calibration(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = 0

    class Counted(noise.Session):
        def run(self, *args: Any, **options: Any) -> Any:
            nonlocal runs
            runs += 1
            return super().run(*args, **options)

    monkeypatch.setattr(noise, "Session", Counted)
    report = quantool.quantize(boxes_and_scores(), data=feeds(count)).report
    assert report.data is not None
    assert 0 < runs <= report.data.samples
    assert "last" in kept(report)
