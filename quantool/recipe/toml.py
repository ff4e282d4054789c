"""A recipe as the TOML file that gives it back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from quantool.recipe.record import Recipe, plain_rule

NO_COMMENTS: Final[Mapping[str, str]] = MappingProxyType({})


def to_toml(
    recipe: Recipe,
    *,
    every: bool = False,
    comments: Mapping[str, str] = NO_COMMENTS,
    rule_comments: Sequence[str] = (),
    folder: Path | None = None,
) -> str:
    """The keys that differ from those of an empty recipe (every: all that hold something), then the rules in order.

    comments: by option name with underscores, written above the key; rule_comments: above each rule. folder: where the
    file will stand, to which a path in it is relative; None: paths stay as they are.
    """
    default = Recipe().to_dict()
    lines: list[str] = []
    for name, value in recipe.to_dict().items():
        if name == "rules" or value in (None, []) or (value == default[name] and not every):
            continue
        key, shown = ("no_verify", not value) if name == "verify" else (name, value)
        if name == "ranges" and recipe.ranges is not None and folder is not None:
            shown = _relative(recipe.ranges, folder)
        lines += [f"# {comments[key]}"] if key in comments else []
        lines.append(f"{key} = {_literal(shown)}")
    for position, rule in enumerate(recipe.rules):
        told = [f"# {rule_comments[position]}"] if rule_comments else []
        lines += ["", *told, "[[rules]]", *(f"{key} = {_literal(part)}" for key, part in plain_rule(rule).items())]
    return "\n".join(lines).lstrip("\n") + "\n" if lines else ""


def _relative(path: Path, folder: Path) -> str:
    """A path as seen from the folder: by its name where it lies inside, else from the root."""
    absolute, home = path.absolute(), folder.absolute()
    return str(absolute.relative_to(home) if absolute.is_relative_to(home) else absolute)


def _literal(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value).lower() if isinstance(value, bool) else repr(value)
