"""What rules say of nodes and tensors: types, forms, algorithms; the later wins; what cannot be is refused."""

from __future__ import annotations

import pytest

from quantool.errors import OptionError
from quantool.plan import algorithms_of, reach, resolve
from quantool.recipe import Rule, from_options
from quantool.schema import Mode
from quantool.targets import load
from tests.rewrite.flow import Draft, draft, normal, parse

CONSTANTS = {"k1": normal(8, 4, 3, 3), "k2": normal(8, 8, 3, 3), "w": normal(8, 8), "table": normal(200, 8)}
TEXT = """(float[1,4,8,8] x) => (float[1,8] y) {
    [stem_conv] a = Conv <pads = [1, 1, 1, 1]> (x, k1)
    [stem_relu] b = Relu (a)
    [stem_pool] c = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b)
    [body_conv] d = Conv <pads = [1, 1, 1, 1]> (c, k2)
    [body_add] e = Add (d, c)
    [pool] f = GlobalAveragePool (e)
    [flat] g = Flatten (f)
    [head] y = MatMul (g, w)
}"""
BRANCHES = """(float[2,8] x, bool c) => (float[2,8] y) {
    [first] h = MatMul (x, w)
    [if] y = If (c) <
        then_branch = a () => (float[2,8] t) { [inner] t = MatMul (h, w) },
        else_branch = b () => (float[2,8] e) { [other] e = MatMul (h, w) }
    >
}"""


def planned(*rules: dict[str, object], text: str = TEXT, mode: str = "static", **options: object) -> Draft:
    return draft(parse(text, CONSTANTS), mode, rules=list(rules), **options)


def types(*rules: dict[str, object], **options: object) -> dict[str, str]:
    """Tensor -> type of its codes, of those that are not uint8."""
    specs = planned(*rules, **options).plan.activations.values()
    return {spec.name: spec.dtype for spec in specs if spec.dtype != "uint8"}


def weights(*rules: dict[str, object], **options: object) -> dict[str, tuple[str, int | None, int]]:
    """Node -> type, axis and block size of its weight, where they are not int8 a channel."""
    specs = planned(*rules, **options).plan.weights
    found = {spec.node: (spec.dtype, spec.axis, spec.block_size) for spec in specs}
    usual = {"stem_conv": ("int8", 0, 0), "body_conv": ("int8", 0, 0), "head": ("int8", 1, 0)}
    return {node: form for node, form in found.items() if form != usual.get(node)}


# --- types of activations -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([{"name": "stem_conv", "activations": "uint16"}], {"x": "uint16"}),
        ([{"tensor": "e", "activations": "int16"}], {"e": "int16"}),
        # what data movers make of a tensor has its type too, whichever of them is named
        ([{"name": "head", "activations": "uint16"}], {"f": "uint16", "g": "uint16"}),
        ([{"tensor": "f", "activations": "uint16"}], {"f": "uint16", "g": "uint16"}),
        ([{"name": "pool", "activations": "uint16"}], {"e": "uint16"}),
        # node and tensor: of what the node reads, that tensor alone
        ([{"name": "body_add", "tensor": "d", "activations": "uint16"}], {"d": "uint16"}),
        # the later wins
        ([{"op_type": "*", "activations": "int16"}], None),
        ([{"name": "*", "activations": "int16"}, {"name": "*", "activations": "uint8"}], {}),
        ([{"tensor": "*", "activations": "int16"}, {"name": "stem_conv", "activations": "uint8"}],
         {"b": "int16", "c": "int16", "d": "int16", "e": "int16", "f": "int16", "g": "int16"}),
        ([{"name": "stem_conv", "activations": "uint8"}, {"tensor": "x", "activations": "int16"}], {"x": "int16"}),
    ],
    ids=str,
)  # fmt: skip
def test_types_of_activations(rules, expected):
    if expected is None:
        with pytest.raises(OptionError, match="matches nothing"):
            types(*rules)
    else:
        assert types(*rules) == expected


def test_a_node_whose_types_differ_is_planned_in_float_and_told():
    plan = planned({"name": "stem_conv", "activations": "uint16"}).plan
    assert {n: d.expected for n, d in plan.decisions.items()} == {
        "stem_conv": "float", "stem_relu": "float", "stem_pool": "integer", "body_conv": "integer",
        "body_add": "integer", "pool": "integer", "flat": "integer", "head": "integer",
    }  # fmt: skip
    (note,) = plan.notes
    assert (note.code, note.where) == ("runs-as-float", "stem_conv")
    assert "uint16 and uint8 activations with int8 weights" in note.what


