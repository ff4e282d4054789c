"""Shapes and types by onnx's own inference, which may stop early but never stops a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantool.graph.structure import copy_without_weights
from quantool.schema import Note

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx


def infer(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[Note]]:
    """The model with what inference found, or the model itself and a warning where inference failed."""
    from onnx import shape_inference

    reason = ""
    for data_prop in (True, False):  # propagating values finds more shapes, and fails on some models
        try:
            return shape_inference.infer_shapes(model, data_prop=data_prop), []
        except (shape_inference.InferenceError, RuntimeError, ValueError) as err:
            reason = str(err).strip().splitlines()[0] if str(err).strip() else type(err).__name__
    note = Note(
        code="shape-inference-failed",
        what=f"onnx could not infer shapes: {reason}",
        where="the model",
        fix="Nothing is wrong with the result; types come from ONNX Runtime instead.",
    )
    return model, [note]


def shapes_for(model_bytes: bytes, inputs: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
    """The shapes of the main graph's tensors where its inputs have these; those that stay unknown are left out."""
    import onnx

    model, _ = copy_without_weights(onnx.ModelProto.FromString(model_bytes))
    del model.graph.value_info[:]
    for value in model.graph.input:
        for dim, length in zip(value.type.tensor_type.shape.dim, inputs.get(value.name, ()), strict=False):
            dim.dim_value = length
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")  # as declared it may hold symbols, or be wrong
    model, _ = infer(model)
    typed = [value for value in (*model.graph.value_info, *model.graph.output) if value.type.HasField("tensor_type")]
    shapes = {value.name: value.type.tensor_type.shape for value in typed if value.type.tensor_type.HasField("shape")}
    known = {name: shape.dim for name, shape in shapes.items() if all(dim.HasField("dim_value") for dim in shape.dim)}
    return {name: tuple(dim.dim_value for dim in dims) for name, dims in known.items()}
