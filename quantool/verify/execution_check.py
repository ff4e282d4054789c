"""The run's own check: nodes run the way the plan says, kept ones included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from quantool.errors import VerificationError
from quantool.ops import Role, op_of
from quantool.schema import NodeFact, Note, Plan
from quantool.verify.execution import MOVERS, Execution

CODE: Final = "runs-as-differs"

# Kept nodes of these roles do not compute: they may run on whatever type their neighbours have.
_INDIFFERENT: Final = frozenset({Role.MOVER, Role.ISLAND, Role.RECTIFIER})
_NAMED: Final = 5


def check_execution(
    plan: Plan, execution: Execution, *, nodes: Mapping[str, NodeFact], strict: bool
) -> tuple[Note, ...]:
    """Compare what runs with what was decided.

    nodes: name -> node of the planned graph. strict: differences end the run; else (the user asked for a type or
    target that this runtime may not fuse) they are warnings.

    A kept node that another one swallowed (a bias into its MatMul) is no difference.

    Raises:
        VerificationError: ``runs-as-differs`` where strict.
    """
    found = {node: execution.runs_as.integer.get(node) for node in plan.decisions}
    kept = [node for node, decision in plan.decisions.items() if not decision.quantized]
    quantized_anyway = [
        node
        for node in kept
        if (found[node] and node in execution.named and not _is_indifferent(nodes[node]))
        or (node in execution.requantized and op_of(nodes[node]).role is Role.ANCHOR)
    ]
    stayed_float = [
        node
        for node, decision in plan.decisions.items()
        if decision.quantized and decision.expected == "integer" and found[node] is False
    ]
    differences = (_quantized_anyway(quantized_anyway), _stayed_float(stayed_float))
    problems = tuple(note for note in differences if note is not None)
    if strict and problems:
        error = VerificationError(
            CODE,
            " ".join(note.what for note in problems),
            where="; ".join(note.where for note in problems),
            fix=" ".join(note.fix for note in problems),
        )
        error.nodes = _whole_units(plan, stayed_float)
        raise error
    return problems


def _whole_units(plan: Plan, names: Sequence[str]) -> tuple[str, ...]:
    """Nodes with everything that belongs to their units: a Conv without its Relu would be another unit."""
    hosts = {plan.decisions[name].into or name for name in names}
    return tuple(name for name, decision in plan.decisions.items() if name in hosts or decision.into in hosts)


def _is_indifferent(node: NodeFact) -> bool:
    return op_of(node).role in _INDIFFERENT or node.op_type in MOVERS


def _quantized_anyway(names: Sequence[str]) -> Note | None:
    if not names:
        return None
    return Note(
        code=CODE,
        what=f"ONNX Runtime quantizes by itself what the plan keeps in float: {_listed(names)}.",
        where=names[0],
        fix="Exclude the nodes before or after them too, so that no Q and DQ stand on both sides.",
    )


def _stayed_float(names: Sequence[str]) -> Note | None:
    if not names:
        return None
    return Note(
        code=CODE,
        what=f"ONNX Runtime runs in float what the plan quantizes: {_listed(names)}.",
        where=names[0],
        fix="Exclude these nodes (--exclude), or choose types that the target runs as integers.",
    )


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    shown = ", ".join(names[:_NAMED])
    return f"{shown} and {rest} more" if rest > 0 else shown
