"""Algorithms that rules force at their nodes, and those that they forbid there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from quantool.pipeline.choice.channels import Group
from quantool.pipeline.source import FloatModel
from quantool.plan import algorithms_of
from quantool.recipe import Algorithm, Recipe
from quantool.report.wording import plural
from quantool.schema import GraphFacts, Note, Parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What rules say of algorithms. wanted: node -> exactly these; samples decide for nodes without an entry."""

    wanted: Mapping[str, frozenset[Algorithm]]

    @classmethod
    def of(cls, facts: GraphFacts, recipe: Recipe) -> Ruling:
        """The ruling of a recipe on a model."""
        return cls(wanted=algorithms_of(facts, recipe))

    def forced(self, algorithm: Algorithm) -> frozenset[str]:
        """The nodes at which an algorithm is applied without a trial."""
        return frozenset(node for node, found in self.wanted.items() if algorithm in found)

    @property
    def named(self) -> frozenset[str]:
        """The nodes at which some algorithm is applied without a trial."""
        return frozenset(node for node, found in self.wanted.items() if found)

    def is_open(self, node: str) -> bool:
        """Whether samples decide what is applied to a node."""
        return node not in self.wanted

    def is_open_group(self, group: Group) -> bool:
        """Whether samples decide for every layer at the ends of a group."""
        return all(self.is_open(node) for node in (*group.writers, *group.readers))

    def is_forced_group(self, group: Group) -> bool:
        """Whether some layer at the ends of a group is to be equalized, and none is not."""
        ends, forced = (*group.writers, *group.readers), self.forced(Algorithm.EQUALIZATION)
        return not forced.isdisjoint(ends) and all(self.is_open(node) or node in forced for node in ends)

    def without_effect(self, given: FloatModel, result: FloatModel, parameters: Parameters) -> Iterator[Note]:
        """A warning for each algorithm that changes nothing at nodes that a rule wants it for."""
        applied = {
            Algorithm.GPTQ: {node for (node, _), w in parameters.weights.items() if not w.rounded_to_nearest},
            Algorithm.BIAS_CORRECTION: parameters.corrections.keys(),
            Algorithm.SMOOTHING: _reading_others(given, result, slice(0, 2)),
            Algorithm.EQUALIZATION: _reading_others(given, result, slice(1, 2)),
        }
        fix = (
            "It takes quantized Conv, MatMul and Gemm with constant weights (smoothing: what reads uneven channels; "
            "equalization: layers behind one another), samples to fit, and a gain on them."
        )
        yield from self.unapplied(applied, fix)

    def unapplied(self, applied: Mapping[Algorithm, Set[str]], fix: str) -> Iterator[Note]:
        """A warning for each algorithm that a rule wants at nodes where it is not applied. fix: what it takes."""
        for algorithm, nodes in applied.items():
            missing = sorted(self.forced(algorithm) - nodes)
            if missing:
                yield Note(
                    code="algorithm-without-effect",
                    what=f"{algorithm} changes nothing at {plural(len(missing), 'node')} that a rule wants it for",
                    where=missing[0],
                    fix=fix,
                )


def _reading_others(given: FloatModel, result: FloatModel, inputs: slice) -> set[str]:
    """The nodes of which some of these inputs are not what they were."""
    return {
        node.name
        for node in given.facts.nodes
        if node.name in result.facts.by_name and node.inputs[inputs] != result.facts.by_name[node.name].inputs[inputs]
    }
