"""What all rewriters share: collecting edits, and the few constructs that every form writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from quantool.edits import AddNode, Edit, RemoveNode, SetInput, SetOpset
from quantool.elements import ELEMENTS
from quantool.ops import inner_axis
from quantool.rewrite.naming import Constants, Fresh, stem
from quantool.schema import AttributeValue, GraphFacts, NodeFact, Parameters, Plan, Use, WeightParams

#: ONNX Runtime 1.32 has no kernels for these of a newer opset; those of its own domain serve any
NEWEST_LINEAR: Final = 27
#: codes of this width are not transposed: ONNX Runtime 1.32 fails to load where it folds such a Transpose
_NOT_TRANSPOSED: Final = 2
_LINEAR: Final = frozenset({"QuantizeLinear", "DequantizeLinear"})


@dataclass(slots=True)
class Builder:
    """Collects the edits of one rewrite. `constants` and `edits` grow; everything else is read."""

    facts: GraphFacts
    plan: Plan
    parameters: Parameters
    fresh: Fresh
    edits: list[Edit] = field(default_factory=list)
    constants: Constants = field(init=False)
    barriers: frozenset[Use] = field(init=False)
    tied_products: Mapping[str, tuple[NodeFact, ...]] = field(init=False)
    _dequantized: dict[str, str] = field(default_factory=dict)
    _domains: set[str] = field(default_factory=set)
    _run_time: dict[tuple[str, str], tuple[str, str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.constants = Constants(self.fresh)
        self.barriers = frozenset(self.plan.barriers)
        self.tied_products = self._tied_products()

    def _tied_products(self) -> dict[str, tuple[NodeFact, ...]]:
        """Constant -> the products written as MatMulNBits whose rows it holds, as it is or transposed."""
        found: dict[str, tuple[NodeFact, ...]] = {}
        for node in self.facts.nodes:
            if self.plan.decisions[node.name].kernel == "MatMulNBits":
                tensor = self.facts.tensors[node.inputs[1]]
                name = tensor.name if inner_axis(node) else tensor.transpose_of
                found[name] = (*found.get(name, ()), node)
        return found

    def all_edits(self) -> list[Edit]:
        """Every edit so far, constants first."""
        return [*self.constants.edits, *self.edits]

    def named(self, base: str, suffix: str) -> str:
        """A new name made from another one."""
        return self.fresh(f"{stem(base)}_{suffix}")

    def node(
        self,
        op_type: str,
        inputs: tuple[str, ...],
        output: str,
        *,
        attributes: Mapping[str, AttributeValue] | None = None,
        domain: str = "",
        near: str = "",
        name: str = "",
    ) -> str:
        """Add a node that writes one tensor, and return that tensor's name."""
        if op_type in _LINEAR and self.facts.opset > NEWEST_LINEAR and "block_size" not in (attributes or {}):
            domain = "com.microsoft"
        if domain:
            self.require(domain)
        self.edits.append(
            AddNode(
                op_type=op_type,
                domain=domain,
                name=name or self.named(inputs[0], op_type),
                inputs=inputs,
                outputs=(output,),
                attributes=attributes or {},
                near=near,
            )
        )
        return output

    def require(self, domain: str) -> None:
        """Import an operator domain beside ai.onnx."""
        if domain not in self._domains:
            self._domains.add(domain)
            self.edits.append(SetOpset(domain, 1))

    def quantized_at_run_time(self, tensor: str, *, near: str, scope: str) -> tuple[str, str, str]:
        """DynamicQuantizeLinear of a tensor, once for all its readers in a scope: codes, scale, zero point."""
        key = (scope, tensor)
        if key not in self._run_time:
            names = (
                self.named(tensor, "quantized"),
                self.named(tensor, "scale"),
                self.named(tensor, "zero_point"),
            )
            self.edits.append(
                AddNode(
                    op_type="DynamicQuantizeLinear",
                    name=self.named(tensor, "DynamicQuantizeLinear"),
                    inputs=(tensor,),
                    outputs=names,
                    near=near,
                )
            )
            self._run_time[key] = names
        return self._run_time[key]

    def copy(self, tensor: str, *, reader: NodeFact | None = None) -> str:
        """A copy that the optimizer leaves alone: a lone Sum stays, and nothing fuses across it.

        Only transpositions move across a Sum; in front of a Resize they must not (blocks of one element stay).
        """
        output, near = self.named(tensor, "copy"), "" if reader is None else reader.name
        if reader is not None and reader.op_type == "Resize":
            return self.node("SpaceToDepth", (tensor,), output, attributes={"blocksize": 1}, near=near)
        return self.node("Sum", (tensor,), output, near=near)

    def read(self, node: NodeFact, index: int, tensor: str) -> None:
        """Make an input of a node read another tensor."""
        self.edits.append(SetInput(node.name, index, tensor))

    def remove(self, node: NodeFact) -> None:
        """Remove a node whose output another one writes."""
        self.edits.append(RemoveNode(node.name))

    def weight_name(self, weight: WeightParams) -> tuple[str, str, str]:
        """Store codes, scale and zero point of a weight; returns their names."""
        scale, zero_point = self.constants.parameters(
            weight.key, weight.spec.tensor, weight.params, scale_type=weight.spec.scale_type
        )
        return self.codes(weight), scale, zero_point

    def codes(self, weight: WeightParams) -> str:
        """The integers of a weight: stored, or the transpose of those of the weight that it is tied to.

        The runtime computes that transpose once, when it loads the model.
        """
        twin = self._twin(weight)
        if twin is None:
            return self.constants.codes(weight)
        key = f"{weight.key}|tied"
        if key not in self._dequantized:
            stored, name = self.constants.codes(twin), self.named(weight.spec.tensor, "quantized")
            self._dequantized[key] = self.node("Transpose", (stored,), name, attributes={"perm": (1, 0)})
        return self._dequantized[key]

    def _twin(self, weight: WeightParams) -> WeightParams | None:
        """The weight whose codes are the transpose of this one's, or None."""
        tied = self.facts.tensors[weight.spec.tensor].transpose_of
        if not tied or not weight.rounded_to_nearest:
            return None
        others = (other for other in self.parameters.weights.values() if other.spec.tensor == tied)
        return next((other for other in others if other.rounded_to_nearest and _are_transposes(weight, other)), None)

    def dequantized_weight(self, weight: WeightParams) -> str:
        """The float view of a weight's integers: one DequantizeLinear for all readers of the same codes.

        It stands in the main graph: ONNX Runtime 1.32 does not load one in the body of an If, beside its MatMul.
        """
        key = weight.key
        twin = self._twin(weight) if ELEMENTS[weight.params.dtype].bits == _NOT_TRANSPOSED else None
        if key not in self._dequantized and twin is not None:
            view, output = self.copy(self.dequantized_weight(twin)), self.named(weight.spec.tensor, "dequantized")
            self._dequantized[key] = self.node("Transpose", (view,), output, attributes={"perm": (1, 0)})
        if key not in self._dequantized:
            params = weight.params
            attributes: dict[str, AttributeValue] = {}
            if params.axis is not None and params.scale.ndim:
                attributes["axis"] = params.axis
            if params.block_size:
                attributes["block_size"] = params.block_size
            inputs: tuple[str, ...] = self.weight_name(weight)
            if params.block_size and not params.zero_point.any():
                inputs = inputs[:2]  # zero is taken by default
            output = self.named(weight.spec.tensor, "dequantized")
            self._dequantized[key] = self.node("DequantizeLinear", inputs, output, attributes=attributes)
        return self._dequantized[key]

    def bias_codes(self, weight: WeightParams) -> tuple[str, str]:
        """Store an int32 bias and its scale, one copy for each pair of scales; returns their names."""
        spec, bias, scale = weight.spec, weight.bias, weight.bias_scale
        assert bias is not None
        assert scale is not None
        key = f"{spec.bias}|{scale.tobytes().hex()}|{bias.tobytes().hex()}"
        codes = self.constants.array(f"{key}|codes", f"{spec.bias}_quantized", bias)
        return codes, self.constants.array(f"{key}|scale", f"{spec.bias}_scale", scale)

    def dequantized_bias(self, weight: WeightParams) -> str:
        """The float view of an int32 bias; the zero point of int32 is zero and stays absent."""
        codes, scale = self.bias_codes(weight)
        if codes not in self._dequantized:
            per_channel = weight.bias_scale is not None and weight.bias_scale.ndim
            self._dequantized[codes] = self.node(
                "DequantizeLinear",
                (codes, scale),
                self.named(weight.spec.bias or "bias", "dequantized"),
                attributes={"axis": 0} if per_channel else {},
            )
        return self._dequantized[codes]

    def scalar(self, key: str, value: np.generic) -> str:
        """Store a scalar constant once."""
        return self.constants.array(f"scalar|{key}", key, np.asarray(value))


def _are_transposes(weight: WeightParams, other: WeightParams) -> bool:
    """Whether one matrix has the other's codes and parameters, with its axes swapped."""
    own, theirs = weight.params, other.params
    axes = ((0, 1), (1, 0)) if own.block_size else ((0, 1), (1, 0), (None, None))
    if own.dtype != theirs.dtype or own.block_size != theirs.block_size or (own.axis, theirs.axis) not in axes:
        return False
    return np.array_equal(own.scale, theirs.scale.T) and np.array_equal(own.zero_point, theirs.zero_point.T)
