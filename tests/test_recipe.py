"""The recipe: TOML and options in, one checked Recipe out, every refusal with its words."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantool.elements import ELEMENTS
from quantool.errors import OptionError, QuantoolError, RecipeError
from quantool.recipe import (
    OUTPUT_GATES,
    Calibrator,
    Effort,
    Formula,
    GraphIO,
    Recipe,
    Rule,
    from_options,
)
from quantool.schema import Format, Mode
from quantool.values import block_size_of, parse_memory

# --- what is accepted -----------------------------------------------------------------------------------


def toml(folder: Path, text: str) -> Path:
    """A recipe file."""
    path = folder / "r.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_given_is_the_default_recipe() -> None:
    assert from_options({}) == Recipe()


def test_an_empty_recipe_file_is_valid(tmp_path: Path) -> None:
    assert from_options({}, toml(tmp_path, "")) == Recipe()


def test_none_means_not_given() -> None:
    assert from_options({"mode": None, "samples": None, "keep": None}) == Recipe()


def test_a_recipe_file_holds_option_names_with_underscores(tmp_path: Path) -> None:
    path = toml(
        tmp_path,
        """
        mode = "static"
        weights = "int8"
        granularity = "block:64"
        batch_size = 4
        min_sqnr = 30            # an integer does for a number
        exclude = ["/head/*"]
        memory = "1.5G"
        no_verify = false
        """,
    )
    recipe = from_options({}, path)
    assert recipe == Recipe(
        mode=Mode.STATIC,
        weights="int8",
        granularity="block:64",
        batch_size=4,
        min_sqnr=30.0,
        exclude=("/head/*",),
        memory=3 * 2**29,
    )
    assert recipe.block_size == 64


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_bytes(b"\xef\xbb\xbfmode = 'dynamic'\n")
    assert from_options({}, path).mode is Mode.DYNAMIC


def test_options_win_over_the_recipe_and_replace_its_lists(tmp_path: Path) -> None:
    path = toml(tmp_path, "mode = 'static'\nexclude = ['a', 'b']\nnarrow_range = true\nthreads = 3")
    recipe = from_options({"mode": "dynamic", "exclude": ["c"], "threads": None}, path)
    assert (recipe.mode, recipe.exclude, recipe.narrow_range, recipe.threads) == (Mode.DYNAMIC, ("c",), True, 3)


def test_an_option_can_repair_a_pair_that_the_file_makes_impossible(tmp_path: Path) -> None:
    path = toml(tmp_path, "mode = 'weight-only'\nformat = 'qoperator'")
    assert from_options({"mode": "static"}, path).format is Format.QOPERATOR


def test_ranges_in_a_file_are_relative_to_it_and_as_an_option_to_nothing(tmp_path: Path) -> None:
    path = toml(tmp_path, "ranges = 'all.qcal'")
    assert from_options({}, path).ranges == tmp_path / "all.qcal"
    assert from_options({"ranges": "x.qcal"}, path).ranges == Path("x.qcal")


def test_no_verify_is_the_option_and_verify_the_field() -> None:
    assert not from_options({"no_verify": True}).verify
    assert from_options({"no_verify": False}).verify
    assert not from_options({"verify": False}).verify


def test_one_text_does_for_a_list_and_numpy_numbers_for_numbers() -> None:
    recipe = from_options({"exclude": "a*", "samples": np.int64(3), "min_sqnr": np.float32(20)})
    assert (recipe.exclude, recipe.samples, recipe.min_sqnr) == (("a*",), 3, 20.0)


def test_rules_are_ordered_and_hold_what_they_match_and_set(tmp_path: Path) -> None:
    path = toml(
        tmp_path,
        """
        [[rules]]
        op_type = "Conv"
        exclude = true
        [[rules]]
        name = "/head/*"
        exclude = false
        [[rules]]
        tensor = "logits"
        range = [-8, 8]
        calibrator = "minmax"
        """,
    )
    assert from_options({}, path).rules == (
        Rule(op_type="Conv", exclude=True),
        Rule(name="/head/*", exclude=False),
        Rule(tensor="logits", range=(-8.0, 8.0), calibrator=Calibrator.MINMAX),
    )


def test_a_recipe_and_a_mapping_serve_as_base() -> None:
    base = Recipe(mode=Mode.STATIC, rules=(Rule(name="a", exclude=True),))
    assert from_options({"seed": 3}, base) == from_options({"seed": 3}, base.to_dict())
    assert from_options({"mode": "dynamic"}, {"mode": "static", "keep": True}) == Recipe(mode=Mode.DYNAMIC, keep=True)


def test_every_element_type_can_be_named() -> None:
    assert all(from_options({"weights": name, "activations": name}).weights == name for name in ELEMENTS)


@pytest.mark.parametrize(
    ("text", "size"),
    [("512M", 512 * 2**20), ("2G", 2**31), ("1.5K", 1536), ("7", 7), ("1t", 2**40), ("3GB", 3 * 2**30)],
)
def test_memory_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "G", "2X", "-1", "1e3", "2 G", "\u0663", "1_000", "9" * 40])
def test_other_texts_are_no_memory_size(text: str) -> None:
    assert parse_memory(text) is None


@pytest.mark.parametrize(("text", "size"), [("tensor", 0), ("channel", 0), ("block:32", 32), ("block:007", 7)])
def test_granularities(text: str, size: int) -> None:
    assert block_size_of(text) == size


@pytest.mark.parametrize(
    "text", ["", "block", "block:", "block:0", "block:-1", "block:1.5", "blocks:3", "block:\u0661"]
)
def test_other_texts_are_no_granularity(text: str) -> None:
    assert block_size_of(text) is None


GATE_VALUES = st.none() | st.floats(0, 1)
RECIPES = st.builds(
    Recipe,
    mode=st.sampled_from((Mode.AUTO, Mode.STATIC)),
    weights=st.none() | st.sampled_from(tuple(ELEMENTS)),
    granularity=st.sampled_from((None, "tensor", "channel", "block:32")),
    calibrator=st.none() | st.sampled_from(Calibrator),
    formula=st.none() | st.sampled_from(Formula),
    effort=st.sampled_from(Effort),
    io=st.sampled_from(GraphIO),
    exclude=st.lists(st.text(min_size=1)).map(tuple),
    memory=st.none() | st.integers(1, 2**50),
    ranges=st.none() | st.just(Path("a.qcal")),
    keep=st.booleans(),
    min_sqnr=GATE_VALUES,
    min_coverage=GATE_VALUES,
    rules=st.lists(
        st.builds(
            Rule,
            name=st.text(),
            exclude=st.none() | st.booleans(),
            range=st.tuples(st.floats(-9, -1), st.floats(1, 9)),
            calibrator=st.none() | st.sampled_from(Calibrator),
        )
    ).map(tuple),
)


@given(RECIPES)
def test_to_dict_is_json_that_gives_the_same_recipe_back(recipe: Recipe) -> None:
    document = json.loads(json.dumps(recipe.to_dict(), allow_nan=False))
    assert set(document) == {spec.name for spec in fields(Recipe)}
    assert from_options({}, document) == recipe


# --- what is refused ------------------------------------------------------------------------------------

BAD_OPTIONS = [
    ({"wieghts": "int8"}, "unknown-option", "'wieghts'.*--wieghts.*Did you mean 'weights'"),
    ({"mode": "dynamc"}, "bad-value", "mode 'dynamc'.*--mode.*Did you mean 'dynamic'"),
    ({"format": "qdp"}, "bad-value", "format 'qdp'.*--format.*Did you mean 'qdq'"),
    ({"calibrator": "kl"}, "bad-value", "'kl'.*Known: mse, minmax, percentile, entropy, moving-average"),
    ({"formula": "tf-scale"}, "bad-value", "'tf-scale'.*Did you mean 'tf-scaled'"),
    ({"effort": "high"}, "bad-value", "effort 'high'.*fast, balanced, max"),
    ({"io": "int"}, "bad-value", "io 'int'.*float, quantized"),
    ({"weights": "int5"}, "bad-value", "type 'int5'.*--weights.*Did you mean 'int8'"),
    ({"activations": "float8"}, "bad-value", "type 'float8'.*--activations.*float8_e"),
    ({"granularity": "block:0"}, "bad-value", "granularity 'block:0'.*block:N"),
    ({"granularity": "row"}, "bad-value", "granularity 'row'.*tensor, channel or block:N"),
    ({"memory": "2X"}, "bad-value", "memory size '2X'.*512M or 2G"),
    ({"memory": 0}, "bad-value", "--memory is 0.*from 1 up"),
    ({"samples": 0}, "bad-value", "--samples is 0"),
    ({"samples": "3"}, "bad-value", "samples is '3'.*'int"),
    ({"samples": True}, "bad-value", "samples is True"),
    ({"batch_size": -2}, "bad-value", "--batch-size is -2"),
    ({"threads": 1.5}, "bad-value", "threads is 1.5"),
    ({"seed": -1}, "bad-value", "--seed is -1.*from 0 up"),
    ({"keep": 1}, "bad-value", "keep is 1"),
    ({"exclude": [""]}, "bad-value", "--exclude holds an empty text"),
    ({"exclude": [3]}, "bad-value", "exclude is"),
    ({"ranges": 3}, "bad-value", "ranges is 3"),
    ({"min_sqnr": float("nan")}, "bad-value", "--min-sqnr is nan.*finite"),
    ({"min_sqnr": float("inf")}, "bad-value", "--min-sqnr is inf.*finite"),
    ({"min_agreement": 99}, "bad-value", "--min-agreement is 99.*fraction"),
    ({"min_coverage": -0.1}, "bad-value", "--min-coverage is -0.1.*fraction"),
    ({"min_speedup": -1}, "bad-value", "--min-speedup is -1"),
    ({"max_size_ratio": -1}, "bad-value", "--max-size-ratio is -1"),
    ({"max_drop": -0.5}, "bad-value", "--max-drop is -0.5"),
    ({"rules": 3}, "bad-value", "rules is 3.*\\[\\[rules\\]\\]"),
    ({"rules": [3]}, "bad-value", "Rule 1 is 3"),
    ({"rules": [{"nam": "a", "exclude": True}]}, "bad-value", "unknown key 'nam'.*Did you mean 'name'"),
    ({"rules": [{"exclude": True}]}, "bad-value", "Rule 1: A rule matches nothing"),
    ({"rules": [{"name": "a"}]}, "bad-value", "Rule 1: A rule sets nothing"),
    ({"rules": [{"tensor": "t", "exclude": True}]}, "bad-value", "excludes the tensor 't'"),
    ({"rules": [{"tensor": "t", "range": [2, 1]}]}, "bad-value", r"range \[2.0, 1.0\].*lo below hi"),
    ({"rules": [{"tensor": "t", "range": [0, float("inf")]}]}, "bad-value", "finite"),
    ({"rules": [{"tensor": "t", "range": [0]}]}, "bad-value", "length 2"),
    ({"rules": [{"tensor": "t", "calibrator": "mes"}]}, "bad-value", "Did you mean 'mse'"),
]


@pytest.mark.parametrize(("options", "code", "words"), BAD_OPTIONS, ids=lambda part: str(part)[:40])
def test_a_bad_option_is_refused_with_its_value_and_the_nearest_known(
    options: dict[str, object], code: str, words: str
) -> None:
    with pytest.raises(OptionError, match=f"(?s){words}") as caught:
        from_options(options)
    assert (caught.value.code, caught.value.exit_code) == (code, 2)


@pytest.mark.parametrize(("options", "code", "words"), BAD_OPTIONS, ids=lambda part: str(part)[:40])
def test_the_same_in_a_recipe_is_an_error_of_the_recipe(options: dict[str, object], code: str, words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        from_options({}, options)
    assert caught.value.code == ("unknown-key" if code == "unknown-option" else code)
    assert caught.value.where == f"recipe: {next(iter(options))}"


IMPOSSIBLE_PAIRS = [
    ({"mode": "weight-only", "format": "qoperator"}, "--mode weight-only.*--format qoperator"),
    ({"format": "qoperator", "weights": "int16"}, "--weights int16.*--format qoperator"),
    ({"format": "qoperator", "activations": "uint16"}, "--activations uint16.*--format qoperator"),
    ({"format": "qoperator", "weights": "int4"}, "--weights int4.*--format qoperator"),
    ({"format": "qoperator", "weights": "uint2"}, "--weights uint2.*--format qoperator"),
    ({"format": "qoperator", "weights": "float4_e2m1fn"}, "--weights float4_e2m1fn.*--format qoperator"),
    ({"format": "qoperator", "granularity": "block:32"}, "--granularity block:32.*--format qoperator"),
    ({"mode": "dynamic", "weights": "int4"}, "--weights int4.*--mode dynamic"),
    ({"mode": "dynamic", "activations": "int8"}, "--activations int8.*--mode dynamic"),
    ({"mode": "dynamic", "granularity": "block:32"}, "--granularity block:32.*--mode dynamic"),
    ({"mode": "dynamic", "io": "quantized"}, "--mode dynamic.*--io quantized"),
    ({"mode": "weight-only", "io": "quantized"}, "--mode weight-only.*--io quantized"),
    *(({"no_verify": True, gate: 0.5}, f"--{gate.replace('_', '-')} 0.5.*--no-verify") for gate in OUTPUT_GATES),
]


@pytest.mark.parametrize(("options", "words"), IMPOSSIBLE_PAIRS, ids=lambda part: str(part)[:60])
def test_an_impossible_pair_is_refused_naming_both(options: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        from_options(options)
    assert caught.value.code == "impossible-pair"
    with pytest.raises(RecipeError, match=words):
        from_options({}, options)
    first, second = options
    with pytest.raises(OptionError, match=words):
        from_options({first: options[first]}, {second: options[second]})


@pytest.mark.parametrize("gate", ["max_size_ratio", "min_coverage"])
def test_gates_that_need_no_run_go_with_no_verify(gate: str) -> None:
    assert not from_options({"no_verify": True, gate: 0.5}).verify


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_eight_bits_go_with_qoperator_and_dynamic(dtype: str) -> None:
    assert from_options({"format": "qoperator", "weights": dtype}).weights == dtype
    assert from_options({"mode": "dynamic", "weights": dtype}).weights == dtype


def test_a_recipe_file_that_is_not_there_or_no_toml_is_refused_naming_it(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"cannot be read: No such file.*nosuch\.toml"):
        from_options({}, tmp_path / "nosuch.toml")
    with pytest.raises(RecipeError, match="cannot be read: Is a directory"):
        from_options({}, tmp_path)
    with pytest.raises(RecipeError, match=r"is not TOML: .*r\.toml"):
        from_options({}, toml(tmp_path, "mode = "))
    (tmp_path / "r.toml").write_bytes(b"mode = '\xff'")
    with pytest.raises(RecipeError, match="is not TOML"):
        from_options({}, tmp_path / "r.toml")


def test_the_error_of_a_file_names_file_and_key(tmp_path: Path) -> None:
    path = toml(tmp_path, "wieghts = 'int8'")
    with pytest.raises(RecipeError) as caught:
        from_options({}, path)
    assert caught.value.to_dict() == {
        "code": "unknown-key",
        "what": "Unknown key 'wieghts'",
        "where": f"recipe {path}: wieghts",
        "fix": caught.value.fix,
    }


def test_a_recipe_built_in_python_is_checked_too() -> None:
    with pytest.raises(OptionError, match="--samples is 0"):
        Recipe(samples=0)
    with pytest.raises(OptionError, match="--mode weight-only"):
        Recipe(mode=Mode.WEIGHT_ONLY, format=Format.QOPERATOR)


ANY_TOML = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def recipe_or_none(values: dict[str, object]) -> Recipe | None:
    """The recipe, or None where it is refused; any other exception fails the test."""
    try:
        return from_options({}, values)
    except QuantoolError:
        return None


@given(st.dictionaries(st.sampled_from([*(spec.name for spec in fields(Recipe)), "no_verify", "x"]), ANY_TOML))
def test_any_value_anywhere_gives_a_recipe_or_a_coded_error(values: dict[str, object]) -> None:
    recipe = recipe_or_none(values)
    assert recipe is None or from_options({}, recipe) == recipe
