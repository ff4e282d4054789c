"""Where ONNX Runtime (1.32) would fuse across a border of the plan, so that a copy must stand there.

It fuses what stands between DequantizeLinear and QuantizeLinear, whoever put them there, and quantizes float weights
in that place; before that it moves both of them past data movers. And some float fusions come
before it looks for integers: a MatMul and the Add behind it become a float Gemm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from types import MappingProxyType
from typing import Final

from quantool.ops import Role, activation_inputs, op_of
from quantool.plan.context import Context
from quantool.plan.mixed import product_of_other_type
from quantool.plan.regions import Unit
from quantool.schema import ActivationSpec, Mode, NodeFact, Use

#: their float weights are quantized at load
_WEIGHTED: Final = frozenset({"Conv", "ConvTranspose", "Gemm"})
#: products of two activations, fused even where no QuantizeLinear follows
_PRODUCTS: Final = frozenset({"MatMul", "Gemm"})
#: the runtime moves a QuantizeLinear before them, or takes its saturation for them
_DROPPED: Final = (Role.MOVER, Role.RECTIFIER)


def find_barriers(
    ctx: Context, units: Mapping[str, Unit], activations: Mapping[str, ActivationSpec]
) -> tuple[Use, ...]:
    """The readings of a static plan's kept nodes that need a copy."""
    products = [u.node for u in units.values() if u.role is Role.ANCHOR and not u.integer_output]
    behind = across_products(ctx, products, units, activations)
    leaving = _leaving(ctx, units, activations)
    beside = _beside_other_readers(ctx, products, leaving)
    fused = _before_fused(ctx, units, activations, leaving)
    paths = (product_of_other_type(ctx, name, units) for name in activations)
    retyped = (Use(path[1].name, 0) for path in paths if len(path) > 1)
    return tuple(dict.fromkeys((*fused, *behind, *beside, *retyped, *_of_one_layout(ctx, units))))


def across_products(
    ctx: Context,
    products: Iterable[NodeFact],
    units: Mapping[str, Unit] = MappingProxyType({}),
    activations: Mapping[str, ActivationSpec] = MappingProxyType({}),
) -> Iterator[Use]:
    """Readings by a kept node that would take a product with quantized weights into a float one."""
    for product in products:
        uses = ctx.facts.readers(product.outputs[0])
        if len(uses) != 1 or uses[0].node in units:
            continue
        reader = ctx.facts.by_name[uses[0].node]
        if op_of(reader).role is Role.RECTIFIER:
            swallows = _hides(ctx, reader, units, activations)
        elif product.op_type == "MatMul":
            swallows = _makes_gemm(ctx, product, reader, uses[0].index)
        else:
            swallows = _swallows_gemm(product, reader)
        if swallows:
            yield uses[0]


def _hides(
    ctx: Context, rectifier: NodeFact, units: Mapping[str, Unit], activations: Mapping[str, ActivationSpec]
) -> bool:
    """A rectifier with one consumer counts as part of the product before it, which must then end in a Q.

    It does no harm where that consumer is a QuantizeLinear whose saturation takes the rectifier's place.
    """
    end = rectifier.outputs[0]
    if ctx.settings.mode is Mode.WEIGHT_ONLY:
        return True
    uses = ctx.facts.readers(end)
    in_float = [u for u in uses if u.node not in units or u.index not in units[u.node].inputs]
    if end in activations:
        return not in_float and activations[end].bounds is None
    return len(in_float) == 1


def _makes_gemm(ctx: Context, product: NodeFact, reader: NodeFact, index: int) -> bool:
    """An Add makes a Gemm of a product of matrices; a vector is no harm, it is the bias of an integer Gemm."""
    if reader.op_type != "Add" or ctx.rank(product.inputs[0]) not in (2, None):
        return False
    other = reader.inputs[1 - index]
    return not (ctx.is_constant(other) and ctx.rank(other) == 1)


def _swallows_gemm(product: NodeFact, reader: NodeFact) -> bool:
    """A Gemm without a bias takes in a sum or a transposition."""
    biased = len(product.inputs) > 2 and bool(product.inputs[2])
    return product.op_type == "Gemm" and reader.op_type in ("Sum", "Transpose") and not biased


def _beside_other_readers(ctx: Context, products: Iterable[NodeFact], leaving: Set[str]) -> Iterator[Use]:
    """Rectifiers and movers before a QuantizeLinear, where others read the product too.

    The runtime drops them, so that the product stands before the QuantizeLinear and before a float reader: it fuses
    no such product.
    """
    for product in products:
        uses = ctx.facts.readers(product.outputs[0])
        if len(uses) > 1 or ctx.facts.tensors[product.outputs[0]].is_output:
            for use in uses:
                reader = ctx.facts.by_name[use.node]
                if use.index == 0 and op_of(reader).role in _DROPPED and not leaving.isdisjoint(reader.outputs):
                    yield use


def _of_one_layout(ctx: Context, units: Mapping[str, Unit]) -> Iterator[Use]:
    """Inputs of a Resize that must not be moved behind it into the layout that integer convolutions have.

    The runtime moves their transpositions past it, whether it names its axes or is cubic, and then it does not load.
    """
    if any(unit.node.op_type == "Conv" for unit in units.values()):
        for node in ctx.facts.nodes:
            fixed = "axes" in node.attributes or node.attributes.get("mode") == "cubic"
            if node.op_type == "Resize" and fixed and not node.scope and ctx.rank(node.inputs[0]) == 4:
                yield Use(node.name, 0)


def _leaving(ctx: Context, units: Mapping[str, Unit], activations: Mapping[str, ActivationSpec]) -> Set[str]:
    """Tensors that reach a QuantizeLinear, through kept rectifiers and movers or at once."""
    leaving = set(activations)
    for node in reversed(ctx.facts.nodes):
        kept = node.name not in units and not node.scope
        if kept and op_of(node).role in _DROPPED and not leaving.isdisjoint(node.outputs):
            leaving.add(node.inputs[0])
    return leaving


def _before_fused(
    ctx: Context, units: Mapping[str, Unit], activations: Mapping[str, ActivationSpec], leaving: Set[str]
) -> Iterator[Use]:
    """The first activation of every kept node that the runtime would turn into integers."""
    kept = [n for n in ctx.facts.nodes if n.name not in units and not n.scope]
    arriving = {name for name, spec in activations.items() if spec.replaces}
    for node in kept:
        if op_of(node).role is Role.MOVER and node.inputs[0] in arriving:
            arriving.update(node.outputs)
    return (Use(n.name, activation_inputs(n)[0]) for n in kept if _is_fused(ctx, n, arriving, leaving))


def _is_fused(ctx: Context, node: NodeFact, arriving: Set[str], leaving: Set[str]) -> bool:
    role = op_of(node).role
    if role is Role.FOLLOWER:
        reads = {node.inputs[i] for i in activation_inputs(node)}
        return reads <= arriving and node.outputs[0] in leaving
    if role is not Role.ANCHOR:
        return False
    if ctx.is_constant(node.inputs[1]):
        if ctx.in_float(node, *node.outputs):
            return node.inputs[0] in arriving
        return node.op_type in _WEIGHTED and node.inputs[0] in arriving and node.outputs[0] in leaving
    return set(node.inputs[:2]) <= arriving and (node.op_type in _PRODUCTS or node.outputs[0] in leaving)
