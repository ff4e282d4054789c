"""What is chosen by measurement, on graphs where the right choice is known."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import quantool
from pipeline.bed import SAMPLES
from quantool import graph
from quantool.pipeline.choice.score import scored_tensors
from quantool.pipeline.hardest import MOST, Hardest

HEADER = '<ir_version: 8, opset_import: ["" : 13]> agraph '


def facts_of(text):
    return graph.facts(graph.prepare(graph.read(onnx.parser.parse_model(text))))


def test_an_output_behind_a_softmax_is_scored_in_front_of_it():
    text = HEADER + "(float[n, 4] x) => (float[n, 4] y) { a = Neg(x)  y = Softmax <axis = 1> (a) }"
    assert scored_tensors(facts_of(text)) == {"a": "Softmax:y"}


def test_a_softmax_in_primitive_operators_is_scored_in_front_of_its_exp():
    text = HEADER + (
        "(float[n, 4] x) => (float[n, 4] y)"
        " { m = ReduceMax <axes = [1]> (x)  s = Sub(x, m)  e = Exp(s)  axes = Constant <value_ints = [1]> ()"
        " t = ReduceSum(e, axes)  y = Div(e, t) }"
    )
    assert scored_tensors(facts_of(text)) == {"s": "Exp:e"}


def test_other_outputs_are_scored_themselves_and_integers_not_at_all():
    text = HEADER + ("(float[n, 4] x) => (float[n, 4] y, int64[n, 1] k) { y = Neg(x)  k = ArgMax <axis = 1> (x) }")
    assert scored_tensors(facts_of(text)) == {"y": ""}


def test_the_hardest_feeds_are_the_same_in_every_order():
    feeds = [{"x": np.full(3, value, np.float32)} for value in (1.0, 50.0, 2.0, 9.0, 30.0, 7.0)]

    def kept(order):
        hardest = Hardest()
        stream = ((i, {"t": feed["x"]}) for i, feed in enumerate(hardest.watch(order)))
        for _ in hardest.judge(stream):
            pass
        return sorted(float(feed["x"][0]) for feed in hardest.feeds)

    assert kept(feeds) == kept(feeds[::-1]) == kept(feeds + feeds) == [7.0, 9.0, 30.0, 50.0]
    assert len(kept(feeds)) == MOST


def network():
    """A matrix product whose input is small in most samples and large in a few."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(HEADER + "(float[n, 64] x) => (float[n, 32] y) { y = MatMul(x, w) }")
    weight = rng.standard_normal((64, 32)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    feeds = [{"x": rng.standard_normal((200, 64)).astype(np.float32)} for _ in range(60)]
    feeds += [{"x": 6 * rng.standard_normal((1, 64)).astype(np.float32)} for _ in range(2)]
    return model, feeds


def test_a_few_samples_of_large_values_keep_the_range_wide():
    model, feeds = network()
    chosen = quantool.quantize(model, data=feeds)
    trials = {trial.name: trial.score_db for trial in chosen.report.trials}
    assert trials["minmax ranges"] > trials["mse ranges"] + 2
    assert chosen.report.to_dict()["recipe"]["calibrator"] == "minmax"


def test_fast_effort_and_a_named_calibrator_leave_the_ranges_alone():
    model, feeds = network()
    fast = quantool.quantize(model, data=feeds, effort="fast").report
    assert fast.trials == ()
    named = quantool.quantize(model, data=feeds, calibrator="percentile").report
    assert {trial.name.split(",")[0] for trial in named.trials} == {"percentile ranges"}


def shifted_network():
    """A grouped convolution whose rounding errors all point one way on positive inputs."""
    rng = np.random.default_rng(1)
    text = HEADER + "(float[n, 8, 12, 12] x) => (float[n, 8, 10, 10] y) { y = Conv <group = 4> (x, w, b) }"
    model = onnx.parser.parse_model(text)
    weight = np.floor(rng.uniform(-100, 100, (8, 2, 3, 3))) + 0.4
    weight[:, 0, 0, 0] = 127.0
    model.graph.initializer.append(numpy_helper.from_array((weight / 127).astype(np.float32), "w"))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(8, np.float32), "b"))
    return model, [{"x": rng.uniform(0, 1, (2, 8, 12, 12)).astype(np.float32)} for _ in range(20)]


