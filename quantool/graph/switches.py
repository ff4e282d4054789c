"""A serialized model whose rounding can be switched on in parts, so that one session measures what each part costs.

Everything is computed in float: a tensor goes through QuantizeLinear and DequantizeLinear, and an input of the model
decides whether what comes out, or what went in, is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from quantool.schema import AnyArray, NodeFact

if TYPE_CHECKING:
    import onnx

#: the place before all nodes, where constants and the model's inputs are known
FIRST = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedTensor:
    """A tensor that can be rounded.

    zero_point: of the type of its codes; readers: who reads it rounded, by node and index of the input, None for all.
    """

    switch: int
    tensor: str
    scale: AnyArray
    zero_point: AnyArray
    readers: Sequence[tuple[NodeFact, int]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedConstant:
    """A constant that one node can read rounded."""

    switch: int
    reader: NodeFact
    index: int
    values: AnyArray


def with_switches(
    model_bytes: bytes, tensors: Sequence[RoundedTensor], constants: Sequence[RoundedConstant]
) -> tuple[bytes, Mapping[int, str]]:
    """The model with a boolean input for each switch, and the names of those inputs."""
    import onnx

    model = onnx.load_model_from_string(model_bytes)
    builder = _Builder(model, unused_prefix(model_bytes))
    for constant in constants:
        builder.add_constant(constant)
    for tensor in tensors:
        builder.add_tensor(tensor)
    builder.finish()
    data: bytes = model.SerializeToString()
    return data, builder.switches


def unused_prefix(model_bytes: bytes) -> str:
    """A beginning that no name in a serialized model has."""
    prefix = "rounding"
    while prefix.encode() in model_bytes:
        prefix += "_"
    return prefix


class _Builder:
    """Adds nodes to a graph; switches: number -> the input that they are read from."""

    def __init__(self, model: onnx.ModelProto, prefix: str) -> None:
        self.switches: dict[int, str] = {}
        self._graph = model.graph
        self._names: Iterator[str] = (f"{prefix}.{number}" for number in count())
        self._positions = {name: i for i, node in enumerate(model.graph.node) for name in node.output if name}
        self._behind: dict[int, list[onnx.NodeProto]] = {}

    def add_tensor(self, rounded: RoundedTensor) -> None:
        """Let a tensor be rounded for all of its readers, or for some."""
        position = self._positions.get(rounded.tensor, FIRST)
        exact, result = rounded.tensor, next(self._names)
        if rounded.readers is None:
            exact, result = result, exact
            outputs = self._graph.node[position].output
            outputs[list(outputs).index(rounded.tensor)] = exact
        parameters = [self._constant(rounded.scale), self._constant(rounded.zero_point)]
        codes, coarse = next(self._names), next(self._names)
        self._node("QuantizeLinear", [exact, *parameters], codes, behind=position)
        self._node("DequantizeLinear", [codes, *parameters], coarse, behind=position)
        self._node("Where", [self._switch(rounded.switch), coarse, exact], result, behind=position)
        for reader, index in rounded.readers or ():
            self._rewire(reader, index, result)

    def add_constant(self, rounded: RoundedConstant) -> None:
        """Let a constant be rounded for one reader."""
        result, coarse = next(self._names), self._constant(rounded.values)
        exact = rounded.reader.inputs[rounded.index]
        self._node("Where", [self._switch(rounded.switch), coarse, exact], result, behind=FIRST)
        self._rewire(rounded.reader, rounded.index, result)

    def finish(self) -> None:
        """Put the new nodes where their inputs are known."""
        nodes = list(self._behind.get(FIRST, ()))
        for position, node in enumerate(self._graph.node):
            nodes += [node, *self._behind.get(position, ())]
        copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
        for node in copies:
            node.name = ""  # the runtime refuses names that repeat, which models hold, once it rewrites the nodes
        del self._graph.node[:]
        self._graph.node.extend(copies)

    def _rewire(self, reader: NodeFact, index: int, tensor: str) -> None:
        written = next(filter(None, reader.outputs))
        self._graph.node[self._positions[written]].input[index] = tensor

    def _switch(self, number: int) -> str:
        import onnx

        if number not in self.switches:
            self.switches[number] = next(self._names)
            port = onnx.helper.make_tensor_value_info(self.switches[number], onnx.TensorProto.BOOL, [])
            self._graph.input.append(port)
        return self.switches[number]

    def _constant(self, values: AnyArray) -> str:
        import onnx

        name = next(self._names)
        self._graph.initializer.append(onnx.numpy_helper.from_array(values, name))
        return name

    def _node(self, op_type: str, inputs: Sequence[str], output: str, *, behind: int) -> None:
        import onnx

        self._behind.setdefault(behind, []).append(onnx.helper.make_node(op_type, inputs, [output], name=output))
