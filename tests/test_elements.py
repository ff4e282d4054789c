"""The table of element types against ml_dtypes and onnx's own schemas."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

from quantool.elements import ELEMENTS, PER_AXIS_OPSET, PER_BLOCK_OPSET, required_opset
from quantool.schema import Grid

TEXT = {
    "float8_e4m3fn": "float8e4m3fn", "float8_e4m3fnuz": "float8e4m3fnuz", "float8_e5m2": "float8e5m2",
    "float8_e5m2fnuz": "float8e5m2fnuz", "float4_e2m1fn": "float4e2m1",
}  # fmt: skip


def first_opset(name: str) -> int:
    """The first opset whose QuantizeLinear gives the type, by onnx's schemas."""
    wanted = f"tensor({TEXT.get(name, name)})"
    for version in range(10, onnx.defs.onnx_opset_version() + 1):
        schema = onnx.defs.get_schema("QuantizeLinear", version)
        if wanted in schema.outputs[0].types:
            return version
    raise AssertionError(name)


@pytest.mark.parametrize("name", ELEMENTS)
def test_a_row_says_what_the_type_is(name: str) -> None:
    element, dtype = ELEMENTS[name], np.dtype(getattr(ml_dtypes, name, name))
    info = ml_dtypes.finfo(dtype) if element.floating else ml_dtypes.iinfo(dtype)
    assert (element.bits, element.opset) == (info.bits, first_opset(name))
    grid = Grid.of(name)
    assert (grid.qmin, grid.qmax) == (float(info.min), float(info.max))
    assert grid.symmetric == element.floating


def test_granularity_raises_the_opset_only_where_the_type_does_not() -> None:
    assert (PER_AXIS_OPSET, PER_BLOCK_OPSET) == (13, 21)
    assert required_opset("int8") == 10
    assert required_opset("int8", per_axis=True) == 13
    assert required_opset("float8_e5m2", per_axis=True) == 19
    assert required_opset("float8_e5m2", per_block=True) == 21
    assert required_opset("float4_e2m1fn", per_block=True) == 23
