"""What a DirectML feature level lets QuantizeLinear do: ranks, types, and a scale and zero point for each element.

DML_ELEMENT_WISE_QUANTIZE_LINEAR reads a scale and a zero point tensor of the input's own sizes, so the one scale of an
activation is expanded: memory that the report tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from quantool.elements import ELEMENTS
from quantool.kernels.directml import FEATURE_LEVELS, FeatureLevel
from quantool.kernels.dtypes import FLOAT32
from quantool.plan.reasons import reason
from quantool.schema import ActivationSpec, GraphFacts, Note, Reason

_SCALE: Final = FLOAT32


def level_refusal(facts: GraphFacts, tensors: Mapping[str, str], *, level: str) -> Reason | None:
    """Why the level takes no QuantizeLinear of one of the tensors to its type, and from which one it does; or None."""
    for tensor, codes in tensors.items():
        broken = _broken_rules(facts, tensor, FEATURE_LEVELS[level], codes)
        if broken:
            rules = "; ".join((*broken, _first_that_passes(facts, tensor, codes)))
            return reason("feature-level", f"'{tensor}': {rules}.")
    return None


def _broken_rules(facts: GraphFacts, tensor: str, level: FeatureLevel, codes: str) -> list[str]:
    fact = facts.tensors[tensor]
    ranks = str(level.min_rank) if level.min_rank == level.max_rank else f"{level.min_rank} to {level.max_rank}"
    broken = []
    if fact.shape is None:
        broken.append(f"its rank is unknown, {ranks} allowed")
    elif not level.min_rank <= len(fact.shape) <= level.max_rank:
        broken.append(f"rank {len(fact.shape)}, {ranks} allowed")
    outputs = [str(dtype) for dtype in level.outputs]
    checks = (
        ("input", fact.dtype, [str(dtype) for dtype in level.inputs]),
        ("scale", str(_SCALE), [str(dtype) for dtype in level.scales]),
        ("zero point", codes, outputs),
        ("output", codes, outputs),
    )
    wrong = (check for check in checks if check[1] not in check[2])
    return broken + [f"{what} {given}, {' or '.join(sorted(allowed))} allowed" for what, given, allowed in wrong]


def _first_that_passes(facts: GraphFacts, tensor: str, codes: str) -> str:
    passing = (name for name, level in FEATURE_LEVELS.items() if not _broken_rules(facts, tensor, level, codes))
    first = next(passing, None)
    return "no level passes" if first is None else f"passes from level {first} on"


def expansion_note(facts: GraphFacts, activations: Mapping[str, ActivationSpec], level: str) -> Note | None:
    """What the scales and zero points for each element take; None where nothing is quantized."""
    sizes = {name: _bytes(facts, spec) for name, spec in activations.items()}
    if not sizes:
        return None
    largest = max(sizes, key=sizes.__getitem__)
    return Note(
        code="element-wise-expansion",
        what=f"feature level {level} reads a scale and a zero point for every element: {sum(sizes.values()):,} bytes "
        f"more for {len(sizes)} QuantizeLinear, {sizes[largest]:,} of them for the largest; symbolic sizes count as 1",
        where=largest,
        fix="Nothing to do; keep large tensors in float with --exclude where memory is short.",
    )


def _bytes(facts: GraphFacts, spec: ActivationSpec) -> int:
    """A scale and a zero point for each element; a symbolic size counts as 1."""
    shape = facts.tensors[spec.name].shape or ()
    elements = int(np.prod([extent for extent in shape if isinstance(extent, int)], dtype=np.int64))
    return elements * (_SCALE.itemsize + ELEMENTS[spec.dtype].bits // 8)
