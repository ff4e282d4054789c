"""The run's own check: what must fail a run, what is a warning, and what is neither."""

from __future__ import annotations

import numpy as np
import pytest

from quantool.errors import VerificationError
from quantool.measured import RunsAs
from quantool.schema import Decision, Format, Mode, Plan
from quantool.verify.execution import Execution, execution
from quantool.verify.execution_check import check_execution
from tests.verify.qdq_models import QdqModel, node_fact


def plan(**decisions: Decision) -> Plan:
    return Plan(
        mode=Mode.STATIC, format=Format.QDQ, target="cpu-x64", opset=17,
        decisions=decisions, activations={}, weights=(),
    )  # fmt: skip


def kept(node: str) -> Decision:
    return Decision(node=node, quantized=False)


def integer(node: str) -> Decision:
    return Decision(node=node, quantized=True, expected="integer")


def ran(requantized: tuple[str, ...] = (), named: tuple[str, ...] | None = None, **nodes: bool) -> Execution:
    return Execution(
        runs_as=RunsAs(integer=nodes, fused={}, left={}),
        named=frozenset(nodes if named is None else named),
        requantized=frozenset(requantized),
    )


def nodes(**op_types: str) -> dict:
    return {name: node_fact(name, op_type, ["x"], ["y"]) for name, op_type in op_types.items()}


def test_what_runs_as_planned_passes() -> None:
    notes = check_execution(
        plan(a=integer("a"), b=kept("b"), gone=integer("gone")),
        ran(a=True, b=False),
        nodes=nodes(a="Conv", b="Conv", gone="Transpose"),
        strict=True,
    )
    assert notes == ()


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sigmoid", "Concat"])
def test_a_kept_node_that_runs_as_integer_fails_the_run(op_type: str) -> None:
    with pytest.raises(VerificationError, match=r"quantizes by itself what the plan keeps in float: a\.") as caught:
        check_execution(plan(a=kept("a")), ran(a=True), nodes=nodes(a=op_type), strict=True)
    assert caught.value.code == "runs-as-differs"
    assert caught.value.where == "a"
    assert "--exclude" in caught.value.fix or "Exclude" in caught.value.fix


@pytest.mark.parametrize("op_type", ["MaxPool", "Reshape", "Pad", "Relu"])
def test_a_kept_node_that_moves_integers_is_none(op_type: str) -> None:
    assert check_execution(plan(a=kept("a")), ran(a=True), nodes=nodes(a=op_type), strict=True) == ()


def test_a_kept_bias_that_its_matmul_swallowed_is_none() -> None:
    assert check_execution(plan(a=kept("a")), ran(named=(), a=True), nodes=nodes(a="Add"), strict=True) == ()


def test_a_kept_node_on_a_requantized_weight_fails_the_run() -> None:
    execution = ran(requantized=("a",), a=False)
    with pytest.raises(VerificationError, match="keeps in float: a"):
        check_execution(plan(a=kept("a")), execution, nodes=nodes(a="ConvTranspose"), strict=True)
    assert check_execution(plan(a=kept("a")), execution, nodes=nodes(a="Gather"), strict=True) == ()


def test_a_choice_that_stays_float_fails_the_run_unless_float_was_expected() -> None:
    with pytest.raises(VerificationError, match="runs in float what the plan quantizes: a"):
        check_execution(plan(a=integer("a")), ran(a=False), nodes=nodes(a="Conv"), strict=True)
    expected = Decision(node="a", quantized=True, expected="float")
    assert check_execution(plan(a=expected), ran(a=False), nodes=nodes(a="Conv"), strict=True) == ()


def test_what_the_user_asked_for_is_a_warning() -> None:
    names = [f"n{i}" for i in range(7)]
    decisions = {name: integer(name) for name in names}
    notes = check_execution(
        plan(**decisions), ran(**dict.fromkeys(names, False)), nodes=nodes(**dict.fromkeys(names, "Conv")), strict=False
    )
    assert [note.code for note in notes] == ["runs-as-differs"]
    assert notes[0].what.endswith("n0, n1, n2, n3, n4 and 2 more.")
    assert notes[0].where == "n0"


def test_trap_1_is_caught_on_the_graph_that_runs() -> None:
    model = QdqModel()
    weight = model.weight("w", 4, 4, 3, 3)
    model.node("Conv", [model.pair("x"), weight], "a", "quantized")
    model.node("Conv", [model.pair("a"), model.floats("v", 4, 4, 3, 3)], "b", "excluded")
    model.node("Conv", [model.pair("b"), weight], "c", "quantized2")
    model.node("Mul", [model.pair("c"), model.constant("two", np.float32(2))], "y", "last")
    planned = plan(
        quantized=integer("quantized"), excluded=kept("excluded"), quantized2=integer("quantized2"), last=kept("last")
    )
    facts = {node.name: node for node in model.facts()}
    executed = execution(model.optimized({"x": [1, 4, 16, 16]}, ["y"]), model.wanted())
    with pytest.raises(VerificationError, match=r"keeps in float: excluded\."):
        check_execution(planned, executed, nodes=facts, strict=True)
