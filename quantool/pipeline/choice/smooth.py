"""Smoothing of the inputs of matrix products: the same float function with easier activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from calibrators import Histogram
from calibrators.statistic import Statistic
from quantool.algorithms.smoothing import Float64, smoothing_factors
from quantool.edits import AddInitializer, AddNode, Edit, SetInput
from quantool.graph.allocator import NameAllocator
from quantool.graph.edit import apply
from quantool.graph.outputs import with_outputs
from quantool.pipeline.source import SAME_FLOAT, FloatModel, finished, run_all
from quantool.runtime import tap
from quantool.schema import AnyArray, Feed, NodeFact, Plan
from quantool.verify import same


def smoothed(
    source: FloatModel,
    plan: Plan,
    feeds: Sequence[Feed],
    *,
    alpha: float,
    at: Callable[[str], bool] = lambda _: True,
) -> tuple[FloatModel, Mapping[str, Statistic]] | None:
    """The model with smoothed inputs, and the statistics of the tensors that are new; None where nothing applies.

    One Mul stands before each input that only quantized matrix products with constant weights read. The result is
    compared with the float model on the first feed: None where they differ. at: the nodes that may be changed.
    """
    groups = {
        tensor: readers
        for tensor, readers in smoothable(source, plan).items()
        if all(at(reader.name) for reader in readers)
    }
    if not groups or not feeds:
        return None
    peaks = _peaks(source, sorted(groups), feeds)
    model = replace(source.model, ir=source.model.ir.clone())
    fresh = NameAllocator(model).fresh
    edits: list[Edit] = []
    names = []
    for tensor, readers in groups.items():
        weights = [_row_peaks(source, node) for node in readers]
        factors = smoothing_factors(peaks[tensor], np.max(weights, axis=0), alpha=alpha)
        names.append(fresh(f"{tensor}_smoothed"))
        edits += _edits(source, (tensor, names[-1]), readers, factors, fresh=fresh)
    apply(model, edits)
    result = finished(source.loaded, model, source.given, changed=source.changed, threads=source.given.threads)
    before, after = (run_all(one.normalized, feeds[:1])[0] for one in (source, result))
    if not same(before, after, rtol=SAME_FLOAT):
        return None
    return result, _statistics(result, names, feeds)


def smoothable(source: FloatModel, plan: Plan) -> Mapping[str, tuple[NodeFact, ...]]:
    """Tensors that can be smoothed -> the matrix products that read them quantized.

    Every quantized reader must be such a product; float readers go on reading the tensor as it was.
    """
    shared = [spec.group for spec in plan.activations.values()]
    found: dict[str, tuple[NodeFact, ...]] = {}
    for name, spec in plan.activations.items():
        if spec.replaces or spec.fixed is not None or shared.count(spec.group) > 1:
            continue
        uses = [use for use in source.facts.readers(name) if use.index in plan.decisions[use.node].inputs]
        readers = tuple(source.facts.by_name[use.node] for use in uses)
        if readers and all(_is_product(source, node, name) for node in readers):
            found[name] = readers
    return found


def _is_product(source: FloatModel, node: NodeFact, tensor: str) -> bool:
    weight = source.facts.tensors[node.inputs[1]] if len(node.inputs) > 1 else None
    shape = source.facts.tensors[tensor].shape
    if node.op_type not in ("MatMul", "Gemm") or node.domain or node.inputs[0] != tensor or weight is None:
        return False
    return bool(weight.is_constant and weight.shape and len(weight.shape) == 2 and shape and len(shape) >= 2)


def _input_axis(node: NodeFact) -> int:
    return 1 if node.op_type == "Gemm" and node.attributes.get("transB", 0) else 0


def _row_peaks(source: FloatModel, node: NodeFact) -> Float64:
    """max|W_j| of each input channel of a product."""
    weight = source.constant(node.inputs[1])
    peaks: Float64 = np.abs(weight).max(axis=1 - _input_axis(node)).astype(np.float64)
    return peaks


def _peaks(source: FloatModel, tensors: Sequence[str], feeds: Sequence[Feed]) -> Mapping[str, Float64]:
    """max|X_j| of each channel of each tensor over the feeds."""
    peaks: dict[str, Float64] = {}
    for _, arrays in tap(source.normalized, feeds, groups=[list(tensors)], with_outputs=with_outputs):
        for tensor, array in arrays.items():
            rows = np.abs(array.reshape(-1, array.shape[-1]))
            found = rows.max(axis=0, initial=0.0).astype(np.float64)
            peaks[tensor] = np.maximum(peaks[tensor], found) if tensor in peaks else found
    return peaks


def _edits(
    source: FloatModel,
    tensors: tuple[str, str],
    readers: Sequence[NodeFact],
    factors: Float64,
    *,
    fresh: Callable[[str], str],
) -> list[Edit]:
    """One Mul by 1/s, and the readers' weights times s. tensors: the old and the new one."""
    tensor, name = tensors
    inverse = (1.0 / factors).astype(np.float32)
    constant = fresh(f"{tensor}_smoothing")
    edits: list[Edit] = [
        AddInitializer(name=constant, dtype="float32", shape=inverse.shape, load=lambda: inverse),
        AddNode(op_type="Mul", name=fresh(f"{name}_Mul"), inputs=(tensor, constant), outputs=(name,)),
    ]
    for node in readers:
        load = partial(_scaled, source.constant, node, factors)
        weight, shape = fresh(f"{node.inputs[1]}_smoothed"), source.constant(node.inputs[1]).shape
        edits += [
            AddInitializer(name=weight, dtype="float32", shape=shape, load=load),
            SetInput(node.name, 0, name),
            SetInput(node.name, 1, weight),
        ]
    return edits


def _scaled(constant: Callable[[str], AnyArray], node: NodeFact, factors: Float64) -> AnyArray:
    wide = constant(node.inputs[1]).astype(np.float64)
    return (wide * (factors[None, :] if _input_axis(node) else factors[:, None])).astype(np.float32)


def _statistics(source: FloatModel, tensors: Sequence[str], feeds: Sequence[Feed]) -> Mapping[str, Statistic]:
    states = {name: Histogram() for name in tensors}
    for _, arrays in tap(source.normalized, feeds, groups=[list(tensors)], with_outputs=with_outputs):
        states = {name: state.observe(arrays[name]) for name, state in states.items()}
    return states