def test_bias_correction_is_kept_where_it_helps():
    model, feeds = shifted_network()
    # unsigned weights have a zero point, and GPTQ leaves them alone
    corrected = quantool.quantize(model, data=feeds, weights="uint8").report
    plain = quantool.quantize(model, data=feeds, weights="uint8", effort="fast").report
    gain = corrected.verification.outputs["y"].sqnr_db - plain.verification.outputs["y"].sqnr_db
    assert [trial.name for trial in corrected.trials if trial.chosen] == ["mse ranges, bias correction"]
    assert gain > 3


def test_gptq_leaves_codes_around_another_zero_alone():
    model, feeds = shifted_network()
    trials = quantool.quantize(model, data=feeds, weights="uint8", granularity="channel", effort="max").report.trials
    assert not any("GPTQ" in trial.name for trial in trials)


def test_gptq_rounds_grouped_convolutions_too():
    model, feeds = shifted_network()
    found = quantool.quantize(model, data=feeds).report.trials
    scores = {trial.name: trial.score_db for trial in found}
    assert scores["mse ranges, GPTQ in 1 layer"] > scores["mse ranges"] + 3


def test_the_choice_is_repeatable_from_the_reports_recipe():
    model, feeds = network()
    first = quantool.quantize(model, data=feeds)
    again = quantool.quantize(model, data=feeds, recipe=first.report.to_dict()["recipe"])
    assert again.model.SerializeToString(deterministic=True) == first.model.SerializeToString(deterministic=True)


def uneven_network():
    """Inputs whose channels differ a hundredfold, as behind a LayerNorm with outliers."""
    rng = np.random.default_rng(2)
    model = onnx.parser.parse_model(
        HEADER + "(float[n, 64] x) => (float[n, 32] y) { a = Tanh(x)  s = Mul(a, g)  y = MatMul(s, w) }"
    )
    gain = np.where(np.arange(64) % 16 == 0, 100.0, 1.0).astype(np.float32)
    weight = rng.standard_normal((64, 32)).astype(np.float32) / gain[:, None]
    model.graph.initializer.append(numpy_helper.from_array(gain, "g"))
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model, [{"x": rng.standard_normal((16, 64)).astype(np.float32)} for _ in range(40)]


def test_smoothing_is_tried_at_the_greatest_effort_and_kept_where_it_helps():
    model, feeds = uneven_network()
    plain = quantool.quantize(model, data=feeds).report
    smooth = quantool.quantize(model, data=feeds, effort="max")
    gain = smooth.report.verification.outputs["y"].sqnr_db - plain.verification.outputs["y"].sqnr_db
    assert not any("smoothed" in trial.name for trial in plain.trials)
    assert any("smoothed" in trial.name for trial in smooth.report.trials if trial.chosen)
    assert gain > 10
    assert [row.decision for row in smooth.report.nodes if row.op_type == "MatMul"] == ["quantized"]


@pytest.mark.parametrize("name", [pytest.param("digits_cnn", marks=pytest.mark.full), "digits_mlp"])
def test_four_bits_a_channel_are_usable_at_the_highest_effort(name: str) -> None:
    path = SAMPLES / f"{name}.onnx"
    options = {"data": str(path.with_suffix(".calib.npz")), "weights": "int4", "granularity": "channel"}
    found = [quantool.quantize(path, effort=effort, **options) for effort in ("fast", "max")]
    fast, best = (result.report.verification.outputs["scores"].sqnr_db for result in found)
    assert best >= fast + 6
    assert any(trial.chosen and "GPTQ" in trial.name for trial in found[1].report.trials)
    # the scales were fitted too, and what runs is what the parameters say: the run's own check passed
    again = quantool.quantize(path, effort="max", **options)
    assert again.model.SerializeToString(deterministic=True) == found[1].model.SerializeToString(deterministic=True)
