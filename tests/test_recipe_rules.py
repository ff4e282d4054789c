"""Rules of a recipe: what they match and set, what is refused, and every problem of a file at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantool.errors import OptionError, RecipeError
from quantool.recipe import Algorithm, Recipe, Rule, from_options, recipe_problems

RULES = """
[[rules]]
scope = ""
op_type = "Conv"
weights = "int4"
granularity = "block:64"
[[rules]]
name = "/head/*"
activations = "uint16"
algorithms = ["gptq", "bias-correction"]
[[rules]]
tensor = "logits"
activations = "float"
[[rules]]
scope = "if_*"
algorithms = []
"""


def toml(folder: Path, text: str) -> Path:
    """A recipe file."""
    path = folder / "r.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_rules_set_types_granularity_and_algorithms(tmp_path: Path) -> None:
    recipe = from_options({}, toml(tmp_path, RULES))
    assert recipe.rules == (
        Rule(scope="", op_type="Conv", weights="int4", granularity="block:64"),
        Rule(name="/head/*", activations="uint16", algorithms=(Algorithm.GPTQ, Algorithm.BIAS_CORRECTION)),
        Rule(tensor="logits", activations="float"),
        Rule(scope="if_*", algorithms=()),
    )
    assert from_options({}, recipe.to_dict()) == recipe


def test_one_text_does_for_a_list_of_algorithms() -> None:
    (rule,) = from_options({"rules": [{"name": "a", "algorithms": "gptq"}]}).rules
    assert rule.algorithms == (Algorithm.GPTQ,)


BAD_RULES = [
    ({"name": "a", "weights": "int5"}, "unknown type of weights 'int5'.*Did you mean 'int8'"),
    ({"name": "a", "weights": "float"}, "unknown type of weights 'float'"),
    ({"name": "a", "activations": "flaot"}, "unknown type of activations 'flaot'.*Did you mean 'float'"),
    ({"name": "a", "granularity": "row"}, "unknown granularity 'row'.*block:N"),
    ({"name": "a", "algorithms": ["gptk"]}, "algorithms 'gptk'.*Did you mean 'gptq'"),
    ({"name": "a", "algorithm": "gptq"}, "unknown key 'algorithm'.*Did you mean 'algorithms'"),
    ({"tensor": "a", "algorithms": []}, "sets algorithms for the tensor 'a'"),
    ({"scop": "a", "exclude": True}, "unknown key 'scop'.*Did you mean 'scope'"),
]


@pytest.mark.parametrize(("rule", "words"), BAD_RULES, ids=lambda part: str(part)[:40])
def test_a_bad_rule_is_refused_with_the_nearest_known(rule: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError, match=f"(?s)Rule 2.*{words}") as caught:
        from_options({"rules": [{"name": "b", "exclude": True}, rule]})
    assert (caught.value.code, caught.value.exit_code) == ("bad-value", 2)
    with pytest.raises(RecipeError, match=f"(?s){words}"):
        from_options({}, {"rules": [{"name": "b", "exclude": True}, rule]})


IMPOSSIBLE = [
    ({"format": "qoperator"}, {"activations": "uint16"}, "activations uint16.*8-bit integers only"),
    ({"format": "qoperator"}, {"activations": "float"}, "activations float.*8-bit integers only"),
    ({"format": "qoperator"}, {"weights": "int16"}, "weights int16.*8-bit integers only"),
    ({"format": "qoperator"}, {"granularity": "block:32"}, "granularity block:32.*no blocks"),
    ({"mode": "dynamic"}, {"weights": "int4"}, "weights int4.*MatMulInteger"),
    ({"mode": "dynamic"}, {"granularity": "block:32"}, "granularity block:32.*no blocks"),
    ({"mode": "dynamic"}, {"activations": "int8"}, "activations int8.*they are uint8"),
    ({"mode": "dynamic"}, {"algorithms": ["gptq"]}, "algorithms gptq.*samples of a static model"),
    ({"mode": "weight-only"}, {"activations": "uint8"}, "activations uint8.*leaves activations in float"),
    ({"mode": "weight-only"}, {"algorithms": ["smoothing"]}, "algorithms smoothing.*static model"),
]


@pytest.mark.parametrize(("options", "rule", "words"), IMPOSSIBLE, ids=lambda part: str(part)[:40])
def test_a_rule_that_mode_or_format_cannot_satisfy_is_refused(
    options: dict[str, object], rule: dict[str, object], words: str
) -> None:
    with pytest.raises(OptionError, match=f"Rule 1 sets {words}") as caught:
        from_options({**options, "rules": [{"name": "a", **rule}]})
    assert (caught.value.code, caught.value.where) == ("impossible-pair", "rules: rule 1")


@pytest.mark.parametrize(
    ("mode", "rule"),
    [
        ("dynamic", {"activations": "float"}),
        ("dynamic", {"activations": "uint8", "weights": "uint8"}),
        ("weight-only", {"activations": "float", "weights": "int4"}),
        ("weight-only", {"algorithms": []}),
        ("auto", {"activations": "uint16", "algorithms": ["gptq"]}),
    ],
)
def test_a_rule_that_says_what_the_mode_does_anyway_is_taken(mode: str, rule: dict[str, object]) -> None:
    assert len(from_options({"mode": mode, "rules": [{"name": "a", **rule}]}).rules) == 1


# --- every problem at once ------------------------------------------------------------------------------


def test_every_problem_of_a_file_is_told_with_the_numbers_of_its_rules(tmp_path: Path) -> None:
    path = toml(
        tmp_path,
        """
        calibrtor = "mse"
        mode = "weight-only"
        format = "qoperator"
        seed = -1
        [[rules]]
        op_type = "Conv"
        weights = "int5"
        colour = 1
        [[rules]]
        name = "b"
        activations = "uint16"
        """,
    )
    values, problems = recipe_problems(path)
    assert [problem.what for problem in problems] == [
        "Unknown key 'calibrtor'",
        "--seed is -1",
        "Rule 1 has the unknown key 'colour'",
        "Rule 1: A rule sets the unknown type of weights 'int5'",
        "--mode weight-only does not go with --format qoperator: QOperator computes on quantized activations",
        "Rule 2 sets activations uint16, which does not go with --format qoperator, whose operators take 8-bit "
        "integers only",
        "Rule 2 sets activations uint16, which does not go with weight-only mode, which leaves activations in float",
    ]
    assert all(str(path) in problem.where for problem in problems)
    assert values["rules"][1] == Rule(name="b", activations="uint16")


def test_a_good_recipe_has_no_problem(tmp_path: Path) -> None:
    values, problems = recipe_problems(toml(tmp_path, RULES))
    assert problems == []
    assert Recipe(**values) == from_options({}, tmp_path / "r.toml")


def test_a_rule_of_which_nothing_can_be_used_hides_no_other_problem() -> None:
    _, problems = recipe_problems({"rules": [3, {}, {"name": "a", "exclude": 1}], "mode": "dynamc"})
    assert [problem.what.split(":")[0] for problem in problems[:2]] == ["Rule 1 is 3", "Rule 2"]
    assert len(problems) == 5
