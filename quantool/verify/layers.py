"""SQNR along the graph: which tensor of a quantized model answers to which of its float model, and how near it is.

Whoever wrote the quantized model: a tensor is found through the QuantizeLinear that reads it, by its own name, or by
the names that rewriters derive (``NAME_quantized``, ``NAME_QuantizeLinear_Output``, ``NAME_DequantizeLinear_Output``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from quantool.schema import AnyArray, NodeFact
from quantool.verify.comparison import ratio_db, signal_and_noise
from quantool.verify.execution import MOVERS

#: operator -> the inputs that hold the scale and zero point of the codes that it writes
_WRITES_CODES: Final[Mapping[str, tuple[int, int]]] = {
    "QuantizeLinear": (1, 2),
    "QLinearConv": (6, 7),
    "QLinearMatMul": (6, 7),
    "QLinearAdd": (6, 7),
    "QLinearMul": (6, 7),
    "QLinearSigmoid": (3, 4),
    "QLinearLeakyRelu": (3, 4),
    "QLinearSoftmax": (3, 4),
    "QLinearAveragePool": (3, 4),
    "QLinearGlobalAveragePool": (3, 4),
    "QLinearReduceMean": (3, 4),
    "QLinearConcat": (0, 1),
    "QLinearWhere": (7, 8),
    "QGemm": (7, 8),
}
#: what rewriters put behind a tensor's name: its dequantized form first, then its codes
_SUFFIXES: Final = (
    "_dequantized", "_DequantizeLinear_Output", "_DequantizeLinear", "_float",
    "_quantized", "_QuantizeLinear_Output", "_QuantizeLinear",
)  # fmt: skip
_RECTIFIERS: Final = frozenset({"Relu", "Clip"})
#: operators that compute nothing: a layer after them would repeat the one before
_NO_LAYERS: Final = MOVERS | {"Cast", "Constant", "ConstantOfShape", "Dropout", "Range", "Shape", "Size"}


@dataclass(frozen=True, slots=True)
class Counterpart:
    """A tensor of the quantized model. scale, zero_point: set where it holds codes."""

    name: str
    scale: float | None = None
    zero_point: int = 0

    def real(self, array: AnyArray) -> AnyArray:
        """What the tensor stands for: itself, or (codes - zero_point) * scale."""
        if self.scale is None:
            return array
        return (array.astype(np.float64) - self.zero_point) * self.scale


def layers(nodes: Iterable[NodeFact]) -> tuple[NodeFact, ...]:
    """The nodes of a float model that compute something, in the order of the graph."""
    return tuple(node for node in nodes if node.op_type not in _NO_LAYERS and node.outputs and node.outputs[0])


def matched_layers(
    nodes: Sequence[NodeFact], quantized: Sequence[NodeFact], values: Mapping[str, AnyArray]
) -> dict[str, Counterpart]:
    """What answers to the output of each layer of a float model; see :func:`counterparts`.

    nodes: all of the float graph. Where a Relu or Clip is gone because saturation does its work, the codes before it
    answer to what it wrote.
    """
    found = counterparts((node.outputs[0] for node in layers(nodes)), quantized, values)
    readers: dict[str, list[NodeFact]] = {}
    for node in nodes:
        for tensor in node.inputs:
            readers.setdefault(tensor, []).append(node)
    dequantized = {node.outputs[0] for node in quantized if node.op_type == "DequantizeLinear"}
    result: dict[str, Counterpart] = {}
    for name, answer in found.items():
        following = readers.get(name, [])
        rounded = answer.scale is not None or answer.name in dequantized
        absorbed = rounded and len(following) == 1 and following[0].op_type in _RECTIFIERS
        target = following[0].outputs[0] if absorbed else name
        result[target if target not in found else name] = answer
    return result


def counterparts(
    names: Iterable[str], quantized: Sequence[NodeFact], values: Mapping[str, AnyArray]
) -> dict[str, Counterpart]:
    """What answers to each tensor in the main graph of a quantized model; tensors without an answer are left out.

    values: the constants of one element. A tensor that is quantized is taken as its readers see it, after rounding.
    """
    writers = {tensor: node for node in quantized for tensor in node.outputs if tensor}
    codes = {node.inputs[0]: node for node in quantized if node.op_type == "QuantizeLinear"}
    views = {node.inputs[0]: node.outputs[0] for node in quantized if node.op_type == "DequantizeLinear"}
    found = {}
    for name in names:
        candidates = [views.get(codes[name].outputs[0], codes[name].outputs[0])] if name in codes else []
        candidates += [name, *(name + suffix for suffix in _SUFFIXES)]
        answers = (_counterpart(candidate, writers, values) for candidate in candidates if candidate in writers)
        answer = next((a for a in answers if a is not None), None)
        if answer is not None:
            found[name] = answer
    return found


def _counterpart(name: str, writers: Mapping[str, NodeFact], values: Mapping[str, AnyArray]) -> Counterpart | None:
    """A tensor with the scale of its codes; None where they have no scale of one element."""
    node: NodeFact | None = writers[name]
    while node is not None and node.op_type in MOVERS:
        node = writers.get(node.inputs[0])
    if node is None or node.op_type not in _WRITES_CODES:
        return Counterpart(name)
    scale, zero_point = _WRITES_CODES[node.op_type]
    if node.op_type == "QGemm" and len(node.inputs) <= scale:
        return Counterpart(name)  # its result is float
    known = [values.get(node.inputs[i]) if i < len(node.inputs) else None for i in (scale, zero_point)]
    if known[0] is None:
        return None
    zero = 0 if known[1] is None else int(known[1].item())
    return Counterpart(name, scale=float(known[0].item()), zero_point=zero)


@dataclass(slots=True)
class LayerNoise:
    """Signal and noise of tensors over samples; nothing of a sample is kept but sums."""

    sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    odd: set[str] = field(default_factory=set)

    def add(
        self, reference: Mapping[str, AnyArray], test: Mapping[str, AnyArray], matched: Mapping[str, Counterpart]
    ) -> None:
        """Fold in one sample. Tensors that are not float, or whose shapes differ, are left out for good."""
        for name, answer in matched.items():
            exact, found = reference.get(name), test.get(answer.name)
            if exact is None or found is None or exact.shape != found.shape or not _is_real(exact):
                self.odd.add(name)
                continue
            signal, noise = signal_and_noise(exact, answer.real(found))
            before = self.sums.get(name, (0.0, 0.0))
            self.sums[name] = before[0] + signal, before[1] + noise

    def decibels(self) -> dict[str, float]:
        """SQNR of each tensor in dB; inf where nothing differs."""
        return {name: ratio_db(*sums) for name, sums in self.sums.items() if name not in self.odd}


def _is_real(array: AnyArray) -> bool:
    return array.dtype.name.startswith(("float", "bfloat"))


def at_inputs(
    nodes: Sequence[NodeFact], constants: Collection[str], measured: Mapping[str, float]
) -> Iterator[tuple[NodeFact, float]]:
    """Each layer that was measured, with the worst SQNR of what its node reads: inf where all of that is exact.

    Where what a node reads was not measured itself, what that was made from counts.
    """
    worst: dict[str, float] = {}
    for node in nodes:
        reads = [worst.get(tensor, math.inf) for tensor in node.inputs if tensor and tensor not in constants]
        arriving = min(reads, default=math.inf)
        for tensor in node.outputs:
            worst[tensor] = measured.get(tensor, arriving)
        if node.outputs and node.outputs[0] in measured:
            yield node, arriving
