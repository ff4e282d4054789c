"""A recipe as a file: what is written gives it back, and a report serves as a recipe."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantool.elements import ELEMENTS
from quantool.errors import RecipeError
from quantool.recipe import OF_STATIC, Calibrator, Collect, Effort, Formula, Recipe, Rule, from_options, to_toml
from quantool.schema import Mode

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
RULE = st.builds(
    Rule,
    name=TEXTS,
    scope=st.none() | TEXTS | st.just(""),
    op_type=st.none() | TEXTS,
    exclude=st.none() | st.booleans(),
    weights=st.none() | st.sampled_from(tuple(ELEMENTS)),
    activations=st.none() | st.sampled_from(("float", *ELEMENTS)),
    granularity=st.none() | st.sampled_from(("tensor", "block:32")),
    range=st.tuples(st.floats(-1e30, -1e-30), st.floats(1e-30, 1e30)),
    calibrator=st.none() | st.sampled_from(Calibrator),
    algorithms=st.none() | st.lists(st.sampled_from(OF_STATIC), unique=True).map(tuple),
)
RECIPES = st.builds(
    Recipe,
    mode=st.sampled_from((Mode.AUTO, Mode.STATIC)),
    target=TEXTS,
    weights=st.none() | st.sampled_from(tuple(ELEMENTS)),
    formula=st.none() | st.sampled_from(Formula),
    narrow_range=st.booleans(),
    effort=st.sampled_from(Effort),
    exclude=st.lists(TEXTS).map(tuple),
    collect=st.lists(st.sampled_from(Collect), unique=True).map(tuple),
    memory=st.none() | st.integers(1, 2**60),
    seed=st.integers(0, 2**31),
    verify=st.booleans(),
    max_size_ratio=st.none() | st.floats(0, 1e300),
    rules=st.lists(RULE, max_size=3).map(tuple),
)


@given(RECIPES, st.booleans())
def test_the_file_gives_the_same_recipe_back(recipe: Recipe, every: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.toml"
        comments = dict.fromkeys(recipe.to_dict(), "What it means.")
        told = ["matches nothing"] * len(recipe.rules)
        path.write_bytes(to_toml(recipe, every=every, comments=comments, rule_comments=told).encode())
        assert from_options({}, path) == recipe


def test_an_empty_recipe_is_an_empty_file() -> None:
    assert to_toml(Recipe()) == ""


def test_keys_are_the_names_of_options_under_one_line_of_comment() -> None:
    recipe = from_options({"no_verify": True, "exclude": ["a", "b"], "rules": [{"name": "h", "range": [0, 1]}]})
    text = to_toml(recipe, comments={"no_verify": "Skip.", "exclude": "Keep."})
    assert text.splitlines() == [
        "# Keep.", 'exclude = ["a", "b"]', "# Skip.", "no_verify = true", "", "[[rules]]", 'name = "h"',
        "range = [0.0, 1.0]",
    ]  # fmt: skip


@pytest.mark.parametrize(("given_path", "folder"), [("all.qcal", "."), ("sub/all.qcal", "sub"), ("all.qcal", "sub")])
def test_ranges_are_found_from_where_the_file_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_path: str, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    recipe = from_options({"ranges": given_path})
    path = Path(folder) / "r.toml"
    path.write_text(to_toml(recipe, folder=path.parent))
    read = from_options({}, path).ranges
    assert read is not None
    assert read.resolve() == (tmp_path / given_path).resolve()


def test_the_recipe_of_a_report_is_one(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    recipe = from_options({"mode": "static", "ranges": "r.qcal", "rules": [{"name": "a", "activations": "uint16"}]})
    path.write_text(json.dumps({"schema": "quantool/1", "recipe": recipe.to_dict()}))
    assert from_options({}, path) == recipe
    for text, words in (("[]", "holds no recipe"), ('{"recipe": null}', "holds no recipe"), ("{", "is not JSON")):
        path.write_text(text)
        with pytest.raises(RecipeError, match=words):
            from_options({}, path)


@pytest.mark.parametrize(("name", "opening"), [("r.toml", "a="), ("r.json", "")])
def test_a_recipe_nested_beyond_reason_is_refused(tmp_path: Path, name: str, opening: str) -> None:
    path = tmp_path / name
    path.write_text(opening + "[" * 100_000 + "]" * 100_000)
    with pytest.raises(RecipeError, match="recipe-not-toml"):
        from_options({}, path)
