"""What the user names: globs, operator types, rules; what matches nothing; settings of types and forms."""

from __future__ import annotations

import pytest

from quantool.errors import OptionError
from quantool.plan.settings import resolve
from quantool.recipe import Rule, from_options
from quantool.schema import Format, Mode
from quantool.targets import load
from tests.rewrite.flow import draft, normal, parse

CONSTANTS = {"w": normal(8, 8, 1, 1), "k": normal(16, 16)}
TEXT = """(float[2,8,6,6] x) => (float[2,8,6,6] y) {
    [block_0_conv] a = Conv (x, w)
    [block_0_relu] b = Relu (a)
    [block_1_conv] c = Conv (b, w)
    [head_0] y = Conv (c, w)
}"""


def quantized(**options: object) -> set[str]:
    decisions = draft(parse(TEXT, CONSTANTS), **options).plan.decisions
    return {name for name, d in decisions.items() if d.quantized}


ALL = {"block_0_conv", "block_0_relu", "block_1_conv", "head_0"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ALL),
        ({"exclude": ["block_1_*"]}, ALL - {"block_1_conv"}),
        ({"exclude": ["block_?_conv"]}, {"head_0"}),
        ({"exclude_op": ["Relu"]}, ALL - {"block_0_relu"}),
        ({"include": ["head_0"]}, {"head_0"}),
        ({"include": ["block_*"], "exclude": ["block_1_conv"]}, {"block_0_conv", "block_0_relu"}),
        ({"include_op": ["Conv"]}, ALL - {"block_0_relu"}),
        ({"rules": [Rule(op_type="Conv", exclude=True), Rule(name="head_0", exclude=False)]}, {"head_0"}),
        ({"rules": [Rule(name="block_*", op_type="Conv", exclude=True)]}, {"head_0"}),
        ({"rules": [Rule(name="head_0", exclude=True)], "include": ["*"]}, ALL - {"head_0"}),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_selection(options, expected):
    assert quantized(**options) == expected


def test_excluded_nodes_and_others_tell_apart():
    codes = draft(parse(TEXT, CONSTANTS), include=["block_*"], exclude=["block_1_conv"]).codes()
    assert (codes["block_1_conv"], codes["head_0"]) == ("excluded", "not-included")


@pytest.mark.parametrize("pattern", ["layer[0]/conv", "layer*", "layer[[]0]/conv"])
def test_names_with_brackets_match_themselves(pattern):
    # ONNX text knows no such name: it is given afterwards
    proto = parse("(float[2,8,6,6] x) => (float[2,8,6,6] y) { [n] y = Conv (x, w) }", CONSTANTS)
    proto.graph.node[0].name = "layer[0]/conv"
    assert draft(proto, exclude=[pattern]).codes() == {"layer[0]/conv": "excluded"}


def test_unnamed_nodes_are_called_after_their_type_and_output():
    proto = parse("(float[2,8,6,6] x) => (float[2,8,6,6] y) { t = Conv (x, w) y = Conv (t, w) }", CONSTANTS)
    assert draft(proto, exclude=["Conv:y"]).codes() == {"Conv:t": "QLinearConv", "Conv:y": "excluded"}


def test_nodes_that_were_folded_are_named_through_what_holds_them():
    text = """(float[2,8,6,6] x) => (float[2,8,6,6] y) {
        [conv] t = Conv (x, w)
        [norm] y = BatchNormalization (t, s, s, s, s)
    }"""
    constants = CONSTANTS | {"s": abs(normal(8)) + 1}
    assert draft(parse(text, constants), exclude=["norm"]).codes() == {"conv": "excluded"}


@pytest.mark.parametrize(
    ("options", "code", "where", "near"),
    [
        ({"exclude": ["block_0_covn"]}, "no-such-node", "--exclude", "block_0_conv"),
        ({"include": ["hed_0"]}, "no-such-node", "--include", "head_0"),
        ({"exclude_op": ["Conf"]}, "no-such-operator", "--exclude-op", "Conv"),
        ({"include_op": ["MatMul"]}, "no-such-operator", "--include-op", "Conv"),
        ({"rules": [Rule(name="hed*", exclude=True)]}, "no-such-node", "rules.name", "head_0"),
        ({"rules": [Rule(op_type="Conf", exclude=True)]}, "no-such-operator", "rules.op_type", "Conv"),
        ({"rules": [Rule(tensor="aa", range=(0, 1))]}, "no-such-tensor", "rules.tensor", "a"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_matches_nothing_is_refused_with_near_names(options, code, where, near):
    with pytest.raises(OptionError, match="matches nothing in the model") as raised:
        draft(parse(TEXT, CONSTANTS), **options)
    assert (raised.value.code, raised.value.where) == (code, where)
    assert near in raised.value.fix


# --- settings -------------------------------------------------------------------------------------------


def settings(mode: str = "static", **options: object):
    recipe = from_options({"mode": mode, **options})
    return resolve(recipe, load(recipe.target), Mode(mode))


@pytest.mark.parametrize(
    ("mode", "options", "expected"),
    [
        ("static", {}, ("uint8", "int8", 8, True, 0, 13)),
        ("static", {"target": "cpu-x64-avx2"}, ("uint8", "int8", 7, True, 0, 13)),
        ("static", {"target": "cpu-x64-avx2", "weights": "uint8"}, ("uint8", "uint8", 8, True, 0, 13)),
        ("static", {"target": "cpu-arm64"}, ("int8", "int8", 8, True, 0, 13)),
        ("static", {"granularity": "tensor"}, ("uint8", "int8", 8, False, 0, 13)),
        ("static", {"weights": "int4"}, ("uint8", "int4", 4, False, 32, 21)),
        ("static", {"activations": "uint16"}, ("uint16", "int8", 8, True, 0, 21)),
        ("dynamic", {}, ("uint8", "int8", 8, True, 0, 13)),
        ("dynamic", {"granularity": "tensor"}, ("uint8", "int8", 8, False, 0, 11)),
        ("weight-only", {}, ("uint8", "int8", 8, True, 0, 13)),
        ("weight-only", {"granularity": "tensor"}, ("uint8", "int8", 8, False, 0, 10)),
        ("weight-only", {"weights": "uint4"}, ("uint8", "uint4", 4, False, 32, 21)),
        ("weight-only", {"weights": "int4", "granularity": "channel"}, ("uint8", "int4", 4, True, 0, 21)),
        ("weight-only", {"granularity": "block:64"}, ("uint8", "int8", 8, False, 64, 21)),
        ("weight-only", {"target": "cpu-x64-avx2"}, ("uint8", "int8", 8, True, 0, 13)),
    ],
    ids=str,
)
def test_what_the_recipe_leaves_open(mode, options, expected):
    found = settings(mode, **options)
    assert (
        found.activations,
        found.weights,
        found.weight_bits,
        found.axis_scales,
        found.block_size,
        found.opset,
    ) == expected
    assert (found.mode, found.format) == (Mode(mode), Format.QDQ)


def test_narrow_weights_are_refused_where_dynamic_mode_is_what_auto_means():
    recipe = from_options({"weights": "int4"})
    with pytest.raises(OptionError, match="int4 weights do not fit"):
        resolve(recipe, load("cpu-x64"), Mode.DYNAMIC)


def test_qoperator_refuses_the_pair_of_types_that_no_operator_takes():
    with pytest.raises(OptionError, match="no operator for int8 activations with uint8 weights"):
        settings(activations="int8", weights="uint8", format="qoperator")
    assert settings(activations="int8", weights="uint8").activations == "int8"
