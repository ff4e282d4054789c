"""From a recipe file and options to a Recipe, or to everything that is wrong with them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints

from quantool.errors import OptionError, QuantoolError, RecipeError
from quantool.recipe.checks import check_value, impossible_pairs, option_flag
from quantool.recipe.choices import Calibrator
from quantool.recipe.record import Recipe
from quantool.recipe.rules import MATCHES, Rule, rule_problems
from quantool.schema import Mode
from quantool.values import BadValueError, nearest, parse_memory, strict

#: the narrowest type under --target-size, unless --weights says otherwise
NARROW: Final = "int4"
#: the suffix of reports, whose recipe can be read too
REPORT: Final = ".json"

Given: TypeAlias = Path | Mapping[str, object] | Recipe | None


def from_options(options: Mapping[str, object], recipe: Given = None) -> Recipe:
    """A Recipe out of a recipe (TOML file, mapping or Recipe) and the options beside it, which win.

    options: option names with underscores; None means not given. A list replaces the recipe's list. A recipe file may
    be the ``.json`` report of a run. ``ranges`` in a TOML file is relative to that file.

    Raises:
        RecipeError: the recipe cannot be read, has an unknown key or value, or contradicts itself.
        OptionError: an option is unknown, has an unknown value, or makes an impossible pair.
    """
    base, errors = _base(recipe)
    given, more = _converted(options, error=OptionError, origin="")
    for error in (*errors, *more):
        raise error
    try:
        return Recipe(**_implied({**base, **given}))
    except OptionError:
        for error in _contradictions(base, recipe):
            raise error from None
        raise


def recipe_problems(recipe: Path | Mapping[str, object]) -> tuple[dict[str, Any], list[RecipeError]]:
    """The values of a recipe that can be used, by field, and everything that is wrong with it by itself.

    Raises:
        RecipeError: it cannot be read at all.
    """
    values, errors = _base(recipe)
    return _implied(values), [*errors, *_contradictions(values, recipe)]


def _implied(values: dict[str, Any]) -> dict[str, Any]:
    """The same values, and what a target size decides: weights alone are quantized, to 4 bits where it must be."""
    if values.get("target_size") is None:
        return values
    mode = values.get("mode", Mode.AUTO)
    found = {"mode": Mode.WEIGHT_ONLY if mode is Mode.AUTO else mode, "weights": values.get("weights") or NARROW}
    return {**values, **found}


def _origin(recipe: Given) -> str:
    return f"recipe {recipe}" if isinstance(recipe, Path) else "recipe"


def _base(recipe: Given) -> tuple[dict[str, Any], list[RecipeError]]:
    """The values of a recipe that can be used, and what is wrong with the others."""
    values, errors = _converted(_read(recipe), error=RecipeError, origin=_origin(recipe))
    if isinstance(recipe, Path) and recipe.suffix != REPORT and "ranges" in values:
        values["ranges"] = recipe.parent / values["ranges"]
    return values, errors


def _contradictions(values: Mapping[str, Any], recipe: Given) -> list[RecipeError]:
    """Where the values of a recipe do not go together, whatever options stand beside them."""
    whole = _implied({spec.name: spec.default for spec in fields(Recipe)} | dict(values))
    return [
        RecipeError(error.code, error.what, where=f"{_origin(recipe)}: {error.where}", fix=error.fix)
        for error in impossible_pairs(whole)
    ]


def _read(recipe: Given) -> Mapping[str, object]:
    if isinstance(recipe, Recipe):
        return {spec.name: getattr(recipe, spec.name) for spec in fields(recipe)}
    if not isinstance(recipe, Path):
        return recipe or {}
    try:
        text = recipe.read_bytes().decode("utf-8-sig")
        return _of_report(recipe, text) if recipe.suffix == REPORT else tomllib.loads(text)
    except OSError as error:
        what = f"The recipe cannot be read: {error.strerror}"
        fix = "Give the path of a TOML file that you may read."
        raise RecipeError("recipe-unreadable", what, where=str(recipe), fix=fix) from error
    except (ValueError, RecursionError) as error:
        what = f"The recipe is not {'JSON' if recipe.suffix == REPORT else 'TOML'}: {error}"
        raise RecipeError("recipe-not-toml", what, where=str(recipe), fix="Correct its syntax.") from error


def _of_report(path: Path, text: str) -> Mapping[str, object]:
    """The recipe that a report holds."""
    document = json.loads(text)
    found = document.get("recipe") if isinstance(document, dict) else None
    if not isinstance(found, dict):
        what = "The file holds no recipe"
        raise RecipeError("report-without-recipe", what, where=str(path), fix="Give the .json report of a run.")
    return found


# --- converting -----------------------------------------------------------------------------------------


def _converted(
    given: Mapping[str, object], *, error: type[QuantoolError], origin: str
) -> tuple[dict[str, Any], list[Any]]:
    """Given values as field values, and what is wrong with the rest; an empty `origin` means that they are options."""
    kinds = get_type_hints(Recipe)
    values: dict[str, Any] = {}
    errors: list[QuantoolError] = []
    for key, value in ((str(key), value) for key, value in given.items()):
        where = f"{origin}: {key}" if origin else option_flag(key)
        name = "verify" if key == "no_verify" else key
        if name not in kinds:
            code, what = ("unknown-key", "key") if origin else ("unknown-option", "option")
            errors.append(error(code, f"Unknown {what} '{key}'", where=where, fix=nearest(key, kinds)))
            continue
        if value is None:
            continue
        found, bad = _rules(value) if name == "rules" else _value(name, value, kinds[name])
        errors.extend(error("bad-value", each.what, where=where, fix=each.fix) for each in bad)
        if not bad or name == "rules":
            values[name] = not found if key == "no_verify" else found
    return values, errors


def _value(name: str, value: object, kind: Any) -> tuple[object, list[BadValueError]]:
    try:
        converted = _convert(name, value, kind)
        check_value(name, converted)
    except BadValueError as bad:
        return None, [bad]
    return converted, []


def _convert(name: str, value: object, kind: Any) -> object:
    """A value as its field holds it, without guessing: "3" is no number and 1 is no flag."""
    if name == "ranges":
        return Path(str(value)) if isinstance(value, Path) else Path(strict(name, value, str))
    if name in ("memory", "shard_size") and isinstance(value, str):
        size = parse_memory(value)
        if size is None:
            what = f"Unknown {name.split('_')[0]} size '{value}'"
            raise BadValueError(what, "Give a size such as 512M or 2G.")
        return size
    if isinstance(value, str) and any(get_origin(each) is tuple for each in (kind, *get_args(kind))):
        value = (value,)
    return strict(name, value, kind)


def _rules(value: object) -> tuple[tuple[Rule, ...], list[BadValueError]]:
    """The rules, and what is wrong with them; the numbers of those that can be used stay."""
    if not isinstance(value, list | tuple):
        return (), [BadValueError(f"rules is {value!r}", "Write each rule as a [[rules]] table.")]
    rules, problems = [], []
    for position, item in enumerate(value, start=1):
        rule, bad = (item, []) if isinstance(item, Rule) else _rule(item, position)
        problems += bad
        rules.append(rule)
    return tuple(rules), problems


def _rule(item: object, position: int) -> tuple[Rule, list[BadValueError]]:
    if not isinstance(item, Mapping):
        return _stand_in({}), [BadValueError(f"Rule {position} is {item!r}", "Write each rule as a [[rules]] table.")]
    kinds = get_type_hints(Rule)
    values: dict[str, Any] = {}
    problems = []
    for key, part in item.items():
        if key not in kinds:
            what = f"Rule {position} has the unknown key '{key}'"
            problems.append(BadValueError(what, nearest(str(key), kinds)))
            continue
        try:
            values[key] = _convert(key, part, kinds[key])
        except BadValueError as bad:
            problems.append(BadValueError(f"Rule {position}: {bad.what}", bad.fix))
    strange = bool(problems)
    for what, fix in rule_problems(values):
        if not (strange and what.endswith("nothing")):  # what could not be read may have said it
            problems.append(BadValueError(f"Rule {position}: {what}", fix))
    return _stand_in(values) if problems else Rule(**values), problems


def _stand_in(values: Mapping[str, Any]) -> Rule:
    """What stands for a rule that cannot be used while the others are checked: it matches the same."""
    matched = {key: values[key] for key in MATCHES if values.get(key) is not None} or {"tensor": "*"}
    return Rule(**matched, calibrator=Calibrator.MINMAX)
