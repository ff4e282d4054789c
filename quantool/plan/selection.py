"""Which nodes the user asked for or excluded: globs and operator types, checked against the model."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from quantool.errors import OptionError
from quantool.plan.reasons import reason
from quantool.recipe import Recipe
from quantool.schema import GraphFacts, NodeFact, Reason


@dataclass(frozen=True, slots=True)
class Choice:
    """asked: the user named the node, so that mere policy does not keep it; reason: why it is out, or None."""

    asked: bool = False
    reason: Reason | None = None


#: what an option's pattern names, where that is no node
_UNMATCHED = {
    "--include-op": "no-such-operator",
    "--exclude-op": "no-such-operator",
    "rules.op_type": "no-such-operator",
    "rules.tensor": "no-such-tensor",
}


def select(facts: GraphFacts, recipe: Recipe) -> Mapping[str, Choice]:
    """The user's choice for each node. Exclusion wins; --include and --include-op restrict and ask.

    Raises OptionError for a pattern or an operator type that matches nothing, with near matches.
    """
    _refuse_unmatched(facts, recipe)
    restricted = bool(recipe.include or recipe.include_op)
    choices = {}
    for node in facts.nodes:
        asked = _matches(node, recipe.include) or node.op_type in recipe.include_op
        out = _matches(node, recipe.exclude) or node.op_type in recipe.exclude_op or _ruled_out(node, recipe)
        if out:
            choices[node.name] = Choice(asked=False, reason=reason("excluded"))
        elif restricted and not asked:
            choices[node.name] = Choice(asked=False, reason=reason("not-included"))
        else:
            choices[node.name] = Choice(asked=asked)
    return choices


def matches(name: str, pattern: str) -> bool:
    """Whether a glob, or the very name (names may hold brackets), matches."""
    return name == pattern or fnmatchcase(name, pattern)


def _matches(node: NodeFact, patterns: Iterable[str]) -> bool:
    names = (node.name, *node.origins)
    return any(matches(name, pattern) for pattern in patterns for name in names)


def _ruled_out(node: NodeFact, recipe: Recipe) -> bool:
    """The last rule that names the node and says something of exclusion decides."""
    out = False
    for rule in recipe.rules:
        named = rule.name is not None and _matches(node, (rule.name,))
        typed = rule.op_type is not None and rule.op_type == node.op_type
        applies = (rule.name is None or named) and (rule.op_type is None or typed) and (named or typed)
        if applies and rule.exclude is not None:
            out = rule.exclude
    return out


def _refuse_unmatched(facts: GraphFacts, recipe: Recipe) -> None:
    names = sorted({n.name for n in facts.nodes} | {o for n in facts.nodes for o in n.origins})
    names = sorted({*names, *(g.name for g in facts.given)})
    types = sorted({n.op_type for n in facts.nodes} | {g.op_type for g in facts.given})
    globs = (("--include", recipe.include), ("--exclude", recipe.exclude))
    for option, patterns in globs:
        _refuse(option, patterns, names, lambda pattern, name: matches(name, pattern))
    for option, patterns in (("--include-op", recipe.include_op), ("--exclude-op", recipe.exclude_op)):
        _refuse(option, patterns, types, lambda pattern, name: pattern == name)
    for option, known in (("name", names), ("tensor", sorted(facts.tensors))):
        wanted = [str(getattr(r, option)) for r in recipe.rules if getattr(r, option) is not None]
        _refuse(f"rules.{option}", wanted, known, lambda pattern, name: matches(name, pattern))
    wanted = [str(r.op_type) for r in recipe.rules if r.op_type is not None]
    _refuse("rules.op_type", wanted, types, lambda pattern, name: pattern == name)


def _refuse(option: str, patterns: Iterable[str], known: list[str], match: Callable[[str, str], bool]) -> None:
    for pattern in patterns:
        if any(match(pattern, name) for name in known):
            continue
        near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.4) or known[:3]
        raise OptionError(
            _UNMATCHED.get(option, "no-such-node"),
            f"{pattern!r} matches nothing in the model",
            where=option,
            fix=f"The nearest are: {', '.join(near)}.",
        )
