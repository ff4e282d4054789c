"""Smoothed models compute the same in float, take factors up where they can, and their Gram matrices follow exactly."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from calibrators.registry import STATISTICS
from pipeline.bed import model, normal
from pipeline.test_equal_function import ROUNDING, network, prepared
from quantool.algorithms.gptq import rescaled_gram
from quantool.algorithms.layer_input import LayerInput, layer_input
from quantool.graph.outputs import with_outputs
from quantool.pipeline.choice import smooth as smooth_module
from quantool.pipeline.choice.rescale import Rescaled
from quantool.pipeline.choice.smooth import SMOOTHED, smoothed
from quantool.pipeline.source import FloatModel, run_all
from quantool.recipe import from_options
from quantool.runtime import tap
from quantool.schema import AnyArray, Feed, Note, Plan


def smooth(source: FloatModel, plan: Plan, feeds: list[Feed], *, convolutions: bool) -> Rescaled | Note | None:
    """Every unit at its best strength."""
    return smoothed(
        source,
        plan,
        {name: STATISTICS["histogram"]() for name in source.facts.tensors},
        feeds,
        recipe=from_options({}),
        known={},
        origins={},
        among=lambda _: True,
        convolutions=convolutions,
        least_saved=-np.inf,
    )


def assert_same(source: FloatModel, found: Rescaled, feeds: list[Feed]) -> None:
    """The function is the same, and Gram matrices rescaled by the origins are those of the new model."""
    assert SMOOTHED in found.source.changed
    for before, after in zip(*(run_all(one.normalized, feeds) for one in (source, found.source)), strict=True):
        for name, array in before.items():
            assert np.abs(array - after[name]).max() <= ROUNDING * np.abs(array).max()
    for node in found.source.facts.nodes:
        new = layer_input(found.source.facts, node)
        if new is None or new.tensor not in found.origins:
            continue
        origin, old = found.origins[new.tensor], layer_input(source.facts, source.facts.by_name[node.name])
        assert old is not None
        assert old.tensor == origin.tensor
        exact, rescaled = (gram(one, rows, feeds) for one, rows in ((found.source, new), (source, old)))
        np.testing.assert_allclose(
            rescaled_gram(rescaled, new.spread(origin.factors)), exact, rtol=1e-3, atol=1e-5 * np.abs(exact).max()
        )


def gram(source: FloatModel, rows: LayerInput, feeds: list[Feed]) -> AnyArray:
    """The sum of x x^T over all rows, in float64."""
    stream = tap(source.normalized, feeds, groups=[[rows.tensor]], with_outputs=with_outputs)
    found = [rows.rows(arrays[rows.tensor], most=10_000).astype(np.float64) for _, arrays in stream]
    return sum(np.einsum("ngi,ngj->gij", x, x) for x in found)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_smoothing_keeps_the_function_of_random_networks(first: int) -> None:
    changed = 0
    for seed in range(first, first + 10):
        source, plan = prepared(network(seed))
        feeds = [{"x": normal(2, 8, 6, 6, seed=1000 + 10 * seed + i)} for i in range(4)]
        for convolutions in (False, True):
            found = smooth(source, plan, feeds, convolutions=convolutions)
            if found is not None:
                assert isinstance(found, Rescaled)
                assert_same(source, found, feeds)
                changed += 1
    assert changed >= 4


def transformer(body: str, opset: int) -> onnx.ModelProto:
    """`body` makes h of x, which two products read."""
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.normal(0, 1.5, 16)).astype(np.float32)
    held = {"g": sizes, "b": sizes / 3, "q": normal(16, 8, seed=1), "k": normal(16, 8, seed=2)}
    text = f"(float[2,5,16] x) => (float[2,5,8] y, float[2,5,8] z) {{ {body} y = MatMul(h, q) z = MatMul(h, k) }}"
    return model(text, held, opset=opset)


@pytest.mark.parametrize(
    ("body", "inserted"),
    [
        ("h = LayerNormalization<axis=-1>(x, g, b)", 0),
        ("m = Mul(x, g) h = Add(m, b)", 0),
        ("m = Tanh(x) h = Mul(g, m)", 0),
        ("m = Mul(x, g) h = Tanh(m)", 1),
    ],
)
def test_constants_in_front_take_the_factors_up(body: str, inserted: int) -> None:
    source, plan = prepared(transformer(body, 17))
    feeds = [{"x": normal(2, 5, 16, seed=i)} for i in range(4)]
    found = smooth(source, plan, feeds, convolutions=False)
    assert isinstance(found, Rescaled)
    assert_same(source, found, feeds)
    muls = [sum(node.op_type == "Mul" for node in one.facts.nodes) for one in (source, found.source)]
    assert muls[1] - muls[0] == inserted
    assert len(found.origins) == 1


def test_a_tensor_that_others_read_too_keeps_its_values_for_them() -> None:
    proto = transformer("h = LayerNormalization<axis=-1>(x, g, b) w = Add(x, h)", 17)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, (2, 5, 16)))
    source, plan = prepared(proto)
    feeds = [{"x": normal(2, 5, 16, seed=i)} for i in range(4)]
    found = smooth(source, plan, feeds, convolutions=False)
    assert isinstance(found, Rescaled)
    assert_same(source, found, feeds)
    assert sum(node.op_type == "Mul" for node in found.source.facts.nodes) == 1


def test_what_computes_something_else_is_left_out_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smooth_module, "computes_the_same", lambda *_: False)
    source, plan = prepared(transformer("m = Mul(x, g) h = Tanh(m)", 17))
    found = smooth(source, plan, [{"x": normal(2, 5, 16, seed=i)} for i in range(4)], convolutions=False)
    assert isinstance(found, Note)
    assert found.code == "smoothing-left-out"
