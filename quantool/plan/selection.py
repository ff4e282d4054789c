"""Which nodes the user asked for or excluded: globs, operator types and rules, checked against the model."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from quantool.errors import OptionError
from quantool.plan.reasons import reason
from quantool.plan.rules import activations_read, matches, matches_node, matches_tensor
from quantool.recipe import Recipe, Rule
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
    "rules.scope": "no-such-scope",
}


def select(facts: GraphFacts, recipe: Recipe) -> Mapping[str, Choice]:
    """The user's choice for each node. Exclusion wins; --include and --include-op restrict and ask.

    Raises OptionError for a pattern or an operator type that matches nothing, with near matches.
    """
    for error in unmatched(facts, recipe):
        raise error
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


def _matches(node: NodeFact, patterns: Iterable[str]) -> bool:
    names = (node.name, *node.origins)
    return any(matches(name, pattern) for pattern in patterns for name in names)


def _ruled_out(node: NodeFact, recipe: Recipe) -> bool:
    """The last rule that names the node and says something of exclusion decides."""
    said = [rule.exclude for rule in recipe.rules if rule.exclude is not None and matches_node(rule, node)]
    return bool(said and said[-1])


# --- what matches nothing -------------------------------------------------------------------------------


def unmatched(facts: GraphFacts, recipe: Recipe) -> Iterator[OptionError]:
    """Every pattern of a recipe that matches nothing in a model, with the nearest names."""
    names = {n.name for n in facts.nodes} | {o for n in facts.nodes for o in n.origins} | {g.name for g in facts.given}
    known = {
        "name": sorted(names),
        "op_type": sorted({n.op_type for n in facts.nodes} | {g.op_type for g in facts.given}),
        "scope": sorted({n.scope for n in facts.nodes} | {g.scope for g in facts.given}),
        "tensor": sorted(facts.tensors),
    }
    for option, patterns in (("--include", recipe.include), ("--exclude", recipe.exclude)):
        yield from _strangers(option, patterns, known["name"], _glob)
    for option, patterns in (("--include-op", recipe.include_op), ("--exclude-op", recipe.exclude_op)):
        yield from _strangers(option, patterns, known["op_type"], str.__eq__)
    for position, rule in enumerate(recipe.rules, start=1):
        strange = [e for key, there in known.items() for e in _strange_key(position, rule, key, there)]
        yield from strange
        if not strange and not any(reach(facts, rule)):
            yield OptionError(
                "rule-without-effect",
                f"Rule {position} matches nothing: its keys match, but not together",
                where="rules",
                fix="Drop one of its keys, or make two rules of it.",
            )


def reach(facts: GraphFacts, rule: Rule) -> tuple[int, int]:
    """How many nodes and tensors a rule matches: the tensors that it names, or that its nodes read and write."""
    nodes = [node for node in facts.nodes if matches_node(rule, node)]
    if not rule.names_nodes:
        return 0, sum(matches_tensor(rule, tensor) for tensor in facts.tensors)
    if rule.tensor is not None:
        near = {t for n in nodes for t in (*n.inputs, *n.outputs) if t and matches_tensor(rule, t)}
        return len(nodes) if near else 0, len(near)
    folded = sum(matches_node(rule, given) for given in facts.given)
    return len(nodes) or folded, len({t for n in nodes for t in (*activations_read(facts, n), *n.outputs) if t})


def _strange_key(position: int, rule: Rule, key: str, known: list[str]) -> Iterator[OptionError]:
    wanted = getattr(rule, key)
    if wanted is not None:
        match = str.__eq__ if key == "op_type" else _glob
        yield from _strangers(f"rules.{key}", [wanted], known, match, who=f"Rule {position}: ")


def _glob(pattern: str, name: str) -> bool:
    return matches(name, pattern)


def _strangers(
    option: str, patterns: Iterable[str], known: list[str], match: Callable[[str, str], bool], *, who: str = ""
) -> Iterator[OptionError]:
    for pattern in patterns:
        if any(match(pattern, name) for name in known):
            continue
        near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.4) or known[:3]
        yield OptionError(
            _UNMATCHED.get(option, "no-such-node"),
            f"{who}{pattern!r} matches nothing in the model",
            where=option,
            fix=f"The nearest are: {', '.join(name or repr(name) for name in near)}.",
        )
