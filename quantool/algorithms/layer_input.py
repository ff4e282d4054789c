"""What a layer with constant weights multiplies: which tensor, and how it becomes rows (im2col for a convolution)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantool.algorithms.patches import Float32, convolution_rows, patch_means, product_rows
from quantool.schema import AnyArray, GraphFacts, NodeFact

Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInput:
    """The input of a layer as rows.

    Attributes:
        tensor: what the layer reads.
        size: d, inputs of one output (of one group).
        groups: groups of a convolution, else 1.
        kernel: sizes of a convolution's kernel; None for a matrix product.
        strides, dilations: one for each axis of the kernel.
        pads: begins, then ends; "SAME_UPPER" or "SAME_LOWER" where they follow the sample's size.
    """

    tensor: str
    size: int
    groups: int = 1
    kernel: tuple[int, ...] | None = None
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] | str = ()

    @property
    def key(self) -> str:
        """A text that two layers share if and only if they multiply the same rows."""
        if self.kernel is None:
            return self.tensor
        parts = (self.kernel, self.strides, self.dilations, self.pads, self.groups)
        return " ".join((self.tensor, *(str(part).replace(" ", "") for part in parts)))

    @property
    def axis(self) -> int:
        """Where the tensor has its channels: 1, or -1 for the last."""
        return -1 if self.kernel is None else 1

    def rows(self, sample: AnyArray, *, most: int) -> Float32:
        """Rows at even distances: float32[n, groups, d], n <= most, in the order of the weight's axes.

        sample: float[*S] of one feed, not empty.
        """
        if self.kernel is None:
            return product_rows(sample, most=most)[:, None, :]
        pads = self.pads if isinstance(self.pads, tuple) else self._same_pads(sample.shape[2:])
        found = convolution_rows(
            sample, self.kernel, strides=self.strides, pads=pads, dilations=self.dilations, most=most
        )
        return found.reshape(len(found), self.groups, self.size)

    def means(self, sample: AnyArray) -> Float64:
        """The mean of all rows, float64[groups, d]. sample: float[*S] of one feed, not empty."""
        if self.kernel is None:
            found: Float64 = sample.reshape(1, -1, self.size).mean(axis=1, dtype=np.float64)
            return found
        pads = self.pads if isinstance(self.pads, tuple) else self._same_pads(sample.shape[2:])
        means = patch_means(sample, self.kernel, strides=self.strides, pads=pads, dilations=self.dilations)
        return means.reshape(self.groups, self.size)

    def spread(self, factors: Float64) -> Float64:
        """A number for each channel of the tensor as one for each entry of the rows, float64[groups, d].

        factors: float64[C].
        """
        taps = 1 if self.kernel is None else math.prod(self.kernel)
        return np.repeat(factors.reshape(self.groups, -1), taps, axis=1)

    def _same_pads(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The pads of auto_pad (ONNX Conv-11): outputs of ceil(size / stride), the odd one at the end or the start."""
        assert self.kernel is not None
        begins, ends = [], []
        for size, k, stride, dilation in zip(sizes, self.kernel, self.strides, self.dilations, strict=True):
            total = max((-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size, 0)
            small, large = total // 2, total - total // 2
            begins.append(small if self.pads == "SAME_UPPER" else large)
            ends.append(large if self.pads == "SAME_UPPER" else small)
        return (*begins, *ends)


def layer_input(facts: GraphFacts, node: NodeFact) -> LayerInput | None:
    """The rows of a Conv, MatMul or Gemm with constant weights in the main graph; None for any other node."""
    if node.scope or node.domain or node.op_type not in ("Conv", "MatMul", "Gemm") or len(node.inputs) < 2:
        return None
    weight, tensor = facts.tensors[node.inputs[1]], node.inputs[0]
    if not weight.is_constant or not weight.shape or facts.tensors[tensor].is_constant:
        return None
    shape = tuple(d for d in weight.shape if isinstance(d, int))
    if len(shape) != len(weight.shape) or 0 in shape:
        return None
    if node.op_type == "Conv":
        return _convolution(node, tensor, shape) if len(shape) >= 3 else None
    if len(shape) != 2 or node.attributes.get("transA", 0):
        return None
    return LayerInput(tensor=tensor, size=shape[1 if node.attributes.get("transB", 0) else 0])


def _convolution(node: NodeFact, tensor: str, shape: tuple[int, ...]) -> LayerInput:
    kernel, found = shape[2:], node.attributes
    ones = (1,) * len(kernel)
    auto = str(found.get("auto_pad", "NOTSET"))
    pads: tuple[int, ...] | str = _ints(found, "pads", (0,) * 2 * len(kernel))
    if auto == "VALID":
        pads = (0,) * 2 * len(kernel)
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = auto
    groups = found.get("group", 1)
    return LayerInput(
        tensor=tensor,
        size=math.prod(shape[1:]),
        groups=groups if isinstance(groups, int) else 1,
        kernel=kernel,
        strides=_ints(found, "strides", ones),
        dilations=_ints(found, "dilations", ones),
        pads=pads,
    )


def _ints(attributes: Mapping[str, object], name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    found = attributes.get(name, default)
    return tuple(int(part) for part in found) if isinstance(found, tuple) else default
