"""Units whose types the runtime mistakes for others: it fuses them into integer kernels that do not take them.

ONNX Runtime (1.32, measured) looks at neither blocks nor widths below 8 bits: MatMulIntegerToFloat of weights in
blocks fails when it runs, QLinearConv and QGemm of 2-bit weights when they load. A copy between DequantizeLinear and
the operator keeps it in float.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from quantool.elements import ELEMENTS
from quantool.ops import Role
from quantool.plan.context import Context
from quantool.plan.regions import Unit
from quantool.plan.settings import KERNEL_TYPES, Settings
from quantool.schema import Use


def find_misfits(ctx: Context, units: Mapping[str, Unit]) -> Iterator[Use]:
    """The readings of quantized products that need a copy."""
    for unit in units.values():
        if unit.role is Role.ANCHOR and ctx.is_constant(unit.node.inputs[1]) and _misfits(ctx.at(unit.node), unit):
            yield Use(unit.node.name, unit.inputs[0])


def _misfits(settings: Settings, unit: Unit) -> bool:
    """A convolution has a scale a channel even where blocks are asked for."""
    blocks = settings.block_size > 0 and settings.weights in KERNEL_TYPES and unit.node.op_type in ("MatMul", "Gemm")
    return settings.activations in KERNEL_TYPES and (blocks or ELEMENTS[settings.weights].bits == 2)
