"""The targets: what their files say, and that the default one says what the runtime does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from quantool.errors import OptionError
from quantool.ops import OPS, Role
from quantool.rewrite.qoperator import LAYOUTS
from quantool.targets import DEFAULT, load, load_all, names

GOLDEN = Path(__file__).parents[1] / "golden" / "qdq_fusion.json"


def test_names_are_sorted_and_hold_the_default():
    own = [name for name in names() if not name.startswith("directml-")]  # tests/targets/test_directml.py has those
    assert own == ["cpu-arm64", "cpu-x64", "cpu-x64-avx2", "generic"]
    assert list(names()) == sorted(names())
    assert DEFAULT in names()
    assert [target.name for target in load_all()] == list(names())


@pytest.mark.parametrize("name", names())
def test_every_target_states_its_source_and_types(name):
    target = load(name)
    assert target.source
    assert target.description
    assert target.verified_with.startswith("onnx")
    assert target.activations in ("uint8", "int8")
    assert target.weights == "int8"
    assert target.weight_bits in (7, 8)
    for kernel in target.kernels.values():
        assert not kernel.activations or target.activations in kernel.activations
        assert kernel.output in ("required", "optional")
        assert set(kernel.formats) <= {"qdq", "qoperator"}
        assert kernel.source


@pytest.mark.parametrize("name", names())
def test_every_kernel_belongs_to_an_operator_that_planning_knows(name):
    for (domain, op_type), kernel in load(name).kernels.items():
        row = OPS[domain, op_type]
        assert row.role in (Role.ANCHOR, Role.FOLLOWER, Role.MOVER)
        assert bool(kernel.weights) == (row.role is Role.ANCHOR)
        if "qoperator" in kernel.formats:
            assert (op_type in LAYOUTS) == (row.role is not Role.MOVER)


def test_avx2_differs_from_x64_in_the_width_of_weights_only():
    wide, narrow = load("cpu-x64"), load("cpu-x64-avx2")
    assert (wide.weight_bits, narrow.weight_bits) == (8, 7)
    assert {k: replace(v, source="") for k, v in wide.kernels.items()} == {
        k: replace(v, source="") for k, v in narrow.kernels.items()
    }
    assert wide.runs_here
    assert narrow.runs_here


def test_generic_writes_nothing_outside_ai_onnx_in_qoperator_format():
    written = {op for (_, op), k in load("generic").kernels.items() if "qoperator" in k.formats and op in LAYOUTS}
    assert written == {"Conv", "MatMul"}


def test_unknown_target_is_refused_with_near_names():
    with pytest.raises(OptionError, match="there is no target 'cpu-x46'") as raised:
        load("cpu-x46")
    assert (raised.value.code, raised.value.where) == ("unknown-target", "--target")
    assert "cpu-x64" in raised.value.fix


def test_ai_onnx_is_the_default_domain():
    target = load("cpu-x64")
    assert target.kernel("ai.onnx", "Conv") is target.kernel("", "Conv") is not None
    assert target.kernel("com.microsoft", "Conv") is None


CASES = {case["case"]: case["ops"] for case in json.loads(GOLDEN.read_text())}
ONE_INPUT = {
    "AveragePool u8": "AveragePool", "GlobalAveragePool u8": "GlobalAveragePool", "Sigmoid u8": "Sigmoid",
    "LeakyRelu u8": "LeakyRelu", "Softmax u8": "Softmax", "Concat u8 different scales": "Concat", "Where u8": "Where",
    "Add u8,u8 different scales": "Add", "Mul u8,u8 different scales": "Mul",
    "Conv u8/s8 w per-channel axis0 + int32 bias": "Conv", "Gemm u8/s8 per-channel axis1": "Gemm",
    "MatMul x=uint8 w=int8, no Q": "MatMul",
}  # fmt: skip


@pytest.mark.parametrize("case", ONE_INPUT)
def test_kernels_of_x64_are_what_the_optimizer_was_seen_to_write(case):
    kernel = load("cpu-x64").kernels["", ONE_INPUT[case]]
    assert kernel.name in {op.removeprefix("com.microsoft.") for op in CASES[case]}


@pytest.mark.parametrize("case", [c for c in CASES if c.endswith("u8 same scale") and "chain" not in c])
def test_movers_of_x64_are_what_the_optimizer_was_seen_to_unwrap(case):
    op_type = case.split()[0]
    unwrapped = "DequantizeLinear" not in CASES[case]
    nearest = "linear" not in case
    assert (("", op_type) in load("cpu-x64").kernels) == (unwrapped or op_type == "Resize")
    assert unwrapped == (op_type != "Pad" and nearest)


@pytest.mark.parametrize("op_type", ["Sub", "Div", "Tanh", "Relu", "Gelu", "Erf", "Exp", "Sqrt", "Pow", "ReduceMean"])
def test_operators_that_stay_float_have_no_kernel(op_type):
    assert load("cpu-x64").kernel("", op_type) is None