def test_two_types_for_tensors_of_one_scale_are_refused():
    rules = {"tensor": "b", "activations": "uint16"}, {"tensor": "c", "activations": "int16"}
    with pytest.raises(OptionError, match="'b' uint16 and 'c' int16 codes, but they share a scale") as raised:
        planned(*rules)
    assert (raised.value.code, raised.value.exit_code) == ("types-of-one-scale", 2)
    assert types(*rules, {"name": "stem_pool", "exclude": True}) == {"b": "uint16", "c": "int16"}


@pytest.mark.parametrize(
    ("options", "named"),
    [({}, "float8_e4m3fn"), ({"activations": "float8_e4m3fn"}, "uint8"),
     ({"activations": "float8_e4m3fn"}, "float8_e5m2")],
)  # fmt: skip
def test_floating_codes_beside_others_are_refused(options, named):
    with pytest.raises(OptionError, match="floating codes need another formula"):
        planned({"name": "head", "activations": named}, **options)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([{"name": "body_add", "activations": "int8"}], "codes of uint8 and int8 at 'stem_conv'"),
        ([{"tensor": "*", "activations": "int8"}, {"name": "head", "weights": "uint8"}],
         "int8 activations with uint8 weights at 'head'"),
    ],
)  # fmt: skip
def test_qoperator_refuses_types_that_no_operator_takes(rules, words):
    with pytest.raises(OptionError, match=words) as raised:
        planned(*rules, format="qoperator")
    assert (raised.value.code, raised.value.exit_code) == ("type-cannot-run", 2)
    assert planned({"name": "head", "weights": "uint8"}, format="qoperator").plan.decisions["head"].quantized


def test_a_narrow_range_without_a_code_for_zero_is_refused_for_every_type():
    recipe = from_options({"mode": "static", "rules": [{"name": "a", "activations": "uint16"}]})
    assert [each.activations for each in resolve(recipe, load("cpu-x64"), Mode.STATIC).all] == ["uint8", "uint16"]


# --- float ----------------------------------------------------------------------------------------------


def test_float_activations_leave_a_weighted_node_its_weights_as_integers():
    plan = planned({"name": "body_conv", "activations": "float"}).plan
    decision = plan.decisions["body_conv"]
    assert (decision.quantized, decision.kernel, decision.inputs) == (True, "DequantizeLinear", ())
    assert {spec.node: spec.activation for spec in plan.weights}["body_conv"] is None
    assert plan.decisions["stem_conv"].expected == "integer"
    assert "d" not in plan.activations


def test_float_activations_keep_a_node_without_weights_in_float():
    codes = planned({"name": "body_add", "activations": "float"}).codes()
    assert (codes["body_add"], codes["body_conv"]) == ("float-activations", "QLinearConv")


def test_a_tensor_in_float_is_neither_read_nor_written_as_integers():
    plan = planned({"tensor": "d", "activations": "float"}).plan
    assert plan.decisions["body_conv"].kernel == "DequantizeLinear"
    assert plan.decisions["body_add"].reason.code == "float-activations"


def test_a_later_rule_takes_float_back():
    rules = {"op_type": "Conv", "activations": "float"}, {"name": "stem_conv", "activations": "uint8"}
    kernels = planned(*rules).codes()
    assert (kernels["stem_conv"], kernels["body_conv"]) == ("QLinearConv", "DequantizeLinear")


# --- weights --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([{"name": "head", "weights": "int4"}], {"head": ("int4", 0, 32)}),
        ([{"name": "head", "weights": "int4", "granularity": "channel"}], {"head": ("int4", 1, 0)}),
        ([{"name": "head", "granularity": "tensor"}], {"head": ("int8", None, 0)}),
        ([{"tensor": "k2", "weights": "uint8"}], {"body_conv": ("uint8", 0, 0)}),
        ([{"name": "head", "tensor": "k2", "weights": "uint8"}], None),
        ([{"op_type": "Conv", "weights": "int16"}, {"name": "stem_*", "weights": "int8"}],
         {"body_conv": ("int16", 0, 0)}),
        # a type brings the usual granularity of its own
        ([{"name": "head", "granularity": "tensor"}, {"name": "head", "weights": "uint8"}],
         {"head": ("uint8", 1, 0)}),
        ([{"name": "head", "weights": "uint8"}, {"name": "head", "granularity": "tensor"}],
         {"head": ("uint8", None, 0)}),
    ],
    ids=str,
)  # fmt: skip
def test_types_and_granularity_of_weights(rules, expected):
    if expected is None:
        with pytest.raises(OptionError, match="not together"):
            weights(*rules)
    else:
        assert weights(*rules) == expected


