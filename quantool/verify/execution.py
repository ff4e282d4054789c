"""How the runtime really executes each node, read from the model that its optimizer wrote.

ONNX Runtime renames freely, so a node is found by what survives (measured on 1.32):
``conv1`` becomes ``conv1_token_3`` when its layout changes, ``mm`` becomes ``mm/MatMulAddFusion`` when it swallows its
bias, and the blocked float forms are called ``OUTPUT_nchwc``. Names that end so by themselves are known names and
are taken as they are; the runtime never makes up a name that the model has. Where the name is gone, what a rewriter
put in the node's place decides, then its tensors: its outputs and their quantized forms.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from quantool.graph.optimized import ACCURACY_LEVEL, OptimizedGraph
from quantool.measured import RunsAs
from quantool.schema import NodeFact

#: operators that compute with integers, of ai.onnx and com.microsoft
INTEGER_OPERATORS: Final = frozenset(
    {
        "ConvInteger", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "GatherBlockQuantized",
        "MatMulBnb4", "MatMulInteger", "MatMulInteger16", "MatMulIntegerToFloat", "MatMulNBits",
        "NhwcMaxPool", "QAttention", "QEmbedLayerNormalization", "QGemm", "QLinearAdd", "QLinearAveragePool",
        "QLinearConcat", "QLinearConv", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMatMul",
        "QLinearMul", "QLinearReduceMean", "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere",
    }
)  # fmt: skip

# Integer operators whose result is float; QGemm is one where it has no scale for its output.
_FLOAT_RESULT: Final = frozenset(
    {
        "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "GatherBlockQuantized", "MatMulBnb4",
        "MatMulIntegerToFloat", "MatMulNBits", "QAttention", "QEmbedLayerNormalization",
    }
)  # fmt: skip
_QGEMM_OUTPUT_SCALE: Final = 7

# Operators that run on whatever type they are given; the integer is in input 0.
MOVERS: Final = frozenset(
    {
        "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "MaxPool",
        "Pad", "ReduceMax", "ReduceMin", "Reshape", "Resize", "Slice", "SpaceToDepth", "Split", "Squeeze",
        "Tile", "Transpose", "Unsqueeze", "Upsample",
    }
)  # fmt: skip
_CODES: Final = frozenset({"uint8", "int8", "uint16", "int16", "uint4", "int4", "uint2", "int2"})
_NARROW: Final = _CODES - {"uint16", "int16"}
_QUANTIZERS: Final = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})

#: the float end of a dynamic product, Add?(Mul(Cast(integers))), all that is left of the second of two equal ones
_TAIL: Final = {
    "Add": {"Mul", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"},
    "Mul": {"Cast"},
    "Cast": {"MatMulInteger", "ConvInteger"},
}

_DERIVED: Final = re.compile(r"(_token_\d+|/\w*Fusion/?)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What runs.

    named: nodes found by their own name, not as part of what swallowed them. requantized: float nodes whose
    weight is a dequantized constant of at most 8 bits.

    `runs_as.integer` has no entry for a node that nothing in the optimized model stands for: it was folded, fused
    away into a float pattern, or is a mover without effect.
    """

    runs_as: RunsAs
    named: frozenset[str]
    requantized: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIns:
    """What may stand for a node besides its own name. nodes, tensors: names, best first."""

    nodes: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()


def execution(optimized: OptimizedGraph, wanted: Mapping[str, StandIns]) -> Execution:
    """Find how each wanted node runs; wanted holds every node that came from the float model (:func:`stand_ins`).

    Movers count as integer where what they move is.
    """
    index = _Index(optimized, known={*wanted, *(name for others in wanted.values() for name in others.nodes)})
    found = {node: index.runs_as_integer(node, others) for node, others in wanted.items()}
    counts = Counter(node.op_type for node in optimized.nodes)
    return Execution(
        runs_as=RunsAs(
            integer={node: integer for node, integer in found.items() if integer is not None},
            fused={op_type: counts[op_type] for op_type in sorted(counts) if op_type in INTEGER_OPERATORS},
            left={op_type: counts[op_type] for op_type in ("QuantizeLinear", "DequantizeLinear")},
            accuracy_levels=accuracy_levels(optimized),
        ),
        named=frozenset(node for node in wanted if index.has(node)),
        requantized=frozenset(node for node in wanted if index.weight_is_requantized(node)),
    )


def accuracy_levels(optimized: OptimizedGraph) -> tuple[int, ...]:
    """The accuracy levels of MatMulNBits that run, each once, ascending; 0 where the node leaves it to the runtime."""
    found = (node.attributes.get(ACCURACY_LEVEL, 0) for node in optimized.nodes if node.op_type == "MatMulNBits")
    return tuple(sorted({level for level in found if isinstance(level, int)}))


def stand_ins(nodes: Iterable[NodeFact], quantized: Sequence[NodeFact]) -> dict[str, StandIns]:
    """What stands for each node of the float graph in the quantized one.

    nodes: the float graph. quantized: all nodes of the quantized graph as written. A node still there stands for
    itself, through its outputs and their quantized forms; one replaced through the integer operators between its
    old outputs and the next quantized tensor.
    """
    original = tuple(nodes)
    kept = {node.name for node in original}
    by_name = {node.name: node for node in quantized}
    writers = {tensor: node for node in quantized for tensor in node.outputs if tensor}
    forms: dict[str, list[str]] = defaultdict(list)
    for node in quantized:
        if node.op_type == "QuantizeLinear":
            forms[node.inputs[0]].append(node.outputs[0])
    result = {}
    for node in original:
        own = by_name[node.name].outputs if node.name in by_name else ()
        tensors = [name for name in dict.fromkeys((*own, *node.outputs)) if name]
        made = [maker.name for tensor in node.outputs for maker in _made_for(tensor, writers, kept)]
        tensors.extend(form for tensor in tuple(tensors) for form in forms[tensor])
        result[node.name] = StandIns(nodes=tuple(dict.fromkeys(made)), tensors=tuple(tensors))
    return result


