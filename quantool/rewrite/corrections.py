"""Bias correction of a MatMul: its bias is the constant of the Add behind it."""

from __future__ import annotations

import numpy as np

from quantool.rewrite.builder import Builder
from quantool.schema import NodeFact


def write_corrections(build: Builder) -> None:
    """Take each MatMul's mean error out of the row that the Add behind it adds; without such an Add it stays.

    Conv and Gemm carry their correction in their own int32 bias.
    """
    for name, error in build.parameters.corrections.items():
        node = build.facts.by_name[name]
        found = _added_row(build, node) if node.op_type == "MatMul" else None
        if found is None:
            continue
        addition, index = found
        row = build.facts.values[addition.inputs[index]]
        corrected = (row.astype(np.float64) - error).astype(np.float32).reshape(row.shape)
        build.read(
            addition,
            index,
            build.constants.array(f"{name}|corrected", f"{addition.inputs[index]}_corrected", corrected),
        )


def _added_row(build: Builder, node: NodeFact) -> tuple[NodeFact, int] | None:
    """The float Add that alone reads a MatMul, and the index of its constant row, or None."""
    fact = build.facts.tensors[node.outputs[0]]
    if fact.is_output or len(fact.readers) != 1:
        return None
    addition = build.facts.by_name[fact.readers[0].node]
    index = 1 - fact.readers[0].index
    if addition.op_type != "Add" or addition.domain or build.plan.decisions[addition.name].quantized:
        return None
    row = build.facts.values.get(addition.inputs[index])
    columns = build.facts.tensors[node.inputs[1]].shape
    if row is None or not row.ndim or columns is None or row.shape[-1] != columns[-1] or row.size != columns[-1]:
        return None
    return addition, index
