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
from quantool.plan.settings import KERNEL_TYPES
from quantool.schema import Use


def find_misfits(ctx: Context, units: Mapping[str, Unit]) -> Iterator[Use]:
    """The readings of quantized products that need a copy."""
    settings = ctx.settings
    if settings.activations not in KERNEL_TYPES:
        return
    blocks = settings.block_size > 0 and settings.weights in KERNEL_TYPES
    if not blocks and ELEMENTS[settings.weights].bits != 2:
        return
    for unit in units.values():
        # A convolution has a scale a channel even where blocks are asked for.
        fits = blocks and unit.node.op_type not in ("MatMul", "Gemm")
        if unit.role is Role.ANCHOR and ctx.is_constant(unit.node.inputs[1]) and not fits:
            yield Use(unit.node.name, unit.inputs[0])
