"""What is chosen by measurement, on graphs where the right choice is known."""

from __future__ import annotations

import numpy as np
import onnx.parser
from onnx import numpy_helper

import quantool
from quantool import graph
from quantool.pipeline.choose import scored_tensors
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
    assert [trial.name for trial in named.trials] == ["percentile ranges", "percentile ranges, bias correction"]


def shifted_network():
    """Weights whose rounding errors all point one way, and inputs whose mean is far from zero."""
    rng = np.random.default_rng(1)
    text = HEADER + "(float[n, 64] x) => (float[n, 32] y) { p = MatMul(x, w)  y = Add(p, b) }"
    model = onnx.parser.parse_model(text)
    weight = np.floor(rng.uniform(-100, 100, (64, 32))) + 0.4
    weight[0] = 127.0
    model.graph.initializer.append(numpy_helper.from_array((weight / 127).astype(np.float32), "w"))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(32, np.float32), "b"))
    return model, [{"x": rng.uniform(0, 1, (16, 64)).astype(np.float32)} for _ in range(20)]


def test_bias_correction_is_kept_where_it_helps():
    model, feeds = shifted_network()
    corrected = quantool.quantize(model, data=feeds).report
    plain = quantool.quantize(model, data=feeds, effort="fast").report
    gain = corrected.verification.outputs["y"].sqnr_db - plain.verification.outputs["y"].sqnr_db
    assert corrected.trials[-1].chosen
    assert gain > 6


def test_the_choice_is_repeatable_from_the_reports_recipe():
    model, feeds = network()
    first = quantool.quantize(model, data=feeds)
    again = quantool.quantize(model, data=feeds, recipe=first.report.to_dict()["recipe"])
    assert again.model.SerializeToString(deterministic=True) == first.model.SerializeToString(deterministic=True)
