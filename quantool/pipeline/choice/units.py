"""Units of choice: the nodes that become integers together, or stay in float together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quantool.schema import ActivationSpec, Decision, GraphFacts, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionGroup:
    """An operator with what is absorbed into it, and whatever must share a scale with it.

    nodes: in topological order; tensors: the activations that are rounded for its sake; weights: node and index of
    the input of its constants; readers: nodes of other groups that read its tensors as integers.
    """

    nodes: tuple[str, ...]
    tensors: tuple[str, ...]
    weights: tuple[tuple[str, int], ...]
    readers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What a report calls it: its first node."""
        return self.nodes[0]


def fusion_groups(facts: GraphFacts, plan: Plan) -> tuple[FusionGroup, ...]:
    """The groups of a plan, in topological order.

    A tensor belongs to the operator that writes it as integers; one that is written in float, to all that read it as
    integers, since it is rounded as long as one of them does. Tensors of one scale join their operators.
    """
    joined = _Joined()
    owners = {name: tuple(_owners(facts, plan, spec)) for name, spec in plan.activations.items()}
    for name, spec in plan.activations.items():
        for owner in (*owners[name], *owners.get(spec.group, ())):
            joined.join(owner, owners[name][0] if owners[name] else owner)
    members: dict[str, list[str]] = {}
    for node in facts.nodes:
        decision = plan.decisions[node.name]
        if decision.quantized or decision.inputs:
            members.setdefault(joined.root(_host(decision)), []).append(node.name)
    tensors: dict[str, list[str]] = {}
    for name, own in owners.items():
        if own:
            tensors.setdefault(joined.root(own[0]), []).append(name)
    weights: dict[str, list[tuple[str, int]]] = {}
    for weight in plan.weights:
        weights.setdefault(joined.root(weight.node), []).append((weight.node, weight.index))
    return tuple(
        FusionGroup(
            nodes=tuple(nodes),
            tensors=tuple(tensors.get(root, ())),
            weights=tuple(weights.get(root, ())),
            readers=_readers(facts, plan, tensors.get(root, ()), nodes),
        )
        for root, nodes in members.items()
    )


def integer_readers(facts: GraphFacts, plan: Plan, tensor: str) -> Iterator[tuple[str, int]]:
    """The readings of a tensor that a plan makes integers."""
    for use in facts.readers(tensor):
        if use.index in plan.decisions[use.node].inputs:
            yield use.node, use.index


class _Joined:
    """Union-find over nodes."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def root(self, node: str) -> str:
        while (parent := self._parent.setdefault(node, node)) != node:
            self._parent[node] = self._parent[parent]
            node = parent
        return node

    def join(self, first: str, second: str) -> None:
        self._parent[self.root(first)] = self.root(second)


def _owners(facts: GraphFacts, plan: Plan, spec: ActivationSpec) -> Iterator[str]:
    producer = facts.producer(spec.name)
    if spec.replaces and producer is not None:
        yield _host(plan.decisions[producer.name])
        return
    for node, _ in integer_readers(facts, plan, spec.name):
        yield _host(plan.decisions[node])


def _host(decision: Decision) -> str:
    return decision.into or decision.node


def _readers(facts: GraphFacts, plan: Plan, tensors: list[str] | tuple[()], nodes: list[str]) -> tuple[str, ...]:
    found = (node for tensor in tensors for node, _ in integer_readers(facts, plan, tensor))
    return tuple(dict.fromkeys(node for node in found if node not in nodes))
