"""What every planner reads: facts, settings, target and the user's choices, in one frozen value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from quantool.ops import Role, op_of
from quantool.plan.feature_levels import level_refusal
from quantool.plan.rules import Local, activations_read
from quantool.plan.selection import Choice
from quantool.plan.settings import Settings
from quantool.recipe import FLOAT
from quantool.schema import GraphFacts, NodeFact, Reason
from quantool.targets import Kernel, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What statistics and trials taught.

    keep: nodes to keep in float; unify: Concats whose tensors share one scale; allow: nodes before a Log or its kin
    that are quantized all the same.
    """

    keep: Mapping[str, Reason] = field(default_factory=lambda: MappingProxyType({}))
    unify: frozenset[str] = frozenset()
    allow: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The inputs of planning."""

    facts: GraphFacts
    settings: Settings
    target: Target
    choices: Mapping[str, Choice]
    findings: Findings
    local: Local = field(default_factory=Local)

    def at(self, node: NodeFact) -> Settings:
        """The settings that rules leave a node: its weight's form, and the type of the first activation it reads."""
        own = self.local.settings.get(node.name, self.settings)
        read = next(iter(activations_read(self.facts, node)), "") if self.local.types else ""
        codes = self.type_of(read)
        return own if codes in (own.activations, FLOAT) else replace(own, activations=codes)

    def type_of(self, tensor: str) -> str:
        """The type of a tensor's codes, "float" where a rule wants none."""
        return self.local.types.get(tensor, self.settings.activations)

    def in_float(self, node: NodeFact, *tensors: str) -> bool:
        """Whether rules want a node to read its activations in float, or one of the tensors that it would write."""
        given = (*activations_read(self.facts, node), *tensors) if self.local.types else ()
        return node.name in self.local.floating or any(self.type_of(tensor) == FLOAT for tensor in given)

    def kernel(self, node: NodeFact) -> Kernel | None:
        """The target's kernel for a node in the chosen format, or None."""
        kernel = self.target.kernel(node.domain, node.op_type)
        return kernel if kernel is not None and self.settings.format.value in kernel.formats else None

    def veto(self, node: NodeFact) -> Reason | None:
        """Why the user or the findings keep a node in float, or None."""
        choice = self.choices[node.name]
        return choice.reason if choice.asked or choice.reason is not None else self.findings.keep.get(node.name)

    def level_refusal(self, tensors: Iterable[str]) -> Reason | None:
        """Why the target's feature level, if it has one, does not quantize one of these activations; or None."""
        level = self.target.feature_level
        if level is None:
            return None
        computed = {tensor: self.type_of(tensor) for tensor in tensors if not self.is_constant(tensor)}
        return level_refusal(self.facts, computed, level=level)

    def asked(self, node: NodeFact) -> bool:
        """Whether the user named the node."""
        return self.choices[node.name].asked

    def is_float32(self, tensor: str) -> bool:
        """Whether a tensor is known to hold float32."""
        fact = self.facts.tensors.get(tensor)
        return fact is not None and fact.dtype == "float32"

    def is_constant(self, tensor: str) -> bool:
        """Whether a tensor is an initializer."""
        return self.facts.is_constant(tensor)

    def rank(self, tensor: str) -> int | None:
        """The number of dimensions, None if unknown."""
        fact = self.facts.tensors.get(tensor)
        return None if fact is None or fact.shape is None else len(fact.shape)

    def size(self, tensor: str) -> int | None:
        """The number of elements where every dimension is known, else None."""
        fact = self.facts.tensors.get(tensor)
        if fact is None or fact.shape is None:
            return None
        total = 1
        for extent in fact.shape:
            if not isinstance(extent, int):
                return None
            total *= extent
        return total

    def role(self, node: NodeFact) -> Role | None:
        """What a node may be, given its attributes and the target's kernels."""
        role = op_of(node).role
        if role is Role.MOVER and (self.kernel(node) is None or not self._moves_only(node)):
            return Role.ISLAND if self._moves_only(node) else None
        if role is Role.ISLAND and not self._pads_in_range(node):
            return None
        if role is Role.FOLLOWER and (self.kernel(node) is None or _dilated(node)):
            return None
        return role

    def _moves_only(self, node: NodeFact) -> bool:
        """Whether an operator of a mover's type really only moves values of input 0."""
        if node.op_type == "Resize":
            mode = node.attributes.get("mode", "nearest")
            rule = node.attributes.get("coordinate_transformation_mode", "half_pixel")
            return mode == "nearest" and rule != "tf_crop_and_resize" and "axes" not in node.attributes
        return node.op_type != "MaxPool" or len([o for o in node.outputs if o]) == 1

    def _pads_in_range(self, node: NodeFact) -> bool:
        """Whether Pad writes only values that its input's scale represents exactly."""
        if node.attributes.get("mode", "constant") != "constant":
            return True
        if len(node.inputs) < 3 or not node.inputs[2]:
            return float(node.attributes.get("value", 0.0)) == 0.0  # type: ignore[arg-type]  # a float attribute
        value = self.facts.values.get(node.inputs[2])
        return value is not None and value.size == 1 and float(value.reshape(-1)[0]) == 0.0


def _dilated(node: NodeFact) -> bool:
    """Whether a pool skips elements, which QLinearAveragePool cannot."""
    dilations = node.attributes.get("dilations", ())
    return node.op_type == "AveragePool" and isinstance(dilations, tuple) and any(d != 1 for d in dilations)
