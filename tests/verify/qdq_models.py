"""Small quantized models, node by node, and how ONNX Runtime executes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from quantool.graph.optimized import OptimizedGraph, read_optimized
from quantool.runtime.optimized import load_and_inspect
from quantool.runtime.session import Loadable
from quantool.schema import NodeFact
from quantool.verify.execution import StandIns, stand_ins

Shape = Sequence[int | str]


class QdqModel:
    """Collects nodes; every method returns the tensor that it writes."""

    def __init__(self, opset: int = 17) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.opset = opset
        self._random = np.random.default_rng(0)

    def constant(self, name: str, values: object) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def floats(self, name: str, *shape: int) -> str:
        return self.constant(name, self._random.standard_normal(shape).astype(np.float32))

    def node(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str] | str, name: str = "", **more) -> str:
        written = [outputs] if isinstance(outputs, str) else list(outputs)
        self.nodes.append(helper.make_node(op_type, list(inputs), written, name=name, **more))
        return written[0]

    def pair(self, tensor: str, *, scale: float = 0.05, zero_point: int = 128, dtype: str = "uint8") -> str:
        """Q and DQ behind a tensor."""
        parameters = [
            self.constant(f"{tensor}_scale", np.float32(scale)),
            self.constant(f"{tensor}_zero", np.array(zero_point, dtype)),
        ]
        self.node("QuantizeLinear", [tensor, *parameters], f"{tensor}_q", f"{tensor}_Q")
        return self.node("DequantizeLinear", [f"{tensor}_q", *parameters], f"{tensor}_dq", f"{tensor}_DQ")

    def weight(self, name: str, *shape: int, axis: int = 0, dtype: str = "int8") -> str:
        """A dequantized int8 weight, one scale a channel."""
        codes = self._random.integers(-100, 100, shape).astype(dtype)
        parameters = [
            self.constant(f"{name}_codes", codes),
            self.constant(f"{name}_scale", np.full(shape[axis], 0.01, np.float32)),
            self.constant(f"{name}_zero", np.zeros(shape[axis], dtype)),
        ]
        return self.node("DequantizeLinear", parameters, name, f"{name}_DQ", axis=axis)

    def bias(self, name: str, channels: int) -> str:
        """A dequantized int32 bias."""
        return self.weight(name, channels, dtype="int32")

    def graph(self, inputs: dict[str, Shape], outputs: Sequence[str], **dtypes: int) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info(n, dtypes.get(n, 1), list(s)) for n, s in inputs.items()],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            self.constants,
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, ir_version=10, opset_imports=opsets)

    def optimized(self, inputs: dict[str, Shape], outputs: Sequence[str], **dtypes: int) -> OptimizedGraph:
        """What ONNX Runtime makes of it."""
        model = self.graph(inputs, outputs, **dtypes).SerializeToString()
        return load_and_inspect(Loadable(model=model, threads=1), read_optimized)[1]

    def facts(self) -> tuple[NodeFact, ...]:
        return tuple(node_fact(n.name, n.op_type, n.input, n.output) for n in self.nodes)

    def wanted(self) -> dict[str, StandIns]:
        """Every node that is no Q or DQ, as the float graph had it."""
        kinds = ("QuantizeLinear", "DequantizeLinear")
        return stand_ins((node for node in self.facts() if node.op_type not in kinds), self.facts())


def node_fact(name: str, op_type: str, inputs: Sequence[str], outputs: Sequence[str]) -> NodeFact:
    return NodeFact(
        name=name, op_type=op_type, domain="", scope="", inputs=tuple(inputs), outputs=tuple(outputs),
        attributes={}, origins=(name,),
    )  # fmt: skip
