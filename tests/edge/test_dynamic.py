"""EDGE_CASES, dynamic mode."""

from __future__ import annotations

import numpy as np
import pytest

import quantool
from tests.edge.driver import DYNAMIC_DB, check, run
from tests.edge.graphs import feeds, model, normal, weight

SAME = "<pads = [1, 1, 1, 1]>"


@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("shape", [(8, 24), (2, 8, 24), (2, 3, 8, 24), (1, 24)], ids=str)
def test_a_matmul_with_columns_of_unequal_size(shape: tuple[int, ...], granularity: str, weights: str) -> None:
    dims = ",".join(["B", "C", "T"][: len(shape) - 1])
    text = f"(float[{dims},24] x) => (float[{dims},10] y) {{ y = MatMul (x, w) }}"
    w = weight(24, 10) * (np.geomspace(1, 300, 10).astype(np.float32) if granularity == "channel" else np.float32(1))
    proto = model(text, {"w": w})
    samples = feeds(12, x=shape)
    result = check(proto, samples, "dynamic", granularity=granularity, weights=weights, db=DYNAMIC_DB)
    for rows in (1, 3, 0):
        given = [{"x": np.concatenate([f["x"] for f in samples])[:rows]}]
        (exact,), (found,) = run(proto, given), run(result.proto, given)
        assert exact["y"].shape == found["y"].shape
        assert np.square(exact["y"] - found["y"]).sum() <= np.square(exact["y"]).sum() / 300


@pytest.mark.parametrize("data", [True, False])
def test_a_cnn_with_a_classifier_keeps_its_convs(data: bool) -> None:
    text = f"""(float[N,3,8,8] x) => (float[N,5] y) {{
        a = Conv {SAME} (x, w)  r = Relu (a)  c = Conv {SAME} (r, u)  g = GlobalAveragePool (c)  f = Flatten (g)
        y = Gemm (f, v, b)
    }}"""
    constants = {"w": weight(6, 3, 3, 3), "u": weight(8, 6, 3, 3, seed=1), "v": weight(8, 5, seed=2), "b": normal(5)}
    samples = feeds(x=(2, 3, 8, 8))
    if data:
        result = check(model(text, constants), samples, "dynamic", db=DYNAMIC_DB)
        found, ops = result.decisions(), result.ops
    else:
        plain = quantool.quantize(model(text, constants), mode="dynamic")
        found = {row.name: "quantized" if row.reason is None else row.reason.code for row in plain.report.nodes}
        ops = {node.op_type: 1 for node in plain.model.graph.node}
    assert "ConvInteger" not in ops
    assert (found["Conv:a"], found["Conv:c"], found["Gemm:y"]) == ("mode", "mode", "quantized")


@pytest.mark.parametrize("mode", ["dynamic", "weight-only", "static"])
def test_a_conv_whose_weight_is_an_input_beside_a_matmul(mode: str) -> None:
    text = f"""(float[N,3,8,8] x, float[4,3,3,3] w) => (float[N,5] y) {{
        a = Conv {SAME} (x, w)  g = GlobalAveragePool (a)  f = Flatten (g)  y = MatMul (f, v)
    }}"""
    samples = [{**feed, "w": weight(4, 3, 3, 3, seed=i % 2)} for i, feed in enumerate(feeds(x=(8, 3, 8, 8)))]
    result = check(model(text, {"v": weight(4, 5)}), samples, mode=mode, db=20)
    assert result.decisions()["Conv:a"] in ("mode", "weight-not-constant")
    assert result.decisions()["MatMul:y"] == "quantized"


@pytest.mark.parametrize("weights", ["int4", "uint4", "int2", "int16", "float8_e4m3fn"])
def test_other_weights_are_refused_by_option(weights: str) -> None:
    proto = model("(float[N,24] x) => (float[N,10] y) { y = MatMul (x, w) }", {"w": weight(24, 10)})
    with pytest.raises(quantool.OptionError, match=r"--weights") as caught:
        quantool.quantize(proto, mode="dynamic", weights=weights)
    assert caught.value.exit_code == 2


def test_activations_that_are_constant_or_tiny_at_run_time_are_right() -> None:
    proto = model("(float[N,24] x) => (float[N,10] y) { y = MatMul (x, w) }", {"w": weight(24, 10)})
    result = check(proto, feeds(8, x=(8, 24)), "dynamic")
    for value in (0.0, 3.0, -3.0, 1e-30):
        given = [{"x": np.full((2, 24), value, np.float32)}]
        (exact,), (found,) = run(proto, given), run(result.proto, given)
        assert np.abs(exact["y"] - found["y"]).max() <= np.abs(exact["y"]).max() / 50
