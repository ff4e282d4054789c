"""Groups of tensors whose channels can be scaled together without changing what a model computes.

A layer writes y = W x + b. Where everything between it and the layers that read y commutes with positive factors,
one factor for each channel can go into its rows and out of their columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from quantool.schema import GraphFacts, NodeFact, TensorFact, Use

#: f(s x) = s f(x) for s > 0, channel by channel, whatever the other axes do
_HOMOGENEOUS = frozenset({"Relu", "LeakyRelu", "PRelu", "Identity"})
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"})
_PAIRS = frozenset({"Add", "Sub", "Max", "Min"})
_FLATTENING = frozenset({"Flatten", "Reshape", "Squeeze"})
_LAYERS = frozenset({"Conv", "Gemm", "MatMul"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where a tensor has its channels: along an axis, each of them `repeats` times in a row."""

    count: int
    axis: int
    repeats: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Tensors that take the same factors.

    tensors: every one of them; bounds: the upper bound of a Clip that writes it; writers, readers: the layers at the
    ends, by node name; operands: readings of constants with a number for each channel, which take the factors too.
    """

    tensors: Mapping[str, Layout]
    bounds: Mapping[str, float]
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    operands: tuple[Use, ...]

    @property
    def count(self) -> int:
        """How many factors there are."""
        return next(iter(self.tensors.values())).count


def scalable_groups(facts: GraphFacts) -> tuple[Group, ...]:
    """All groups of a graph, in the order of their first tensors; what anything else reads or writes is in none."""
    finder = _Finder(facts)
    for node in facts.nodes:
        finder.visit(node)
    return tuple(finder.groups())


def is_layer(facts: GraphFacts, node: NodeFact) -> bool:
    """Whether a node is a layer whose weight and bias are float32 constants that nothing else reads."""
    if node.op_type not in _LAYERS or node.domain or node.scope or node.attributes.get("transA", 0):
        return False
    constants = [facts.tensors[name] for name in node.inputs[1:3] if name]
    if not constants or not all(is_own(fact) for fact in constants):
        return False
    shape = _fixed_shape(constants[0])
    rank = len(facts.tensors[node.inputs[0]].shape or ())
    fits = len(shape) == 2 and rank >= 2 if node.op_type != "Conv" else len(shape) == rank
    return fits and (len(constants) == 1 or _fixed_shape(constants[1]) in _bias_shapes(node, shape))


def is_own(fact: TensorFact) -> bool:
    """Whether a tensor is a float32 constant that one node alone reads."""
    own = fact.is_constant and not fact.is_input and not fact.is_output and not fact.transpose_of
    return own and len(fact.readers) == 1 and fact.dtype == "float32"


def _fixed_shape(fact: TensorFact) -> tuple[int, ...]:
    return tuple(dim for dim in fact.shape or () if isinstance(dim, int))


def _bias_shapes(node: NodeFact, weight: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    outputs = outputs_of(node, weight)
    return ((outputs,), (1, outputs))


def outputs_of(node: NodeFact, weight: tuple[int, ...]) -> int:
    """How many output channels a layer has."""
    return weight[0] if node.op_type == "Conv" or node.attributes.get("transB", 0) else weight[1]


class _Finder:
    """Walks the graph once: which tensors take the same factors, and which take none."""

    def __init__(self, facts: GraphFacts) -> None:
        self._facts = facts
        self._parent: dict[str, str] = {}
        self._channels: dict[str, Layout] = {}
        self._bounds: dict[str, float] = {}
        self._operands: dict[str, Use] = {}
        self._ends: dict[str, tuple[list[str], list[str]]] = {}
        self._fixed: set[str] = {name for name, fact in facts.tensors.items() if fact.is_input or fact.is_output}

    def visit(self, node: NodeFact) -> None:
        """Join what a node reads and writes, or fix both."""
        if is_layer(self._facts, node):
            self._layer(node)
        elif not (self._commutes(node) or self._clips(node) or self._pairs(node)):
            self._fixed.update(name for name in (*node.inputs, *node.outputs) if name)

    def groups(self) -> Iterator[Group]:
        """What is joined and not fixed, with layers at both ends."""
        fixed = {self._root(name) for name in self._fixed}
        members: dict[str, list[str]] = {}
        for name in self._channels:
            members.setdefault(self._root(name), []).append(name)
        for root, names in members.items():
            writers = tuple(node for name in names for node in self._ends.get(name, ((), ()))[0])
            readers = tuple(node for name in names for node in self._ends.get(name, ((), ()))[1])
            if root not in fixed and writers and readers:
                yield Group(
                    tensors={name: self._channels[name] for name in names},
                    bounds={name: self._bounds[name] for name in names if name in self._bounds},
                    writers=writers,
                    readers=readers,
                    operands=tuple(self._operands[name] for name in names if name in self._operands),
                )

    def _root(self, name: str) -> str:
        while self._parent.setdefault(name, name) != name:
            self._parent[name] = self._parent[self._parent[name]]
            name = self._parent[name]
        return name

    def _join(self, node: NodeFact, *tensors: str, channels: Layout) -> None:
        for tensor in tensors:
            self._parent[self._root(node.outputs[0])] = self._root(tensor)
        self._channels[node.outputs[0]] = channels
        self._fixed.update(name for name in node.outputs[1:] if name)

    def _layer(self, node: NodeFact) -> None:
        read, written = node.inputs[0], node.outputs[0]
        weight = _fixed_shape(self._facts.tensors[node.inputs[1]])
        if self._readable(node, weight):
            self._ends.setdefault(read, ([], []))[1].append(node.name)
        else:
            self._fixed.add(read)
        rank = len(self._facts.tensors[read].shape or ())
        self._channels[written] = Layout(count=outputs_of(node, weight), axis=1 if node.op_type == "Conv" else rank - 1)
        self._ends.setdefault(written, ([], []))[0].append(node.name)

    def _readable(self, node: NodeFact, weight: tuple[int, ...]) -> bool:
        """Whether a layer's input has its channels where the layer multiplies them."""
        found = self._channels.get(node.inputs[0])
        rank = len(self._facts.tensors[node.inputs[0]].shape or ())
        if found is None:
            return False
        if node.op_type == "Conv":
            group = node.attributes.get("group", 1)
            assert isinstance(group, int)
            return found.axis == 1 and found.repeats == 1 and found.count == weight[1] * group
        inputs = weight[1] if node.attributes.get("transB", 0) else weight[0]
        return found.axis == rank - 1 and found.count * found.repeats == inputs

    def _commutes(self, node: NodeFact) -> bool:
        """Join the two sides of a node that positive factors pass."""
        found = self._channels.get(node.inputs[0]) if node.inputs else None
        if found is None or node.domain or node.scope:
            return False
        if node.op_type in _FLATTENING:
            found = self._flattened(node, found)
        elif node.op_type not in _HOMOGENEOUS and node.op_type not in _POOLS:
            return False
        if found is None:
            return False
        self._join(node, node.inputs[0], channels=found)
        self._fixed.update(name for name in node.inputs[1:] if name)
        return True

    def _flattened(self, node: NodeFact, found: Layout) -> Layout | None:
        """The channels of [N, C, ...] as [N, C * ...]."""
        before, after = (self._facts.tensors[name].shape for name in (node.inputs[0], node.outputs[0]))
        if not before or not after or len(after) != 2 or found.axis != 1 or before[0] != after[0] or before[0] is None:
            return None
        rest = [dim for dim in before[1:] if isinstance(dim, int)]
        if len(rest) + 1 != len(before) or after[1] != prod(rest):
            return None
        return Layout(count=found.count, axis=1, repeats=found.repeats * prod(rest[1:]))

    def _clips(self, node: NodeFact) -> bool:
        """Join the two sides of a Clip from 0 to a constant: factors pass where no value is cut off."""
        found = (
            self._channels.get(node.inputs[0]) if node.op_type == "Clip" and not (node.domain or node.scope) else None
        )
        bounds = None if found is None else self._clip_bounds(node)
        if found is None or bounds is None or bounds[0] != 0.0 or bounds[1] <= 0.0:
            return False
        self._join(node, node.inputs[0], channels=found)
        self._bounds[node.outputs[0]] = bounds[1]
        return True

    def _clip_bounds(self, node: NodeFact) -> tuple[float, float] | None:
        found = []
        for index, attribute, default in ((1, "min", float("-inf")), (2, "max", float("inf"))):
            name = node.inputs[index] if len(node.inputs) > index else ""
            value = self._facts.values.get(name)
            if name and (value is None or value.size != 1):
                return None
            given = node.attributes.get(attribute, default) if value is None else value.reshape(-1)[0]
            found.append(float(given))  # type: ignore[arg-type]  # a number
        return found[0], found[1]

    def _pairs(self, node: NodeFact) -> bool:
        """Join both operands of an Add or its kin with the result, or the one that is no constant."""
        if node.op_type not in _PAIRS or node.domain or node.scope or len(node.inputs) != 2:
            return False
        first, second = (self._channels.get(name) for name in node.inputs)
        found = first or second
        if found is None:
            return False
        if first == second:
            ranks = {len(self._facts.tensors[name].shape or ()) for name in node.inputs}
            if len(ranks) == 1:
                self._join(node, *node.inputs, channels=found)
            return len(ranks) == 1
        constant = 0 if first is None else 1
        if not self._is_operand(node, constant, found):
            return False
        self._join(node, node.inputs[1 - constant], channels=found)
        if self._facts.tensors[node.inputs[constant]].shape:
            self._operands[node.outputs[0]] = Use(node.name, constant)
        return True

    def _is_operand(self, node: NodeFact, index: int, channels: Layout) -> bool:
        """Whether a constant is the number 0, or has one number for each channel and along no other axis."""
        fact = self._facts.tensors[node.inputs[index]]
        value = self._facts.values.get(node.inputs[index])
        if value is not None and not fact.shape:
            return bool(value == 0)
        rank = len(self._facts.tensors[node.inputs[1 - index]].shape or ())
        shape = _fixed_shape(fact)
        padded = (*(1 for _ in range(rank - len(shape))), *shape)
        wanted = tuple(channels.count if axis == channels.axis else 1 for axis in range(rank))
        return is_own(fact) and channels.repeats == 1 and padded == wanted
