"""What the rules of a recipe say of nodes and tensors: whom they match, and the types that they set. The later wins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType

from quantool.ops import ScaleRule, activation_inputs, op_of
from quantool.plan.settings import Settings, with_rule
from quantool.recipe import FLOAT, Algorithm, Recipe, Rule
from quantool.schema import GivenNode, GraphFacts, NodeFact
from quantool.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """What rules set at places. settings: node -> its own; types: tensor -> the type of its codes, "float" for none.

    floating: nodes that read no activation as integers.
    """

    settings: Mapping[str, Settings] = field(default_factory=lambda: MappingProxyType({}))
    types: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    floating: frozenset[str] = frozenset()


def matches(name: str, pattern: str) -> bool:
    """Whether a glob, or the very name (names may hold brackets), matches."""
    return name == pattern or fnmatchcase(name, pattern)


def matches_node(rule: Rule, node: NodeFact | GivenNode) -> bool:
    """Whether a rule names nodes, and this one with every key."""
    names = (node.name, *node.origins) if isinstance(node, NodeFact) else (node.name,)
    return (
        rule.names_nodes
        and (rule.name is None or any(matches(name, rule.name) for name in names))
        and (rule.op_type is None or rule.op_type == node.op_type)
        and (rule.scope is None or matches(node.scope, rule.scope))
    )


def matches_tensor(rule: Rule, tensor: str) -> bool:
    """Whether a rule lets a tensor of that name pass."""
    return rule.tensor is None or matches(tensor, rule.tensor)


def local_choices(facts: GraphFacts, recipe: Recipe, settings: Settings, target: Target) -> Local:
    """The settings and types that rules make at places; empty without such rules."""
    types, floating = _activation_types(facts, recipe.rules)
    return Local(
        settings=dict(_node_settings(facts, recipe.rules, settings, target)),
        types=_along_movers(facts, types),
        floating=frozenset(floating),
    )


def algorithms_of(facts: GraphFacts, recipe: Recipe) -> Mapping[str, frozenset[Algorithm]]:
    """Node -> exactly the algorithms that rules want there; samples decide for nodes without an entry."""
    found: dict[str, frozenset[Algorithm]] = {}
    for rule in recipe.rules:
        if rule.algorithms is not None:
            found |= {node.name: frozenset(rule.algorithms) for node in facts.nodes if matches_node(rule, node)}
    return found


# --- weights --------------------------------------------------------------------------------------------


def _node_settings(
    facts: GraphFacts, rules: Sequence[Rule], settings: Settings, target: Target
) -> Iterator[tuple[str, Settings]]:
    wanted = [rule for rule in rules if rule.weights is not None or rule.granularity is not None]
    for node in facts.nodes if wanted else ():
        own = settings
        for rule in wanted:
            if _weighs(rule, facts, node):
                own = with_rule(own, rule, target)
        if own is not settings:
            yield node.name, own


def _weighs(rule: Rule, facts: GraphFacts, node: NodeFact) -> bool:
    """Whether a rule speaks of the weights of a node."""
    if rule.names_nodes and not matches_node(rule, node):
        return False
    return rule.tensor is None or any(facts.is_constant(t) and matches(t, rule.tensor) for t in node.inputs)


# --- activations ----------------------------------------------------------------------------------------


def activations_read(facts: GraphFacts, node: NodeFact) -> tuple[str, ...]:
    """The tensors that a node would read quantized: a product of two activations reads its second operand too."""
    indices = {*activation_inputs(node), *(i for i in (op_of(node).weight,) if i is not None and i < len(node.inputs))}
    return tuple(node.inputs[i] for i in sorted(indices) if not facts.is_constant(node.inputs[i]))


def _activation_types(facts: GraphFacts, rules: Sequence[Rule]) -> tuple[dict[str, str], set[str]]:
    """Tensor -> type, and the nodes that read floats, by the rules alone."""
    types: dict[str, str] = {}
    floating: set[str] = set()
    for rule in (rule for rule in rules if rule.activations is not None):
        assert rule.activations is not None
        if not rule.names_nodes:
            types |= {t: rule.activations for t in facts.tensors if matches_tensor(rule, t)}
            continue
        for node in (node for node in facts.nodes if matches_node(rule, node)):
            tensors = [t for t in activations_read(facts, node) if matches_tensor(rule, t)]
            if rule.activations == FLOAT:
                floating.update([node.name] if tensors else [])
            else:
                floating.discard(node.name)
                types |= dict.fromkeys(tensors, rule.activations)
    return types, floating


def _along_movers(facts: GraphFacts, types: Mapping[str, str]) -> dict[str, str]:
    """The same, and what data movers make of those tensors, or make them from: they share parameters."""
    found = dict(types)
    moves = [node for node in facts.nodes if op_of(node).rule is ScaleRule.SAME] if types else []
    for node in moves:
        for output in node.outputs:
            if found.get(node.inputs[0], FLOAT) != FLOAT:
                found.setdefault(output, found[node.inputs[0]])
    for node in reversed(moves):
        for output in node.outputs:
            if found.get(output, FLOAT) != FLOAT:
                found.setdefault(node.inputs[0], found[output])
    return found
