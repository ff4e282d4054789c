"""Read chains of Add, Mul, Clip and their like as one function of their input: clip(slope x + offset, lo, hi)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from quantool.graph.normalize.constants import scalar

if TYPE_CHECKING:
    import onnx_ir


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipped:
    """The function clip(slope * x + offset, lo, hi); closed under scaling, shifting and clipping again."""

    slope: float = 1.0
    offset: float = 0.0
    lo: float = -math.inf
    hi: float = math.inf

    def times(self, factor: float) -> Self:
        """The function scaled; a negative factor swaps the bounds."""
        bounds = sorted((_scaled(self.lo, factor), _scaled(self.hi, factor)))
        return replace(self, slope=self.slope * factor, offset=self.offset * factor, lo=bounds[0], hi=bounds[1])

    def plus(self, term: float) -> Self:
        """The function shifted."""
        return replace(self, offset=self.offset + term, lo=self.lo + term, hi=self.hi + term)

    def clip(self, lo: float, hi: float) -> Self:
        """The function clipped: min(max(f, lo), hi), as ONNX Clip has it."""
        return replace(self, lo=min(max(self.lo, lo), hi), hi=min(max(self.hi, lo), hi))

    def is_close(self, other: Clipped) -> bool:
        """Whether all four numbers agree to a few float32 roundings of 1."""
        pairs = zip(self.numbers(), other.numbers(), strict=True)
        return all(a == b or abs(a - b) <= 1e-6 for a, b in pairs)

    def numbers(self) -> tuple[float, float, float, float]:
        """Slope, offset, lower and upper bound."""
        return self.slope, self.offset, self.lo, self.hi


def _scaled(bound: float, factor: float) -> float:
    return bound * factor if factor else 0.0


def step(node: onnx_ir.Node, inner: Clipped, *, index: int, rank: int | None) -> Clipped | None:
    """A node applied to a function that it reads at `index`, or None where it is no such step.

    rank: that of the function's input, beyond which a constant would add axes.
    """
    if node.domain:
        return None
    match node.op_type:
        case "Add" | "Sub" | "Mul" | "Div" | "Min" | "Max":
            return _with_constant(node, inner, index=index, rank=rank)
        case "Relu":
            return inner.clip(0, math.inf)
        case "HardSigmoid":
            alpha, beta = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
            return inner.times(alpha).plus(beta).clip(0, 1)
        case "Clip":
            lo, hi = (_bound(node, position) for position in (1, 2))
            return None if index or lo is None or hi is None else inner.clip(lo, hi)
    return None


def _with_constant(node: onnx_ir.Node, inner: Clipped, *, index: int, rank: int | None) -> Clipped | None:
    if len(node.inputs) != 2:
        return None
    number = scalar(node.inputs[1 - index], rank=rank)
    if number is None:
        return None
    match node.op_type, index:
        case "Add", _:
            return inner.plus(number)
        case "Sub", 0:
            return inner.plus(-number)
        case "Sub", _:
            return inner.times(-1).plus(number)
        case "Mul", _:
            return inner.times(number)
        case "Div", 0 if number:
            return inner.times(1 / number)
        case "Min", _:
            return inner.clip(-math.inf, number)
        case "Max", _:
            return inner.clip(number, math.inf)
    return None


def _bound(clip: onnx_ir.Node, position: int) -> float | None:
    """A bound of Clip, an attribute below opset 11, infinite where absent; None where it is not a constant."""
    unbounded = (-math.inf, math.inf)[position - 1]
    if len(clip.inputs) > position and clip.inputs[position] is not None:
        return scalar(clip.inputs[position], rank=0)
    return clip.attributes.get_float(("min", "max")[position - 1], unbounded)