def _made_for(tensor: str, writers: Mapping[str, NodeFact], kept: set[str]) -> Iterator[NodeFact]:
    """Integer operators that a rewriter added before a tensor, back to the nearest quantized ones."""
    waiting, seen = [tensor], set()
    while waiting:
        node = writers.get(waiting.pop())
        if node is None or node.name in kept or node.name in seen or node.op_type in _QUANTIZERS:
            continue
        seen.add(node.name)
        if node.op_type in INTEGER_OPERATORS:
            yield node
        else:
            waiting.extend(name for name in node.inputs if name)


class _Index:
    """Look-ups over an optimized graph."""

    def __init__(self, optimized: OptimizedGraph, known: set[str]) -> None:
        self._dtypes = optimized.dtypes
        self._writers = {(n.scope, tensor): n for n in optimized.nodes for tensor in n.outputs if tensor}
        self._by_name: dict[str, list[NodeFact]] = defaultdict(list)
        self._by_tensor: dict[str, list[NodeFact]] = defaultdict(list)
        self._codes: dict[tuple[str, str], bool] = {}
        for node in optimized.nodes:
            self._by_name[_known_name(node.name, known)].append(node)
            for tensor in node.outputs:
                self._by_tensor[tensor].append(node)

    def has(self, name: str) -> bool:
        """Whether a node of this name, or of one derived from it, is there."""
        return name in self._by_name

    def runs_as_integer(self, name: str, others: StandIns) -> bool | None:
        """By name, else by the first tensor that says something; None where nothing does."""
        for known in (name, *others.nodes):
            if known in self._by_name:
                return any(self._is_integer(node) for node in self._by_name[known])
        for tensor in others.tensors:
            for node in self._by_tensor.get(tensor, ()):
                verdict = self._computed_as_integer(node)
                if verdict is not None:
                    return verdict
            if f"{tensor}_nchwc" in self._by_name:
                return False
        return None

    def weight_is_requantized(self, name: str) -> bool:
        """Whether the node computes in float on a weight that is a dequantized constant of at most 8 bits."""
        for node in self._by_name.get(name, ()):
            if node.op_type in INTEGER_OPERATORS or len(node.inputs) < 2:
                continue
            writer = self._writers.get((node.scope, node.inputs[1]))
            if writer is not None and writer.op_type == "DequantizeLinear":
                return self._dtypes.get((writer.scope, writer.inputs[0])) in _NARROW
        return False

    def _computed_as_integer(self, node: NodeFact) -> bool | None:
        """Whether what arrives at a tensor came out of an integer operator; None where it came from none.

        Passes over Q, DQ and movers. A DQ behind a Q means that something between was absorbed by the
        requantization, which is float.
        """
        current: NodeFact | None = node
        requantized = False
        while current is not None:
            if current.op_type in INTEGER_OPERATORS:
                return not requantized
            if current.op_type not in MOVERS and current.op_type not in ("QuantizeLinear", "DequantizeLinear"):
                return self._scales_integers(current)
            following = self._writers.get((current.scope, current.inputs[0]))
            crossed = following is not None and following.op_type == "DequantizeLinear"
            requantized = requantized or (current.op_type == "QuantizeLinear" and crossed)
            current = following
        return None

    def _scales_integers(self, node: NodeFact) -> bool:
        """Whether a node ends a dynamic product: scales its sums, or adds a bias to them."""
        before = _TAIL.get(node.op_type, set())
        writers = (self._writers.get((node.scope, tensor)) for tensor in node.inputs)
        found = [writer for writer in writers if writer is not None and writer.op_type in before]
        return any(writer.op_type in INTEGER_OPERATORS or self._scales_integers(writer) for writer in found)

    def _is_integer(self, node: NodeFact) -> bool:
        if node.op_type in INTEGER_OPERATORS:
            return True
        return node.op_type in MOVERS and self._holds_codes(node.scope, node.inputs[0])

    def _holds_codes(self, scope: str, tensor: str) -> bool:
        """Whether a tensor holds integers of at most 16 bits; walks up movers, remembering what it learns."""
        path = []
        while (scope, tensor) not in self._codes:
            path.append((scope, tensor))
            writer = self._writers.get((scope, tensor))
            if writer is None or writer.op_type not in MOVERS:
                self._codes[scope, tensor] = self._writes_codes(writer, scope, tensor)
                break
            scope, tensor = writer.scope, writer.inputs[0]
        answer = self._codes[scope, tensor]
        self._codes.update(dict.fromkeys(path, answer))
        return answer

    def _writes_codes(self, writer: NodeFact | None, scope: str, tensor: str) -> bool:
        if writer is None:
            return self._dtypes.get((scope, tensor)) in _CODES
        if writer.op_type in _QUANTIZERS:
            return tensor == writer.outputs[0]
        if writer.op_type == "QGemm":
            return len(writer.inputs) > _QGEMM_OUTPUT_SCALE and bool(writer.inputs[_QGEMM_OUTPUT_SCALE])
        return writer.op_type in INTEGER_OPERATORS - _FLOAT_RESULT


def _known_name(name: str, known: set[str]) -> str:
    """The known name behind one that the runtime derived, or the name itself."""
    stem = name
    while stem not in known:
        shorter = _DERIVED.sub("", stem)
        if shorter == stem:
            return name
        stem = shorter
    return stem
