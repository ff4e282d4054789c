"""What can take up factors of a tensor's channels, so that x / s costs nothing: the node before, or its constants.

A normalization's gain and bias, a product's columns, an addition or multiplication of constants, and what lets positive
factors pass on the way there: Relu, and one side of a gated product.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from quantool.schema import GraphFacts, NodeFact

#: normalizations -> inputs that scale and shift each channel of the last axis
_NORMALIZATIONS: Final = {
    "LayerNormalization": (1, 2),
    "SimplifiedLayerNormalization": (1,),
    "RMSNormalization": (1,),
    "SkipLayerNormalization": (2, 3),
    "SkipSimplifiedLayerNormalization": (2,),
}
#: f(x / s) = f(x) / s for s > 0, element by element
_PASSING: Final = frozenset({"Relu", "LeakyRelu", "Identity"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A constant that is divided by the factors. axis: its channels'."""

    node: str
    index: int
    axis: int


def absorbing(facts: GraphFacts, tensor: str, size: int, *, readers: Iterable[str]) -> tuple[Place, ...] | None:
    """The constants to divide so that a tensor of `size` channels along its last axis is divided; None where none can.

    readers: the only nodes that may read it.
    """
    fact = facts.tensors[tensor]
    if fact.is_output or fact.is_input or {use.node for use in fact.readers} - set(readers):
        return None
    return _before(facts, tensor, size)


def _before(facts: GraphFacts, tensor: str, size: int) -> tuple[Place, ...] | None:
    node = facts.producer(tensor)
    if node is None or node.scope or tensor != node.outputs[0]:
        return None
    if node.op_type in _NORMALIZATIONS:
        return _normalization(facts, node, size)
    if node.op_type in ("MatMul", "Gemm") and not node.domain:
        return _product(facts, node, size)
    if node.op_type in _PASSING and not node.domain:
        return _alone(facts, node.inputs[0], size)
    if node.op_type in ("Add", "Sub", "Mul", "Div") and not node.domain:
        return _operator(facts, node, size)
    return None


def _alone(facts: GraphFacts, tensor: str, size: int) -> tuple[Place, ...] | None:
    """What is before a tensor that nothing else reads."""
    fact = facts.tensors[tensor]
    single = len(fact.readers) == 1 and not fact.is_output and not fact.is_input and not fact.is_constant
    return _before(facts, tensor, size) if single else None


def _normalization(facts: GraphFacts, node: NodeFact, size: int) -> tuple[Place, ...] | None:
    if node.attributes.get("axis", -1) != -1 and node.op_type in ("LayerNormalization", "RMSNormalization"):
        return None
    given = [i for i in _NORMALIZATIONS[node.op_type] if i < len(node.inputs) and node.inputs[i]]
    places = [_row(facts, node, index, size) for index in given]
    return tuple(place for place in places if place is not None) if places and None not in places else None


def _product(facts: GraphFacts, node: NodeFact, size: int) -> tuple[Place, ...] | None:
    """The columns of the weight, which nothing else reads, and the bias."""
    weight = facts.tensors[node.inputs[1]]
    axis = 0 if node.op_type == "Gemm" and node.attributes.get("transB", 0) else 1
    own = weight.is_constant and len(weight.readers) == 1 and not weight.transpose_of and not weight.is_output
    shape = weight.shape or ()
    if not own or len(shape) != 2 or shape[axis] != size or weight.dtype != "float32":
        return None
    places: list[Place | None] = [Place(node=node.name, index=1, axis=axis)]
    if len(node.inputs) > 2 and node.inputs[2]:
        places.append(_row(facts, node, 2, size))
    return tuple(place for place in places if place is not None) if None not in places else None


def _operator(facts: GraphFacts, node: NodeFact, size: int) -> tuple[Place, ...] | None:
    constants = [i for i in (0, 1) if facts.tensors[node.inputs[i]].is_constant]
    if not constants:
        # u * g: either side may take the factors of a product
        sides = node.inputs if node.op_type == "Mul" else ()
        return next((found for side in sides if (found := _alone(facts, side, size)) is not None), None)
    place = _row(facts, node, constants[0], size) if len(constants) == 1 else None
    if node.op_type == "Mul" and place is not None:
        return (place,)
    other = node.inputs[1 - constants[0]]
    if node.op_type in ("Mul", "Div") and constants == [1]:
        return _alone(facts, other, size)
    before = _alone(facts, other, size) if node.op_type in ("Add", "Sub") and place is not None else None
    return None if before is None or place is None else (*before, place)


def _row(facts: GraphFacts, node: NodeFact, index: int, size: int) -> Place | None:
    """A float constant with one number a channel, and no other axis that counts."""
    fact = facts.tensors[node.inputs[index]]
    shape = fact.shape or ()
    plain = fact.is_constant and fact.dtype == "float32" and shape and shape[-1] == size
    return Place(node=node.name, index=index, axis=len(shape) - 1) if plain and _flat(shape) else None


def _flat(shape: tuple[int | str | None, ...]) -> bool:
    return all(dim == 1 for dim in shape[:-1])
