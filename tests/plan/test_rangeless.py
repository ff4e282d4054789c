"""Plans without ranges: what dynamic mode, quantized weights alone and `auto` without data decide."""

from __future__ import annotations

import numpy as np
import pytest

from quantool.elements import ELEMENTS
from quantool.schema import Mode
from tests.rewrite.flow import draft, normal, parse

TEXT = """(float[2,8,6,6] x, int64[3] ids) => (float[2,4] y, float[3,32] e) {
    [conv] t = Conv (x, k)
    [up] u = ConvTranspose (t, k)
    [pool] p = GlobalAveragePool (u)
    [flat] f = Flatten (p)
    [gemm] g = Gemm (f, w)
    [mm] y = MatMul (g, v)
    [embed] e = Gather (table, ids)
}"""
CONSTANTS = {"k": normal(8, 8, 1, 1), "w": normal(8, 16), "v": normal(16, 4), "table": normal(40, 32)}
DYNAMIC = "DynamicQuantizeMatMul"
WEIGHTS = "DequantizeLinear"
NBITS, LOOKUP = "MatMulNBits", "GatherBlockQuantized"


@pytest.mark.parametrize(
    ("mode", "options", "expected"),
    [
        ("dynamic", {}, {"conv": "mode", "up": "mode", "gemm": DYNAMIC, "mm": DYNAMIC, "embed": "mode"}),
        ("weight-only", {}, {"conv": WEIGHTS, "up": WEIGHTS, "gemm": NBITS, "mm": NBITS, "embed": LOOKUP}),
        (
            "weight-only", {"target": "generic"},
            dict.fromkeys(("conv", "up", "gemm", "mm"), WEIGHTS) | {"embed": "GatherRows"},
        ),
        (
            "auto", {},
            {"conv": WEIGHTS, "up": WEIGHTS, "gemm": DYNAMIC, "mm": DYNAMIC, "embed": "GatherRows"},
        ),
        ("dynamic", {"include_op": ["Conv"]}, {"conv": "ConvInteger", "gemm": "not-included"}),
        ("weight-only", {"format": "qdq"}, {"gemm": WEIGHTS, "mm": WEIGHTS, "embed": "GatherRows"}),
        ("auto", {"exclude": ["mm", "embed"]}, {"gemm": DYNAMIC, "mm": "excluded", "embed": "excluded"}),
    ],
    ids=["dynamic", "weights", "weights of ai.onnx", "auto", "asked Conv", "asked DequantizeLinear", "excluded"],
)  # fmt: skip
def test_what_each_mode_quantizes(mode, options, expected):
    planned = draft(parse(TEXT, CONSTANTS), mode, **options)
    codes = planned.codes()
    assert {name: codes[name] for name in expected} == expected
    assert planned.plan.activations == {}
    assert planned.plan.mode is (Mode.DYNAMIC if mode == "auto" else Mode(mode))


def test_integer_kernels_are_expected_of_dynamic_products_only():
    decisions = draft(parse(TEXT, CONSTANTS), "auto").plan.decisions
    assert {name: d.expected for name, d in decisions.items() if d.quantized} == {
        "conv": "float", "up": "float", "gemm": "integer", "mm": "integer", "embed": "float",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "axis", "block"),
    [
        ({}, 1, 0),
        ({"granularity": "tensor"}, None, 0),
        ({"weights": "int4"}, 0, 32),
        ({"granularity": "block:8"}, 0, 8),
    ],
    ids=["channel", "tensor", "int4", "block"],
)
def test_axes_and_blocks_of_a_matmul(options, axis, block):
    planned = draft(parse(TEXT, CONSTANTS), "weight-only", **options)
    spec = next(w for w in planned.plan.weights if w.node == "mm")
    assert (spec.axis, spec.block_size, spec.bias, spec.activation) == (axis, block, None, None)


@pytest.mark.parametrize(("transposed", "channel", "block"), [(0, 1, 0), (1, 0, 1)])
def test_axes_and_blocks_of_a_gemm(transposed, channel, block):
    text = f"(float[2,8] x) => (float[2,M] y) {{ [n] y = Gemm <transB = {transposed}> (x, w) }}"
    weight = normal(16, 8) if transposed else normal(8, 16)
    assert draft(parse(text, {"w": weight}), "weight-only").plan.weights[0].axis == channel
    assert draft(parse(text, {"w": weight}), "weight-only", weights="int4").plan.weights[0].axis == block


@pytest.mark.parametrize(("group", "axis"), [(1, 1), (2, 0), (4, 0)])
def test_channels_of_a_transposed_convolution(group, axis):
    """In groups no axis holds the outputs: the inputs have a scale each."""
    text = f"(float[2,4,6,6] x) => (float[2,C,H,W] y) {{ [n] y = ConvTranspose <group = {group}> (x, w) }}"
    planned = draft(parse(text, {"w": normal(4, 8 // group, 3, 3)}), "weight-only")
    assert planned.plan.weights[0].axis == axis


@pytest.mark.parametrize(
    ("options", "form"),
    [
        ({}, (0, "int8", 0)),
        ({"weights": "uint8"}, (0, "uint8", 0)),
        ({"weights": "int4"}, (1, "int4", 32)),
        ({"weights": "uint2", "granularity": "channel"}, (0, "uint2", 0)),
        ({"granularity": "block:16"}, (1, "int8", 16)),
        ({"granularity": "tensor"}, (None, "int8", 0)),
    ],
)
def test_rows_of_a_table_have_scales_like_other_weights(options, form):
    planned = draft(parse(TEXT, CONSTANTS), "weight-only", **options)
    spec = next(w for w in planned.plan.weights if w.node == "embed")
    assert (spec.index, spec.axis, spec.dtype, spec.block_size) == (0, *form)


def test_rows_of_a_table_beside_integer_products_are_int8():
    spec = next(w for w in draft(parse(TEXT, CONSTANTS), "auto").plan.weights if w.node == "embed")
    assert (spec.index, spec.axis, spec.dtype, spec.block_size) == (0, 0, "int8", 0)


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_types_that_the_target_expands_are_warned_of(dtype):
    notes = draft(parse(TEXT, CONSTANTS), "weight-only", weights=dtype).plan.notes
    expanded = ELEMENTS[dtype].bits == 16 or ELEMENTS[dtype].floating
    assert [note.code for note in notes] == ["runs-as-float"] * expanded


@pytest.mark.parametrize(
    "table",
    [normal(40, 4), normal(40, 32)[None], np.arange(2000).reshape(40, 50)],
    ids=["small", "three axes", "integers"],
)
def test_other_gathers_are_no_tables(table):
    kind, rest = ("int64" if table.dtype.kind == "i" else "float"), ",".join(map(str, table.shape[1:]))
    text = f"(int64[3] ids) => ({kind}[3,{rest}] y) {{ [g] y = Gather (table, ids) }}"
    assert draft(parse(text, {"table": table}), "weight-only").plan.weights == ()


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight-only", "auto"])
def test_planning_is_pure(mode):
    proto = parse(TEXT, CONSTANTS)
    assert draft(proto, mode).plan == draft(proto, mode).plan
