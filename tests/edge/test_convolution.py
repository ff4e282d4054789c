"""EDGE_CASES, convolution: depthwise, transposed, normalized, joined, padded, moved."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.edge.driver import FORMS, SIX_LAYERS_DB, STATIC_DB, WEIGHTS_DB, check
from tests.edge.graphs import Constants, feeds, model, normal, weight

STATIC = pytest.mark.parametrize("form", ["qdq", "qoperator"])
ALL_FORMS = pytest.mark.parametrize("form", FORMS)
SAME = "<pads = [1, 1, 1, 1]>"
FEEDS = feeds(20, x=(4, 3, 12, 12))


def spread(count: int, factor: float, seed: int = 3) -> np.ndarray:
    """Factors for channels, from 1 to 1 / factor in a random order."""
    found = np.geomspace(1, 1 / factor, count).astype(np.float32)
    return np.random.default_rng(seed).permutation(found)


def batch_norm(name: str, channels: int, seed: int, factors: np.ndarray | None = None) -> Constants:
    """The four constants of a BatchNormalization; factors: what the channels are divided by."""
    own = np.ones(channels, np.float32) if factors is None else factors
    rng = np.random.default_rng(seed)
    return {
        f"{name}_s": rng.uniform(0.5, 1.5, channels).astype(np.float32),
        f"{name}_b": normal(channels, seed=seed, scale=0.2),
        f"{name}_m": normal(channels, seed=seed + 1, scale=0.1) * own,
        f"{name}_v": (rng.uniform(0.5, 1.5, channels) * own * own).astype(np.float32),
    }


@pytest.mark.parametrize("opset", [9, 13, 17])
@STATIC
def test_a_depthwise_conv_of_unequal_channels_evened_out_by_a_batch_norm(form: str, opset: int) -> None:
    factors = spread(8, 300)
    text = f"""(float[N,3,12,12] x) => (float[N,5,12,12] y) {{
        a = Conv {SAME} (x, w0)  r = Relu (a)
        d = Conv <pads = [1, 1, 1, 1], group = 8> (r, wd)
        n = BatchNormalization <epsilon = 1.e-8> (d, n_s, n_b, n_m, n_v)  c = Relu (n)
        y = Conv (c, w1)
    }}"""
    constants = {
        "w0": weight(8, 3, 3, 3),
        "wd": weight(8, 1, 3, 3, seed=1) * factors.reshape(-1, 1, 1, 1),
        "w1": weight(5, 8, 1, 1, seed=2),
        **batch_norm("n", 8, 4, factors),
    }
    result = check(model(text, constants, opset=opset), FEEDS, form, db=24)
    assert result.decisions()["Conv:d"] == "quantized"
    assert "BatchNormalization" not in result.ops


def test_dynamic_mode_leaves_a_depthwise_conv_of_unequal_channels_in_float() -> None:
    text = """(float[N,8,6,6] x) => (float[N,4] y) {
        d = Conv <pads = [1, 1, 1, 1], group = 8> (x, wd)  p = GlobalAveragePool (d)
        f = Flatten (p)  y = MatMul (f, w)
    }"""
    wd = weight(8, 1, 3, 3) * spread(8, 300).reshape(-1, 1, 1, 1)
    proto = model(text, {"wd": wd, "w": normal(8, 4)})
    samples = feeds(x=(4, 8, 6, 6))
    result = check(proto, samples, "dynamic", db=25)
    assert result.decisions()["Conv:d"] != "quantized"
    asked = check(proto, samples, "dynamic", include_op=["Conv"])
    scales = [a for n, a in asked.constants().items() if n.startswith("wd_scale")]
    assert all(scale.size == 8 for scale in scales)


@ALL_FORMS
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("group", "out"), [(1, 5), (2, 6), (4, 4), (4, 8)])
@pytest.mark.parametrize(
    "attributes",
    ["strides = [2, 2]", "strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]", 'auto_pad = "SAME_UPPER"'],
)
def test_conv_transpose(form: str, group: int, out: int, bias: bool, attributes: str) -> None:
    text = f"""(float[N,3,7,7] x) => (float[N,2,H,W] y) {{
        a = Conv {SAME} (x, w0)  r = Relu (a)
        t = ConvTranspose <{attributes}, group = {group}> (r, wt{", b" if bias else ""})
        y = Conv {SAME} (t, w1)
    }}"""
    constants = {
        "w0": weight(4, 3, 3, 3),
        "wt": normal(4, out // group, 3, 3, seed=1, scale=0.4),
        "b": normal(out, seed=2, scale=0.3),
        "w1": weight(2, out, 3, 3, seed=3),
    }
    if form == "dynamic":
        text = text.replace(f"y = Conv {SAME} (t, w1)", "g = GlobalAveragePool (t)  f = Flatten (g)  y = MatMul (f, v)")
        constants["v"] = normal(out, 2, seed=3)
        text = text.replace("float[N,2,H,W] y", "float[N,2] y")
    check(model(text, constants), feeds(x=(4, 3, 7, 7)), form, db=20 if form == "dynamic" else 26)


NORMALIZED = {
    "Conv": (f"h = Conv {SAME} (x, w)", {"w": weight(8, 3, 3, 3)}),
    "Conv with bias": (f"h = Conv {SAME} (x, w, b)", {"w": weight(8, 3, 3, 3), "b": normal(8, seed=9)}),
    "grouped Conv": (
        f"a = Conv {SAME} (x, u)  h = Conv <group = 2> (a, w)",
        {"u": weight(6, 3, 3, 3), "w": weight(8, 3, 1, 1, seed=5)},
    ),
    "ConvTranspose": ("h = ConvTranspose <strides = [2, 2]> (x, w)", {"w": normal(3, 8, 2, 2, scale=0.5)}),
    "grouped ConvTranspose": (
        f"a = Conv {SAME} (x, u)  h = ConvTranspose <strides = [2, 2], group = 2> (a, w)",
        {"u": weight(6, 3, 3, 3), "w": normal(6, 4, 2, 2, scale=0.5)},
    ),
}


@ALL_FORMS
@pytest.mark.parametrize("name", NORMALIZED)
@pytest.mark.parametrize("opset", [8, 13, 21])
def test_a_batch_norm_is_folded(form: str, name: str, opset: int) -> None:
    before, constants = NORMALIZED[name]
    text = f"""(float[N,3,12,12] x) => (float[N,4] y) {{
        {before}
        n = BatchNormalization (h, n_s, n_b, n_m, n_v)  r = Relu (n)
        p = GlobalAveragePool (r)  f = Flatten (p)  y = MatMul (f, v)
    }}"""
    proto = model(text, {**constants, **batch_norm("n", 8, 6), "v": weight(8, 4, seed=7)}, opset=opset)
    result = check(proto, FEEDS, form, db=WEIGHTS_DB - 2 if form == "weight-only" else 24)
    assert "BatchNormalization" not in result.ops


@STATIC
@pytest.mark.parametrize("opset", [9, 17])
def test_a_batch_norm_after_a_matmul_or_alone_is_accurate(form: str, opset: int) -> None:
    text = """(float[N,24] x) => (float[N,5] y) {
        h = MatMul (x, w)  n = BatchNormalization (h, n_s, n_b, n_m, n_v)  r = Relu (n)
        q = Softplus (r)  k = BatchNormalization (q, k_s, k_b, k_m, k_v)  y = MatMul (k, v)
    }"""
    constants = {"w": weight(24, 8), "v": weight(8, 5, seed=1), **batch_norm("n", 8, 2), **batch_norm("k", 8, 5)}
    result = check(model(text, constants, opset=opset), feeds(x=(32, 24)), form, db=STATIC_DB - 2)
    assert result.decisions()["BatchNormalization:k"] in ("normalization", "quantized")
    assert all(not name.startswith(("k_s_q", "k_m_q", "k_v_q")) for name in result.constants())


@STATIC
@pytest.mark.parametrize(
    "joined", ["c = Concat <axis = 1> (a)", "c = Concat <axis = 1> (a, a)", "c = Concat <axis = 3> (a, a, a)"]
)
def test_concat_of_one_input_or_the_same_twice(form: str, joined: str) -> None:
    channels = 8 if "axis = 1> (a, a)" in joined else 4
    text = f"""(float[N,3,12,12] x) => (float[N,5,H,W] y) {{
        a = Conv {SAME} (x, w)  {joined}  y = Conv {SAME} (c, v)
    }}"""
    proto = model(text, {"w": weight(4, 3, 3, 3), "v": weight(5, channels, 3, 3, seed=1)})
    result = check(proto, FEEDS, form, db=STATIC_DB)
    assert result.decisions()["Conv:a"] == result.decisions()["Conv:y"] == "quantized"


@pytest.mark.parametrize("opset", [11, 13, 18])
@STATIC
def test_three_residual_blocks_run_as_integers(form: str, opset: int) -> None:
    blocks, constants, source = [], {"w": weight(8, 3, 3, 3)}, "r"
    for i in range(3):
        blocks.append(f"""
            a{i} = Conv {SAME} ({source}, u{i}, c{i})  p{i} = Relu (a{i})
            b{i} = Conv {SAME} (p{i}, v{i}, c{i})  s{i} = Add (b{i}, {source})  r{i} = Relu (s{i})""")
        constants |= {f"u{i}": weight(8, 8, 3, 3, seed=i + 1), f"v{i}": weight(8, 8, 3, 3, seed=i + 9)}
        constants[f"c{i}"] = normal(8, seed=i, scale=0.1)
        source = f"r{i}"
    text = f"(float[N,3,12,12] x) => (float[N,8,12,12] r2) {{ h = Conv {SAME} (x, w)  r = Relu (h) {''.join(blocks)} }}"
    result = check(model(text, constants, opset=opset), FEEDS, form, db=SIX_LAYERS_DB)
    runs = {row.name: row.runs_as for row in result.report.nodes if row.op_type in ("Conv", "Add")}
    assert runs == dict.fromkeys(runs, "integer")
    assert len(runs) == 10
    assert sum(result.report.runtime.left.values()) <= 4


MOVERS = {
    "MaxPool": "m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)",
    "Transpose": "m = Transpose <perm = [0, 1, 3, 2]> (a)",
    "Reshape": "m = Reshape (a, shape)",
    "Slice": "m = Slice (a, start, stop, axes)",
    "Gather": "m = Gather <axis = 2> (a, index)",
    "Split": "m, rest = Split <axis = 2> (a, halves)",
    "Expand": "m = Expand (a, wide)",
    "DepthToSpace": "m = DepthToSpace <blocksize = 2> (a)",
    "Tile": "m = Tile (a, twice)",
    "Flatten": "f = Flatten <axis = 1> (a)  m = Reshape (f, shape)",
    "Squeeze": "u = Unsqueeze (a, axes)  m = Squeeze (u, axes)",
    "two": "t = MaxPool <kernel_shape = [2, 2]> (a)  m = Transpose <perm = [0, 1, 3, 2]> (t)",
}
INDICES = {
    "shape": np.array([0, 8, 6, 24]),
    "start": np.array([1]),
    "stop": np.array([9]),
    "axes": np.array([2]),
    "index": np.array([3, 1, 1, 7]),
    "halves": np.array([6, 6]),
    "wide": np.array([4, 8, 12, 12]),
    "twice": np.array([1, 1, 2, 1]),
}


@STATIC
@pytest.mark.parametrize("name", MOVERS)
def test_data_movers_keep_scale_and_zero_point(form: str, name: str) -> None:
    channels = 2 if name == "DepthToSpace" else 8
    text = f"""(float[4,3,12,12] x) => (float[N,5,H,W] y) {{
        a = Conv {SAME} (x, w)  {MOVERS[name]}  y = Conv {SAME} (m, v)
    }}"""
    proto = model(text, {"w": weight(8, 3, 3, 3), "v": weight(5, channels, 3, 3, seed=1), **INDICES})
    result = check(proto, FEEDS, form, db=STATIC_DB)
    assert result.report.runtime.fused["QLinearConv"] == 2
    assert sum(result.report.runtime.left.values()) <= 2
    kinds = {row.name: (row.scale, row.zero_point) for row in result.report.tensors if row.name in ("a", "m")}
    assert len(set(kinds.values())) == 1


PADS = {
    "zero": 'p = Pad <mode = "constant"> (a, pads)',
    "nine": 'p = Pad <mode = "constant"> (a, pads, nine)',
    "reflect": 'p = Pad <mode = "reflect"> (a, pads)',
    "edge": 'p = Pad <mode = "edge"> (a, pads)',
    "negative": "p = Pad (a, cut)",
    "of the batch": "p = Pad (a, more)",
    "empty value": 'p = Pad (a, pads, "")',
}


@ALL_FORMS
@pytest.mark.parametrize("name", PADS)
def test_pads_before_a_conv(form: str, name: str) -> None:
    text = f"""(float[N,3,12,12] x) => (float[B,4] y) {{
        a = Conv {SAME} (x, w)  {PADS[name]}  c = Conv {SAME} (p, v)
        g = GlobalMaxPool (c)  f = Flatten (g)  y = MatMul (f, u)
    }}"""
    constants = {
        "w": weight(4, 3, 3, 3),
        "v": weight(5, 4, 3, 3, seed=1),
        "u": weight(5, 4, seed=2),
        "pads": np.array([0, 0, 1, 2, 0, 0, 2, 1]),
        "cut": np.array([0, 0, -1, -2, 0, 0, -2, 1]),
        "more": np.array([1, 0, 0, 0, 0, 0, 0, 0]),
        "nine": np.float32(9),
    }
    result = check(model(text, constants), FEEDS, form, db=24)
    if form in ("qdq", "qoperator"):
        assert result.decisions()["Conv:c"] == "quantized"


@ALL_FORMS
def test_a_conv_whose_weight_is_an_input(form: str) -> None:
    text = f"""(float[N,3,12,12] x, float[4,3,3,3] w) => (float[N,5] y) {{
        a = Conv {SAME} (x, w)  b = Conv {SAME} (a, v)
        g = GlobalMaxPool (b)  f = Flatten (g)  y = MatMul (f, u)
    }}"""
    samples = [{**feed, "w": weight(4, 3, 3, 3, seed=i % 3)} for i, feed in enumerate(FEEDS)]
    constants = {"v": weight(5, 4, 3, 3, seed=5), "u": weight(5, 5, seed=2)}
    result = check(model(text, constants), samples, form, db=24)
    assert result.decisions()["Conv:b"] == ("mode" if form == "dynamic" else "quantized")


RESIZES = {
    "axes and scales": 's = Resize <mode = "nearest", axes = [2, 3]> (a, "", pair)',
    "axes and sizes": 's = Resize <mode = "nearest", axes = [2, 3]> (a, "", "", sizes)',
    "axes in another order": 's = Resize <mode = "linear", axes = [3, 2]> (a, "", pair)',
    "aspect ratio": 's = Resize <axes = [2, 3], keep_aspect_ratio_policy = "not_larger"> (a, "", "", sizes)',
    "cubic up": 's = Resize <mode = "cubic"> (a, "", scales)',
    "cubic down": 's = Resize <mode = "cubic"> (a, "", less)',
    "antialias": 's = Resize <mode = "linear", antialias = 1> (a, "", less)',
    "behind a Relu": 'r = Relu (a)  s = Resize <mode = "cubic"> (r, "", less)',
}


@STATIC
@pytest.mark.parametrize("name", RESIZES)
def test_a_resize_is_not_moved_into_the_layout_of_integer_convs(form: str, name: str) -> None:
    text = f"(float[4,3,12,12] x) => (float[] y) {{ a = Conv {SAME} (x, w)  {RESIZES[name]}  y = Conv {SAME} (s, v) }}"
    constants = {
        "w": weight(6, 3, 3, 3),
        "v": weight(4, 6, 3, 3, seed=1),
        "pair": np.array([2, 1.5], np.float32),
        "sizes": np.array([20, 7]),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "less": np.array([1, 1, 0.7, 0.8], np.float32),
    }
    result = check(model(text, constants, opset=18), FEEDS, form, db=24)
    assert result.report.runtime.fused["QLinearConv"] == 2


@ALL_FORMS
def test_the_newest_opset_of_onnx(form: str) -> None:
    text = f"""(float[N,3,12,12] x) => (float[N,4] y) {{
        a = Conv {SAME} (x, w, b)  r = Relu (a)  g = GlobalAveragePool (r)  f = Flatten (g)  y = MatMul (f, v)
    }}"""
    constants = {"w": weight(6, 3, 3, 3), "b": normal(6, scale=0.2), "v": weight(6, 4, seed=1)}
    newest = onnx.defs.onnx_opset_version()
    result = check(model(text, constants, opset=newest, ir=onnx.IR_VERSION), FEEDS, form, db=24)
    assert result.decisions()["MatMul:y"] == "quantized"