def test_a_target_with_7_bit_weights_has_them_where_a_rule_names_its_type():
    rules = [{"name": "stem_*", "weights": "int8"}, {"name": "head", "weights": "uint8"}]
    specs = draft(parse(TEXT, CONSTANTS), target="cpu-x64-avx2", rules=rules, weights="int16").plan.weights
    assert {spec.node: spec.bits for spec in specs} == {"stem_conv": 7, "body_conv": 16, "head": 8}


def test_the_opset_is_what_the_most_demanding_rule_needs():
    def opset(*rules: dict[str, object]) -> int:
        recipe = from_options({"mode": "static", "rules": list(rules)})
        return resolve(recipe, load("cpu-x64"), Mode.STATIC).opset

    assert opset() == 13
    assert opset({"name": "a", "activations": "uint16"}) == 21
    assert opset({"name": "a", "weights": "int2"}) == 25
    assert opset({"name": "a", "activations": "float"}) == 13


def test_rules_that_need_the_reference_evaluator_are_known_beforehand():
    recipe = from_options({"mode": "static", "rules": [{"name": "a", "activations": "int4"}]})
    assert resolve(recipe, load("cpu-x64"), Mode.STATIC).reference


def test_a_table_of_embeddings_is_int8_or_refused():
    text = "(int64[5] i) => (float[5,8] y) { [look] e = Gather (table, i) [m] y = MatMul (e, w) }"
    with pytest.raises(OptionError, match="int4 weights, but the lookup of rows takes int8 alone") as raised:
        planned({"name": "*", "weights": "int4"}, text=text)
    assert 'op_type = "Gather", weights = "int8"' in raised.value.fix
    rules = {"name": "*", "weights": "int4"}, {"op_type": "Gather", "weights": "int8"}
    assert {s.node: s.dtype for s in planned(*rules, text=text).plan.weights} == {"look": "int8", "m": "int4"}
    assert planned({"name": "m", "granularity": "tensor"}, text=text, weights="int16").codes()["look"] == "GatherRows"


def test_without_data_types_that_no_kernel_multiplies_are_stored_only():
    kernels = planned({"name": "first", "weights": "int4"}, text=BRANCHES, mode="auto").codes()
    assert (kernels["first"], kernels["inner"]) == ("DequantizeLinear", "DynamicQuantizeMatMul")
    kernels = planned({"name": "first", "activations": "float"}, text=BRANCHES, mode="dynamic").codes()
    assert (kernels["first"], kernels["inner"]) == ("DequantizeLinear", "DynamicQuantizeMatMul")


# --- matching -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "excluded"),
    [
        ("", {"first", "if"}),
        ("*", {"first", "if", "inner", "other"}),
        ("if/then*", {"inner"}),
        ("if/*", {"inner", "other"}),
    ],
)
def test_a_scope_is_a_glob_and_the_main_graph_is_empty(scope, excluded):
    codes = planned({"scope": scope, "exclude": True}, text=BRANCHES, mode="dynamic").codes()
    assert {node for node, code in codes.items() if code == "excluded"} == excluded


@pytest.mark.parametrize(
    ("rule", "code", "where", "near"),
    [
        (Rule(scope="if/thn*", exclude=True), "no-such-scope", "rules.scope", "if/then_branch"),
        (Rule(name="frist", weights="int8"), "no-such-node", "rules.name", "first"),
        (Rule(op_type="MatMull", algorithms=()), "no-such-operator", "rules.op_type", "MatMul"),
        (Rule(tensor="hh", activations="float"), "no-such-tensor", "rules.tensor", "h"),
        (Rule(name="first", op_type="If", exclude=True), "rule-without-effect", "rules", "Drop one"),
    ],
    ids=str,
)
def test_what_matches_nothing_is_refused_with_near_names(rule, code, where, near):
    with pytest.raises(OptionError, match="Rule 2") as raised:
        draft(parse(BRANCHES, CONSTANTS), rules=[Rule(name="first", exclude=True), rule])
    assert (raised.value.code, raised.value.where) == (code, where)
    assert near in raised.value.fix


def test_how_much_a_rule_matches():
    facts = planned().facts
    assert reach(facts, Rule(op_type="Conv", exclude=True)) == (2, 4)
    assert reach(facts, Rule(tensor="k*", weights="int4")) == (0, 2)
    assert reach(facts, Rule(name="body_add", tensor="d", activations="uint16")) == (1, 1)


def test_algorithms_are_exactly_those_of_the_last_rule():
    start = planned(
        {"op_type": "Conv", "algorithms": ["gptq", "bias-correction"]},
        {"name": "body_*", "algorithms": []},
    )
    found = {node: sorted(names) for node, names in algorithms_of(start.facts, start.recipe).items()}
    assert found == {"stem_conv": ["bias-correction", "gptq"], "body_conv": [], "body_add": []}
