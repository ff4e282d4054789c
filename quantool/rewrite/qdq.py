"""QDQ form: QuantizeLinear/DequantizeLinear pairs around float operators, which the runtime fuses."""

from __future__ import annotations

from quantool.edits import Edit, RenameOutput
from quantool.rewrite.builder import Builder
from quantool.rewrite.corrections import write_corrections
from quantool.rewrite.lookups import write_embedding
from quantool.schema import ActivationSpec, NodeFact, Use


def rewrite_qdq(build: Builder) -> list[Edit]:
    """Edits for a static QDQ model. A tensor gets one Q and one DQ, whoever reads it."""
    views = {name: _quantize(build, spec) for name, spec in build.plan.activations.items()}
    for node in build.facts.nodes:
        decision = build.plan.decisions[node.name]
        if decision.kernel == "GatherRows":
            write_embedding(build, node)
        else:
            _rewire(build, node, views, quantized=decision.inputs)
    for weight in build.parameters.weights.values():
        if weight.spec.index or build.plan.decisions[weight.spec.node].kernel != "GatherRows":
            node = build.facts.by_name[weight.spec.node]
            build.read(node, weight.spec.index, build.dequantized_weight(weight))
            if weight.bias is not None and weight.spec.bias is not None:
                build.read(node, node.inputs.index(weight.spec.bias, 1), build.dequantized_bias(weight))
    write_corrections(build)
    return build.all_edits()


def _quantize(build: Builder, spec: ActivationSpec) -> str:
    """Write Q and DQ behind a tensor; returns the dequantized tensor's name.

    Where the producer writes integers and the tensor is a graph output, the dequantized tensor takes its name.
    """
    scale, zero_point = build.constants.parameters(spec.group, spec.group, build.parameters.activations[spec.name])
    source, view = spec.name, build.named(spec.name, "dequantized")
    if spec.replaces and build.facts.tensors[spec.name].is_output:
        source, view = build.named(spec.name, "float"), spec.name
        build.edits.append(RenameOutput(spec.name, source))
    if spec.copied:
        source = build.copy(source)
    codes = build.node("QuantizeLinear", (source, scale, zero_point), build.named(spec.name, "quantized"))
    if not (build.facts.readers(spec.name) or build.facts.tensors[spec.name].is_output):
        return codes  # what else the producer writes is read, and it runs as integers only if all of it is quantized
    if view == spec.name and build.facts.readers(spec.name):
        # the runtime fuses no reader of a DequantizeLinear that the graph returns: readers get their own
        build.node("DequantizeLinear", (codes, scale, zero_point), view)
        view = build.named(spec.name, "dequantized")
    return build.node("DequantizeLinear", (codes, scale, zero_point), view)


def _rewire(build: Builder, node: NodeFact, views: dict[str, str], *, quantized: tuple[int, ...]) -> None:
    """Let a node read dequantized tensors: those it asked for, and those that exist as integers only."""
    for index, tensor in enumerate(node.inputs):
        spec = build.plan.activations.get(tensor)
        dequantized = spec is not None and (index in quantized or spec.replaces)
        view = views[tensor] if dequantized else tensor
        behind_copy = Use(node.name, index) in build.barriers
        if behind_copy:
            view = build.copy(view, reader=node)
        if dequantized or behind_copy:
            build.read(node, index, view)
