"""QOperator form: QLinearConv, QLinearMatMul and the runtime's QLinear kin on integer tensors.

One row an operator: how its inputs are laid out. Data movers run on the integers as they are; absorbed
rectifiers go away, since the codes saturate where they would.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

from quantool.edits import AddNode, Edit, RenameOutput, SetInput
from quantool.rewrite.builder import Builder
from quantool.rewrite.corrections import write_corrections
from quantool.rewrite.lookups import write_embedding
from quantool.schema import ActivationSpec, AttributeValue, Decision, NodeFact, Use

_CONTRIB: Final = "com.microsoft"
Triple = tuple[str, str, str]


def rewrite_qoperator(build: Builder) -> list[Edit]:
    """Edits for a static QOperator model."""
    codes = {name: build.named(name, "quantized") for name in build.plan.activations}
    for spec in build.plan.activations.values():
        _convert(build, spec, codes[spec.name])
    for node in build.facts.nodes:
        decision = build.plan.decisions[node.name]
        if decision.kernel == "GatherRows":
            write_embedding(build, node)
        elif decision.into:
            build.remove(node)
        elif decision.quantized:
            _write(build, node, decision, codes)
    for use in build.plan.barriers:
        node = build.facts.by_name[use.node]
        build.read(node, use.index, build.copy(node.inputs[use.index], reader=node))
    write_corrections(build)
    return build.all_edits()


def _parameters(build: Builder, spec: ActivationSpec) -> tuple[str, str]:
    return build.constants.parameters(spec.group, spec.group, build.parameters.activations[spec.name])


def _convert(build: Builder, spec: ActivationSpec, codes: str) -> None:
    """Q behind a float producer; DQ in front of float readers, under the tensor's own name."""
    scale, zero_point = _parameters(build, spec)
    if not spec.replaces:
        build.node("QuantizeLinear", (spec.name, scale, zero_point), codes)
        return
    if build.facts.tensors[spec.name].is_output or _float_readers(build, spec.name):
        build.node("DequantizeLinear", (codes, scale, zero_point), spec.name)


def _float_readers(build: Builder, tensor: str) -> list[Use]:
    """Who reads a tensor as floating-point numbers."""
    decisions = build.plan.decisions
    return [
        use
        for use in build.facts.readers(tensor)
        if not (decisions[use.node].quantized and use.index in decisions[use.node].inputs)
    ]


def _write(build: Builder, node: NodeFact, decision: Decision, codes: dict[str, str]) -> None:
    """Replace a node by its integer form, or let a data mover run on the codes."""
    ends = _ends(build, node)
    layout = LAYOUTS.get(node.op_type)
    if layout is None:
        for index in decision.inputs:
            build.read(node, index, codes[node.inputs[index]])
        for output in ends:
            build.edits.append(RenameOutput(output, codes[output]))
            for use in _float_readers(build, output):
                build.edits.append(SetInput(use.node, use.index, output))
        return
    triples = tuple(_triple(build, node, i, codes) for i in decision.inputs)
    result = _parameters(build, build.plan.activations[ends[0]])
    build.remove(node)
    domain = "" if node.op_type in ("Conv", "MatMul") else _CONTRIB
    if domain:
        build.require(domain)
    build.edits.append(
        AddNode(
            op_type=_integer_name(node.op_type),
            domain=domain,
            name=node.name,
            inputs=layout(build, node, triples, result),
            outputs=(codes[ends[0]],),
            attributes=_attributes(build, node),
        )
    )


def _integer_name(op_type: str) -> str:
    return "QGemm" if op_type == "Gemm" else f"QLinear{op_type}"


def _attributes(build: Builder, node: NodeFact) -> dict[str, AttributeValue]:
    attributes = dict(node.attributes)
    if node.op_type == "Gemm":
        return {k: v for k, v in attributes.items() if k in ("alpha", "transA", "transB")}
    if node.op_type == "Softmax":
        attributes["opset"] = build.facts.opset
    if node.op_type == "GlobalAveragePool":
        attributes["channels_last"] = 0
    return attributes


