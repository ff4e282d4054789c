"""Weight rounding by GPTQ for the layers whose weights' noise exceeds their input's, on the feeds that fit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from quantool.algorithms.gptq import Float64, gptq, output_noise
from quantool.algorithms.patches import Float32, convolution_rows, product_rows
from quantool.graph.outputs import with_outputs
from quantool.pipeline.source import FloatModel
from quantool.runtime import tap
from quantool.schema import AnyArray, Feed, Grid, NodeFact, Parameters, Plan, WeightParams

#: a Gram matrix of a larger layer costs more than it gains at 8 bits
MOST_INPUTS = 2048
#: rows for each input of a layer: fewer fit the samples instead of the layer
ROWS_AN_INPUT = 4


@dataclass(slots=True)
class _Layer:
    """One layer under work: its weight as [O, d], and the Gram matrix of its inputs so far."""

    node: NodeFact
    weight: WeightParams
    tensor: str
    matrix: Float64
    gram: Float64 = field(init=False)
    rows: int = 0

    def __post_init__(self) -> None:
        self.gram = np.zeros((self.matrix.shape[1],) * 2)

    def add(self, rows: Float32) -> None:
        """Fold inputs in. rows: float32[n, d]."""
        with np.errstate(over="ignore", invalid="ignore"):
            self.gram += rows.T @ rows
        self.rows += len(rows)


def rounded(
    source: FloatModel, plan: Plan, parameters: Parameters, feeds: Sequence[Feed], *, everywhere: bool = False
) -> Mapping[str, AnyArray]:
    """Node -> codes of its weight, in the weight's shape, for every layer that GPTQ improves and that needs it.

    A layer needs it where the noise of rounding its weights to nearest, tr(E G E^T), exceeds the noise of rounding
    its inputs, s^2 / 12 for each element of each row of weights; everywhere: every layer needs it.
    """
    layers = [layer for layer in _layers(source, plan, parameters) if layer.matrix.shape[1] <= MOST_INPUTS]
    _gather(source, layers, feeds)
    found: dict[str, AnyArray] = {}
    for layer in layers:
        # Activations of 1e20 have squares beyond float32, which fit nothing.
        usable = layer.rows and np.isfinite(layer.gram).all()
        codes = _better_codes(layer, parameters, everywhere=everywhere) if usable else None
        if codes is not None:
            found[layer.node.name] = _as_stored(layer, codes)
    return found


def with_codes(parameters: Parameters, codes: Mapping[str, AnyArray]) -> Parameters:
    """The same parameters, some weights with other codes on the same scales."""
    weights = dict(parameters.weights)
    for node, stored in codes.items():
        weight = weights[node, 1]
        digest = hashlib.sha256(stored.tobytes()).hexdigest()[:16]
        weights[node, 1] = replace(
            weight, key=f"{weight.key}|{digest}", codes=partial(_same, stored), rounded_to_nearest=False
        )
    return replace(parameters, weights=weights)


def _same(array: AnyArray) -> AnyArray:
    return array


def _layers(source: FloatModel, plan: Plan, parameters: Parameters) -> Iterator[_Layer]:
    """The quantized layers whose inputs can be laid out as rows, with symmetric weights."""
    for spec in plan.weights:
        node = source.facts.by_name[spec.node]
        plain = spec.activation is not None and spec.symmetric and not spec.block_size and spec.bits <= 8
        if not plain or spec.activation is None or not _has_rows(node):
            continue
        exact = source.constant(spec.tensor)
        if exact.ndim >= 2 and (node.op_type == "Conv" or exact.ndim == 2):
            matrix = _as_matrix(node, exact).astype(np.float64)
            yield _Layer(node=node, weight=parameters.weights[spec.node, 1], tensor=spec.activation, matrix=matrix)


def _has_rows(node: NodeFact) -> bool:
    if node.op_type == "Conv":
        grouped = node.attributes.get("group", 1) != 1
        return not grouped and node.attributes.get("auto_pad", "NOTSET") in ("NOTSET", "")
    return node.op_type in ("MatMul", "Gemm")


def _as_matrix(node: NodeFact, weight: AnyArray) -> AnyArray:
    """A weight as [O, d]: outputs first, inputs in the order of the rows."""
    if node.op_type == "Conv":
        return weight.reshape(len(weight), -1)
    return weight if node.attributes.get("transB", 0) else weight.T


def _as_stored(layer: _Layer, codes: AnyArray) -> AnyArray:
    stored = codes if layer.node.op_type == "Conv" or layer.node.attributes.get("transB", 0) else codes.T
    return np.ascontiguousarray(stored.reshape(layer.weight.shape).astype(layer.weight.params.dtype))


def _gather(source: FloatModel, layers: Sequence[_Layer], feeds: Sequence[Feed]) -> None:
    """Fill the Gram matrices in one run of the float model; one sample's inputs are in memory at a time."""
    names = sorted({layer.tensor for layer in layers})
    if not names:
        return
    for _, arrays in tap(source.normalized, feeds, groups=[names], with_outputs=with_outputs):
        for layer in layers:
            x = arrays[layer.tensor]
            if x.size:
                most = -(-ROWS_AN_INPUT * layer.matrix.shape[1] // len(feeds))
                layer.add(_rows(layer.node, x, layer.weight.shape, most=most))


def _rows(node: NodeFact, x: AnyArray, shape: tuple[int, ...], *, most: int) -> Float32:
    if node.op_type != "Conv":
        return product_rows(x, most=most)
    kernel = shape[2:]
    return convolution_rows(
        x,
        kernel,
        strides=_ints(node, "strides", (1,) * len(kernel)),
        pads=_ints(node, "pads", (0,) * 2 * len(kernel)),
        dilations=_ints(node, "dilations", (1,) * len(kernel)),
        most=most,
    )


def _ints(node: NodeFact, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    found = node.attributes.get(name, default)
    assert isinstance(found, tuple)
    return tuple(int(part) for part in found)


def _better_codes(layer: _Layer, parameters: Parameters, *, everywhere: bool) -> NDArray[np.int32] | None:
    """GPTQ's codes where the layer needs them and they are better, else None."""
    params, spec = layer.weight.params, layer.weight.spec
    gram = layer.gram / layer.rows
    scale = params.scale.astype(np.float64).reshape(-1, 1)
    nearest = _as_matrix(layer.node, layer.weight.codes()).astype(np.float64)
    noise = output_noise(layer.matrix - nearest * scale, gram)
    step = float(parameters.activations[layer.tensor].scale)
    if not everywhere and noise <= step**2 / 12 * float(np.square(layer.matrix).sum()):
        return None
    codes = gptq(layer.matrix, gram, params.scale, grid=Grid.of(spec.dtype, symmetric=True, bits=spec.bits))
    if codes is None or output_noise(layer.matrix - codes * scale, gram) >= noise:
        return None
    return codes
