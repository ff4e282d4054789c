"""What a model wants to be fed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantool.graph.facts import value_type
from quantool.graph.load import Loaded

if TYPE_CHECKING:
    from quantool.graph.facts import Shape
    from quantool.graph.model import Model


def input_specs(model: Model | Loaded) -> list[tuple[str, str, Shape | None]]:
    """Name, dtype and shape of each input that must be fed: initializers listed as inputs are left out.

    dtype is "" for an input that is no tensor; a dimension is a number, a symbol or None.
    """
    import onnx_ir

    if isinstance(model, Loaded):
        graph = model.proto.graph
        constants = {tensor.name for tensor in graph.initializer}
        given = [onnx_ir.from_proto(value) for value in graph.input if value.name not in constants]
        return [(value.name or "", *value_type(value)) for value in given]
    return [(value.name or "", *value_type(value)) for value in model.ir.graph.inputs]
