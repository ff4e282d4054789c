"""Shapes and types by onnx's own inference, which may stop early but never stops a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantool.schema import Note

if TYPE_CHECKING:
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
