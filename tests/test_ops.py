"""The operator table: the inputs that carry activations, and the channel axes of weights."""

from __future__ import annotations

from types import MappingProxyType

import onnx
import pytest

from quantool.ops import OPS, UNKNOWN, Role, ScaleRule, activation_inputs, op_of, weight_axis
from quantool.schema import AttributeValue, NodeFact


def node(op_type: str, *inputs: str, domain: str = "", **attributes: AttributeValue) -> NodeFact:
    return NodeFact(
        name="n",
        op_type=op_type,
        domain=domain,
        scope="",
        inputs=inputs or ("x",),
        outputs=("y",),
        attributes=MappingProxyType(attributes),
        origins=("n",),
    )


@pytest.mark.parametrize("key", OPS, ids=lambda key: key[1])
def test_rows_agree_with_the_schema(key):
    domain, op_type = key
    row = OPS[key]
    if domain:
        return  # onnx has no schemas of the runtime's own operators
    schema = onnx.defs.get_schema(op_type)
    variadic = schema.inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    for index in (*(row.activations or ()), row.weight, row.bias):
        assert index is None or variadic or index < len(schema.inputs)
    if row.weight is not None:
        assert schema.inputs[row.weight].name in ("W", "B")
    if row.bias is not None:
        assert schema.inputs[row.bias].name in ("B", "C")
        assert schema.inputs[row.bias].option == onnx.defs.OpSchema.FormalParameterOption.Optional


def test_every_row_is_consistent():
    for row in OPS.values():
        assert (row.weight is not None) == (row.role is Role.ANCHOR)
        assert (row.fixed is not None) == (row.rule is ScaleRule.FIXED)
        assert (row.rule is ScaleRule.SAME) == (row.role in (Role.MOVER, Role.ISLAND))


def test_operators_are_found_by_either_spelling_of_the_default_domain():
    assert op_of(node("Conv")) is op_of(node("Conv", domain="ai.onnx")) is OPS["", "Conv"]
    assert op_of(node("Attention", domain="com.microsoft")).role is Role.ANCHOR
    assert op_of(node("Attention")) is UNKNOWN
    assert op_of(node("Tanh")) is UNKNOWN


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        (node("Conv", "x", "w", "b"), (0,)),
        (node("Add", "a", "b"), (0, 1)),
        (node("Concat", "a", "b", "c"), (0, 1, 2)),
        (node("Where", "c", "a", "b"), (1, 2)),
        (node("Slice", "x", "s", "e"), (0,)),
        (node("Resize", "x", "", "f"), (0,)),
        (node("Concat", "a", "", "c"), (0, 2)),
    ],
    ids=lambda value: value.op_type if isinstance(value, NodeFact) else "",
)
def test_inputs_that_carry_activations(fact, expected):
    assert activation_inputs(fact) == expected


@pytest.mark.parametrize(
    ("fact", "rank", "expected"),
    [
        (node("Conv"), 4, 0),
        (node("Conv", group=4), 4, 0),
        (node("ConvTranspose"), 4, 1),
        (node("ConvTranspose", group=2), 4, None),
        (node("MatMul"), 2, 1),
        (node("MatMul"), 3, None),
        (node("MatMul"), 1, None),
        (node("Gemm"), 2, 1),
        (node("Gemm", transB=1), 2, 0),
        (node("Attention", domain="com.microsoft"), 2, 1),
        (node("Add"), 2, None),
    ],
    ids=str,
)
def test_channel_axis_of_a_weight(fact, rank, expected):
    assert weight_axis(fact, rank) == expected