def _ends(build: Builder, node: NodeFact) -> tuple[str, ...]:
    """The tensors that a unit writes: past the rectifiers it absorbs."""
    followed = []
    for output in node.outputs:
        end = output
        while end and end not in build.plan.activations:
            reader = build.facts.by_name[build.facts.readers(end)[0].node]
            end = reader.outputs[0]
        if end:
            followed.append(end)
    return tuple(followed)


def _triple(build: Builder, node: NodeFact, index: int, codes: dict[str, str]) -> Triple:
    """Codes, scale and zero point of one operand: an activation or a constant."""
    tensor = node.inputs[index]
    if (weight := build.parameters.weights.get((node.name, index))) is not None:
        return build.weight_name(weight)
    scale, zero_point = _parameters(build, build.plan.activations[tensor])
    return codes[tensor], scale, zero_point


Layout = Callable[[Builder, NodeFact, tuple[Triple, ...], tuple[str, str]], tuple[str, ...]]


def _operands(build: Builder, node: NodeFact, triples: tuple[Triple, ...]) -> tuple[Triple, Triple]:
    """Input and weight of a product: the weight is a constant, or the second activation; or a constant comes first."""
    if (rows := build.parameters.weights.get((node.name, 0))) is not None:
        return build.weight_name(rows), triples[0]
    weight = build.parameters.weights.get((node.name, 1))
    return triples[0], triples[1] if weight is None else build.weight_name(weight)


def _product(build: Builder, node: NodeFact, triples: tuple[Triple, ...], result: tuple[str, str]) -> tuple[str, ...]:
    """QLinearConv-10 and QLinearMatMul-10: x, w, then the result's scale; Conv adds its int32 bias."""
    first, second = _operands(build, node, triples)
    weight = build.parameters.weights.get((node.name, 1))
    bias = (build.bias_codes(weight)[0],) if weight is not None and weight.bias is not None else ()
    return (*first, *second, *result, *bias)


def _gemm(build: Builder, node: NodeFact, triples: tuple[Triple, ...], result: tuple[str, str]) -> tuple[str, ...]:
    """com.microsoft QGemm: the bias stands before the result's scale."""
    first, second = _operands(build, node, triples)
    weight = build.parameters.weights.get((node.name, 1))
    bias = build.bias_codes(weight)[0] if weight is not None and weight.bias is not None else ""
    return (*first, *second, bias, *result)


def _all_then_result(
    build: Builder, node: NodeFact, triples: tuple[Triple, ...], result: tuple[str, str]
) -> tuple[str, ...]:
    """QLinearAdd, QLinearMul and the unary operators."""
    return (*(name for triple in triples for name in triple), *result)


def _concat(build: Builder, node: NodeFact, triples: tuple[Triple, ...], result: tuple[str, str]) -> tuple[str, ...]:
    """QLinearConcat: the result's scale comes first."""
    return (*result, *(name for triple in triples for name in triple))


def _where(build: Builder, node: NodeFact, triples: tuple[Triple, ...], result: tuple[str, str]) -> tuple[str, ...]:
    """QLinearWhere: the condition, then both operands."""
    return (node.inputs[0], *(name for triple in triples for name in triple), *result)


#: operator -> layout of its integer form; operators that are not here are data movers
LAYOUTS: Final[MappingProxyType[str, Layout]] = MappingProxyType(
    {
        "Conv": _product,
        "MatMul": _product,
        "Gemm": _gemm,
        "Add": _all_then_result,
        "Mul": _all_then_result,
        "AveragePool": _all_then_result,
        "GlobalAveragePool": _all_then_result,
        "Sigmoid": _all_then_result,
        "LeakyRelu": _all_then_result,
        "Softmax": _all_then_result,
        "Concat": _concat,
        "Where": _where,
    }
)
