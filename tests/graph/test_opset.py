"""Raising the opset must keep the meaning: old and new form give the same numbers in ONNX Runtime."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx
import pytest

from quantool import graph
from quantool.errors import ModelError
from tests.graph.float_runs import normal_feed, parse, prepare, run, run_model


class Old(NamedTuple):
    """A graph body in an old form. x is float[N,4,6,5], y float."""

    opset: int
    body: str
    constants: str = ""
    inputs: str = "float[N,4,6,5] x"


SCALES_UP = "<float[4] s = {1.0,1.0,2.0,3.0}>"
SCALES_ODD = "<float[4] s = {1.0,1.0,1.7,2.3}>"
SCALES_DOWN = "<float[4] s = {1.0,1.0,0.4,0.7}>"
FORMS = {
    "resize-10-linear": Old(10, '[r] y = Resize <mode="linear"> (x, s)', SCALES_UP),
    "resize-10-linear-odd": Old(10, '[r] y = Resize <mode="linear"> (x, s)', SCALES_ODD),
    "resize-10-linear-down": Old(10, '[r] y = Resize <mode="linear"> (x, s)', SCALES_DOWN),
    "resize-10-nearest": Old(10, "[r] y = Resize (x, s)", SCALES_ODD),
    "resize-10-nearest-down": Old(10, "[r] y = Resize (x, s)", SCALES_DOWN),
    "upsample-7-linear": Old(7, '[r] y = Upsample <mode="linear", scales=[1.0,1.0,2.0,2.0]> (x)'),
    "upsample-8-nearest": Old(8, "[r] y = Upsample <scales=[1.0,1.0,2.0,3.0]> (x)"),
    "upsample-9-linear": Old(9, '[r] y = Upsample <mode="linear"> (x, s)', SCALES_UP),
    "upsample-9-nearest": Old(9, "[r] y = Upsample (x, s)", SCALES_ODD),
    "softmax-11": Old(11, "[r] y = Softmax <axis=1> (x)"),
    "softmax-9-default": Old(9, "[r] y = Softmax (x)"),
    "softmax-11-last": Old(11, "[r] y = Softmax <axis=-1> (x)"),
    "softmax-12-negative": Old(12, "[r] y = Softmax <axis=-2> (x)"),
    "log-softmax-7": Old(7, "[r] y = LogSoftmax <axis=2> (x)"),
    "softmax-rank-unknown": Old(
        11, "h = Reshape(x, k)\n [r] y = Softmax <axis=1> (h)", inputs="float[N,4,6,5] x, int64[K] k"
    ),
    "hardmax-7": Old(7, "[r] y = Hardmax (x)"),
    "hardmax-11": Old(11, "[r] y = Hardmax <axis=2> (x)"),
    "hardmax-11-negative": Old(11, "[r] y = Hardmax <axis=-3> (x)"),
    "hardmax-12-last": Old(12, "[r] y = Hardmax <axis=3> (x)"),
    "hardmax-rank-unknown": Old(
        11, "h = Reshape(x, k)\n [r] y = Hardmax <axis=1> (h)", inputs="float[N,4,6,5] x, int64[K] k"
    ),
    "hardmax-in-the-middle": Old(11, "a = Abs(x)\n [r] h = Hardmax <axis=1> (a)\n y = Mul(h, a)"),
    "clip-7": Old(7, "[r] y = Clip <min=-0.5, max=0.25> (x)"),
    "clip-10-one-side": Old(10, "[r] y = Clip <max=0.25> (x)"),
    "pad-7": Old(7, "[r] y = Pad <pads=[0,0,1,2,0,0,3,1], value=9.0> (x)"),
    "slice-9": Old(9, "[r] y = Slice <starts=[1,0], ends=[3,-1], axes=[2,3]> (x)"),
    "split-12": Old(12, "[r] a, b = Split <axis=1, split=[1,3]> (x)\n y = Concat <axis=1> (b, a)"),
    "split-9-even": Old(9, "[r] a, b = Split <axis=1> (x)\n y = Sub(b, a)"),
    "split-13-even": Old(13, "[r] a, b = Split <axis=1> (x)\n y = Sub(b, a)"),
    "squeeze-12": Old(12, "h = Unsqueeze <axes=[2]> (x)\n g = Relu(h)\n [r] y = Squeeze <axes=[2]> (g)"),
    "reduce-mean-11": Old(11, "[r] y = ReduceMean <axes=[1,-1], keepdims=0> (x)"),
    "reduce-sum-11": Old(11, "[r] y = ReduceSum <axes=[-1]> (x)"),
    "reduce-max-12-all": Old(12, "[r] y = ReduceMax <keepdims=0> (x)"),
    "top-k-9": Old(9, "[r] y, i = TopK <k=2, axis=1> (x)"),
    "dropout-7": Old(7, "h = Dropout <ratio=0.3> (x)\n [r] y = Abs(h)"),
    "max-pool-7": Old(7, "[r] y = MaxPool <kernel_shape=[2,2], strides=[2,2]> (x)"),
    "average-pool-7": Old(7, "[r] y = AveragePool <kernel_shape=[3,3], pads=[1,1,1,1]> (x)"),
    "scatter-9": Old(
        9, "[r] y = Scatter <axis=0> (x, i, u)", "<int64[1,1,1,2] i = {0,0}, float[1,1,1,2] u = {5.0,6.0}>"
    ),
    "depth-to-space-10": Old(10, "[r] y = DepthToSpace <blocksize=2> (x)"),
    "prelu-7": Old(7, "[r] y = PRelu (x, s)", "<float[4,1,1] s = {0.1,0.2,0.3,0.4}>"),
    "batch-norm-7": Old(
        7,
        "[r] y = BatchNormalization (x, s, b, b, s)",
        "<float[4] s = {1.0,2.0,3.0,4.0}, float[4] b = {0.1,0.2,0.3,0.4}>",
    ),
    "gemm-7": Old(
        7,
        "h = Flatten <axis=3> (x)\n [r] y = Gemm <alpha=0.5, beta=2.0> (h, w, c)",
        "<float[5,2] w = {1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0,9.0,0.0}, float[2] c = {1.0,-1.0}>",
    ),
    "group-norm-18": Old(
        18, "[r] y = GroupNormalization <num_groups=2> (x, s, b)", "<float[2] s = {1.0,2.0}, float[2] b = {0.1,0.2}>"
    ),
    "group-norm-18-instance": Old(
        18,
        "[r] y = GroupNormalization <num_groups=4> (x, s, b)",
        "<float[4] s = {1.0,2.0,3.0,4.0}, float[4] b = {0.1,0.2,0.3,0.4}>",
    ),
    "grid-sample-16": Old(
        16, '[r] y = GridSample <mode="bilinear"> (x, g)', inputs="float[N,4,6,5] x, float[N,3,3,2] g"
    ),
    "roi-align-10": Old(
        10,
        "[r] y = RoiAlign <output_height=2, output_width=2, spatial_scale=1.0> (x, r, b)",
        "<float[1,4] r = {0.3,0.4,3.7,4.1}, int64[1] b = {1}>",
    ),
    "shape-7": Old(7, "h = Shape(x)\n f = Cast <to=1> (h)\n [r] y = Identity(f)"),
    "contrib-operator-in-the-default-domain": Old(
        11,
        "h = ReduceSum <axes=[1]> (x)\n [r] y = SimplifiedLayerNormalization <axis=-1> (h, s)",
        "<float[5] s = {1.0,2.0,3.0,4.0,5.0}>",
    ),
    "layer-norm-before-17": Old(
        13, "[r] y = LayerNormalization <axis=-1> (x, s, s)", "<float[5] s = {1.0,2.0,3.0,4.0,5.0}>"
    ),
}


def text(old: Old) -> str:
    return f"""<ir_version: 6, opset_import: ["": {old.opset}]>
    g ({old.inputs}) => (float y) {old.constants} {{ {old.body} }}"""


def model_of(old: Old) -> onnx.ModelProto:
    model = parse(text(old))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def feed_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    feed = normal_feed(model)
    if "k" in feed:
        feed["k"] = np.array([2, 4, -1], dtype=np.int64)
    if "g" in feed:
        feed["g"] = np.tanh(feed["g"])
    return feed


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("name", FORMS)
def test_a_raised_operator_keeps_its_numbers(name: str, opset: int) -> None:
    model = model_of(FORMS[name])
    feed = feed_of(model)
    raised = graph.prepare(graph.read(model), opset=opset)
    expected = run(model.SerializeToString(), feed)
    assert raised.ir.opset_imports[""] == max(opset, FORMS[name].opset)
    # AveragePool-19 sums its 9 values in another order; all others are exact.
    rounding = 2 * 9 * 2.0**-24 * np.abs(feed["x"]).max() if name == "average-pool-7" else 0.0
    for want, got in zip(expected, run_model(raised, feed), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=rounding)


REFUSED = {
    "batch-norm-in-training-mode": (
        Old(
            7,
            "[r] y, m1, v1, m2, v2 = BatchNormalization (x, s, b, b, s)",
            "<float[4] s = {1.0,2.0,3.0,4.0}, float[4] b = {0.1,0.2,0.3,0.4}>",
        ),
        r"node 'r' \(BatchNormalization\) is in training mode",
    ),
    "nearest-resize-both-ways": (
        Old(10, "[r] y = Resize (x, s)", "<float[4] s = {1.0,1.0,2.0,0.5}>"),
        r"node 'r' \(Resize\) enlarges one axis and reduces another",
    ),
    "group-norm-with-computed-scale": (
        Old(
            18,
            "s = Abs(t)\n [r] y = GroupNormalization <num_groups=2> (x, s, s)",
            inputs="float[N,4,6,5] x, float[2] t",
        ),
        r"node 'r' \(GroupNormalization\) needs a scale for each channel",
    ),
    "batch-norm-per-activation": (
        Old(7, "[r] y = BatchNormalization <spatial=0> (x, s, s, s, s)", inputs="float[N,4,6,5] x, float[4,6,5] s"),
        r"onnx cannot convert node 'r' \(BatchNormalization\) to opset 21",
    ),
}


@pytest.mark.parametrize(("old", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_raised_is_refused_by_name(old: Old, message: str) -> None:
    loaded = graph.read(model_of(old))
    with pytest.raises(ModelError, match=message) as caught:
        graph.prepare(loaded, opset=21)
    assert caught.value.code == "opset-not-raised"
    assert "'r'" in caught.value.where
    assert "Export the model again" in caught.value.fix


def test_an_opset_that_is_reached_changes_nothing() -> None:
    loaded = graph.read(model_of(FORMS["hardmax-12-last"]))
    assert graph.serialize(graph.prepare(loaded, opset=11)) == graph.serialize(graph.prepare(loaded))


def test_a_model_without_operators_of_ai_onnx_is_given_the_opset() -> None:
    model = parse("""<ir_version: 8, opset_import: ["ai.onnx.ml": 3]>
        g (float[N] x) => (float[N] y) { y = ai.onnx.ml.Binarizer <threshold = 0.5> (x) }""")
    raised = graph.prepare(graph.read(model), opset=17).ir
    assert raised.opset_imports == {"": 17, "ai.onnx.ml": 3}
    assert [node.op_type for node in raised.graph] == ["Binarizer"]


def test_raising_keeps_names_documentation_and_metadata() -> None:
    model = parse("""<ir_version: 6, producer_name: "p", model_version: 7, doc_string: "whole",
            opset_import: ["": 11, "com.microsoft": 1], metadata_props: ["author": "a"]>
        g (float[N,4] x, seq(float[N,4]) q, int64 i) => (float[N,4] y) {
            [norm] s = Softmax <axis=1> (x)
            [fast] f = com.microsoft.FastGelu (s)
            [at] t = SequenceAt (q, i)
            [sum] y = Add (f, t)
        }""")
    model.graph.doc_string = "graph"
    model.graph.node[0].doc_string = "why"
    model.graph.node[1].metadata_props.add(key="layer", value="2")
    raised = graph.prepare(graph.read(model), opset=17).ir
    assert [node.name for node in raised.graph] == ["norm", "fast", "at", "sum"]
    assert next(node.doc_string for node in raised.graph) == "why"
    assert raised.graph[1].metadata_props == {"layer": "2"}
    assert (raised.producer_name, raised.model_version, raised.doc_string) == ("p", 7, "whole")
    assert (raised.graph.doc_string, raised.metadata_props) == ("graph", {"author": "a"})
    assert raised.opset_imports == {"": 17, "com.microsoft": 1}
    assert raised.ir_version == 8
    assert [value.name for value in raised.graph.inputs] == ["x", "q", "i"]
    assert str(raised.graph.inputs[1].type) == "Sequence(Tensor(FLOAT))"


def test_added_nodes_belong_to_the_node_they_were_added_for() -> None:
    model = prepare(
        """<ir_version: 6, opset_import: ["": 9]>
        g (float[N,4,6,5] x) => (float[N,4,6,5] y) <float[4] s = {1.0,1.0,1.0,1.0}> {
            [first] a = Relu (x)
            [norm] b = Softmax <axis=1> (a)
            [up] c = Upsample (b, s)
            [last] y = Hardmax <axis=1> (c)
        }""",
        opset=13,
    )
    origins = [(node.op_type, node.meta["quantool.origins"]) for node in model.ir.graph]
    assert origins == [
        ("Relu", ("first",)),
        ("Shape", ("norm",)),
        ("Flatten", ("norm",)),
        ("Softmax", ("norm",)),
        ("Reshape", ("norm",)),
        ("Resize", ("up",)),
        ("Shape", ("last",)),
        ("Flatten", ("last",)),
        ("Hardmax", ("last",)),
        ("Reshape", ("last",)),
    ]
    names = [node.name for node in model.ir.graph]
    assert len(set(names)) == len(names)
    assert {"first", "norm", "up", "last"} <= set(names)
    assert [row.name for row in model.given] == ["first", "norm", "up", "last"]


def test_an_operator_that_onnx_does_not_know_is_noted() -> None:
    model = graph.prepare(graph.read(model_of(FORMS["contrib-operator-in-the-default-domain"])), opset=17)
    assert [(note.code, note.where) for note in model.notes] == [
        ("operator-unknown-to-onnx", "operator SimplifiedLayerNormalization")
    ]


def test_branches_and_bodies_are_raised_too() -> None:
    text = """<ir_version: 6, opset_import: ["": 11]>
        g (float[N,4] x, bool c, int64 n, bool go) => (float[N,4] y, float[K,N,1] z) {
            [if] h = If (c) <
                then_branch = t () => (float[N,4] o) { [inner] o = Softmax <axis=0> (x) },
                else_branch = e () => (float[N,4] o) { k = Unsqueeze <axes=[0]> (x) o = Squeeze <axes=[0]> (k) }
            >
            [loop] y, z = Loop (n, go, h) <
                body = b (int64 i, bool k, float[N,4] v) => (bool ok, float[N,4] w, float[N,1] r) {
                    ok = Identity (k)
                    w = Softmax <axis=0> (v)
                    r = ReduceSum <axes=[1]> (w)
                }
            >
        }"""
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    raised = prepare(text, opset=13)
    for branch in (True, False):
        feed = {"x": x, "c": np.array(branch), "n": np.array(3), "go": np.array(True)}
        for want, got in zip(run(parse(text).SerializeToString(), feed), run_model(raised, feed), strict=True):
            np.testing.assert_array_equal(got, want)
