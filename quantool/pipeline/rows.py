"""The rows of a report: one for each node as given, one for each quantized tensor, and the coverage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np

from quantool.plan.rangeless import WEIGHT_ONLY_KERNEL
from quantool.plan.reasons import reason
from quantool.report.model import Coverage, NodeRow, TensorRow
from quantool.schema import Decision, GivenNode, GraphFacts, Parameters, Plan, QuantParams

#: tables of scales longer than this stay out of a report; the model holds them
_LISTED = 4096
NO_ERRORS: Mapping[str, float] = MappingProxyType({})


def node_rows(facts: GraphFacts, plan: Plan, integer: Mapping[str, bool] | None) -> tuple[NodeRow, ...]:
    """One row for each node of the model as given. integer: how the runtime runs each node, None if unknown."""
    standing: dict[str, list[str]] = {}
    for node in facts.nodes:
        for origin in node.origins:
            standing.setdefault(origin, []).append(node.name)
    return tuple(_row(given, standing, facts, plan, integer) for given in facts.given)


def _row(
    given: GivenNode,
    standing: Mapping[str, list[str]],
    facts: GraphFacts,
    plan: Plan,
    integer: Mapping[str, bool] | None,
) -> NodeRow:
    names = standing.get(given.name, [])
    into = facts.absorbed.get(given.name) if not names else None
    if into:
        names = [into] if into in plan.decisions else standing.get(into, [])
    if not names:
        return NodeRow(
            name=given.name,
            op_type=given.op_type,
            scope=given.scope,
            decision="kept",
            into=None,
            reason=reason("folded"),
        )
    decision = _most_telling([plan.decisions[n] for n in names])
    host = decision.into or (decision.node if decision.node != given.name else "")
    runs = None if integer is None else _runs_as(decision, integer)
    return NodeRow(
        name=given.name,
        op_type=given.op_type,
        scope=given.scope,
        decision="quantized" if decision.quantized else "kept",
        into=host or None,
        runs_as=runs,
        reason=decision.reason,
    )


def _most_telling(decisions: list[Decision]) -> Decision:
    """Of the nodes that stand for one given node (a function's body), the quantized one says most."""
    return next((d for d in decisions if d.quantized), decisions[0])


def _runs_as(decision: Decision, integer: Mapping[str, bool]) -> str:
    found = integer.get(decision.node, integer.get(decision.into))
    return "integer" if found else "float"


def tensor_rows(parameters: Parameters, errors: Mapping[str, float] = NO_ERRORS) -> tuple[TensorRow, ...]:
    """One row for each quantized activation and weight. errors: SQNR of weights by key, where it is known."""
    return (*_activation_rows(parameters), *_weight_rows(parameters, errors))


def _activation_rows(parameters: Parameters) -> Iterator[TensorRow]:
    for name, params in parameters.activations.items():
        chosen = params.chosen
        yield TensorRow(
            name=name,
            dtype=params.dtype,
            scale=float(params.scale),
            zero_point=int(params.zero_point),
            range=None if chosen is None else (chosen.lo, chosen.hi),
            observed_min=None if chosen is None else chosen.observed_min,
            observed_max=None if chosen is None else chosen.observed_max,
            clipped_share=None if chosen is None else chosen.clipped_share,
        )


def _weight_rows(parameters: Parameters, errors: Mapping[str, float]) -> Iterator[TensorRow]:
    seen = set()
    for weight in parameters.weights.values():
        if weight.key in seen:
            continue
        seen.add(weight.key)
        scale, zero_point = _listed(weight.params)
        yield TensorRow(
            name=weight.spec.tensor,
            dtype=weight.params.dtype,
            scale=scale,
            zero_point=zero_point,
            sqnr_db=errors.get(weight.key),
        )


def _listed(
    params: QuantParams,
) -> tuple[float | tuple[float, ...] | None, int | tuple[int, ...] | None]:
    if params.scale.ndim == 0:
        return float(params.scale), int(params.zero_point)
    if params.scale.size > _LISTED:
        return None, None
    codes = np.broadcast_to(params.zero_point, params.scale.shape)
    return tuple(params.scale.ravel().tolist()), tuple(codes.ravel().tolist())


def coverage(facts: GraphFacts, plan: Plan, macs: Mapping[str, int]) -> Coverage:
    """Fractions of nodes, multiplications and weight bytes that became integers."""
    decisions = plan.decisions
    done = [n for n in facts.nodes if decisions[n.name].quantized]
    all_macs = sum(macs.values())
    quantized = {(spec.tensor) for spec in plan.weights}
    sizes = {name: _elements(facts, name) for name, t in facts.tensors.items() if t.is_constant and t.is_float}
    total = sum(sizes.values())
    return Coverage(
        nodes=len(done) / len(facts.nodes) if facts.nodes else None,
        macs=sum(macs.get(n.name, 0) for n in done) / all_macs if all_macs else None,
        weight_bytes=sum(size for name, size in sizes.items() if name in quantized) / total if total else None,
    )


def float_convolutions(facts: GraphFacts, plan: Plan) -> int:
    """How many convolutions compute in float with weights that are stored as integers."""
    decisions = [plan.decisions[n.name] for n in facts.nodes if n.op_type in ("Conv", "ConvTranspose")]
    return sum(decision.quantized and decision.kernel == WEIGHT_ONLY_KERNEL for decision in decisions)


def _elements(facts: GraphFacts, tensor: str) -> int:
    shape = facts.tensors[tensor].shape or ()
    return int(np.prod([d for d in shape if isinstance(d, int)], dtype=np.int64))
