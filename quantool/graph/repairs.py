"""Operators that onnx's version converter changes the meaning of without an error.

Each repair says what goes wrong with onnx 1.23; the tests compare old and new in ONNX Runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quantool.errors import ModelError
from quantool.graph.names import UniqueNames
from quantool.graph.protos import DEFAULT_DOMAINS, graphs
from quantool.graph.wellformed import label

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx
    from numpy.typing import NDArray

# Operators that the converter must not see, by the opset that gave them a new form: repair_after converts them.
# It would keep GroupNormalization as it is, and give Upsample and Scatter (and their outputs) new names.
HELD_OPERATORS: Mapping[str, int] = {"GroupNormalization": 21, "Resize": 11, "Scatter": 11, "Upsample": 11}


class Repair:
    """A model that is being raised from opset `before` to `after`, and what the repairs need to know of it."""

    def __init__(self, model: onnx.ModelProto, before: int, after: int) -> None:
        self.model = model
        self.before = before
        self.after = after
        self.shapes = _shapes(model)
        self._constants = {item.name: item for item in model.graph.initializer if not item.external_data}
        self.names = UniqueNames(name for graph in graphs(model.graph) for node in graph.node for name in node.output)
        self.names.reserve(tensor.name for tensor in model.graph.initializer)
        self.names.reserve(value.name for graph in graphs(model.graph) for value in graph.input)

    def constant(self, name: str) -> NDArray[np.floating] | None:
        """The value of a small constant of floating-point numbers, or None."""
        from onnx import numpy_helper

        tensor = self._constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)


def repair_before(repair: Repair) -> None:
    """Rewrite, in place, what must have another form before conversion."""
    for graph in graphs(repair.model.graph):
        rewritten: list[onnx.NodeProto] = []
        for node in graph.node:
            if node.op_type == "Hardmax" and repair.before < 13 <= repair.after:
                rewritten += _flatten_hardmax(node, repair)
                continue
            if node.op_type == "BatchNormalization" and repair.before < 14 <= repair.after:
                _refuse_training(node, repair)
            rewritten.append(node)
        if len(rewritten) > len(graph.node):
            del graph.node[:]
            graph.node.extend(rewritten)


def repair_after(repair: Repair) -> None:
    """Set right, in place, what conversion left with another meaning."""
    for graph in graphs(repair.model.graph):
        for node in graph.node:
            if node.domain not in DEFAULT_DOMAINS:
                continue
            if node.op_type in ("Resize", "Upsample") and repair.before < 11 <= repair.after:
                _resize(node, repair)
            if node.op_type == "Scatter" and repair.before < 11 <= repair.after:
                node.op_type = "ScatterElements"
            if node.op_type == "GroupNormalization" and repair.before < 21 <= repair.after:
                _scale_by_channel(node, repair)


def _flatten_hardmax(node: onnx.NodeProto, repair: Repair) -> list[onnx.NodeProto]:
    """Below opset 13 Hardmax flattens to two dimensions at `axis`; from 13 on it works along `axis` alone."""
    from onnx import helper

    axis = _integer(node, "axis", 1)
    shape, source, target = repair.shapes.get(node.input[0]), node.input[0], node.output[0]
    if shape is not None and axis in (len(shape) - 1, -1):
        _set(node, "axis", axis)
        return [node]
    flat, whole, dims = (repair.names.claim(f"{target}_{part}") for part in ("flat", "hardmax", "dims"))
    changed = type(node).FromString(node.SerializeToString())
    changed.input[0], changed.output[0] = flat, whole
    _set(changed, "axis", 1)
    return [
        helper.make_node("Shape", [source], [dims]),
        helper.make_node("Flatten", [source], [flat], axis=axis),
        changed,
        helper.make_node("Reshape", [whole, dims], [target]),
    ]


def _refuse_training(node: onnx.NodeProto, repair: Repair) -> None:
    """Below opset 14 a second output turns training mode on, which ONNX Runtime computes differently later."""
    if len(node.output) > 1:
        raise _not_raised(
            f"{label(node)} is in training mode (it has {len(node.output)} outputs), which opset {repair.after} "
            "computes differently",
            node,
            fix="Export the model again for inference.",
        )


def _resize(node: onnx.NodeProto, repair: Repair) -> None:
    """Below opset 11 Resize and Upsample map coordinates by x / scale; from 11 on half_pixel is the default."""
    from onnx import numpy_helper

    if len(node.input) == 1:  # below opset 9 Upsample has an attribute instead
        name = repair.names.claim(f"{node.output[0]}_scales")
        factors = next(np.array(item.floats, dtype=np.float32) for item in node.attribute if item.name == "scales")
        repair.model.graph.initializer.append(numpy_helper.from_array(factors, name))
        node.input.append(name)
    scales = repair.constant(node.input[1])
    mode = next((item.s.decode() for item in node.attribute if item.name == "mode"), "nearest")
    if scales is not None and mode == "nearest" and (scales < 1).any() and (scales > 1).any():
        raise _not_raised(
            f"{label(node)} enlarges one axis and reduces another (scales {scales.tolist()}), which no newer "
            "opset does in one operator",
            node,
            fix="Export the model again with opset 11 or higher.",
        )
    # ONNX Runtime's nearest below opset 11 is floor where it enlarges and ceil where it reduces.
    reduces = scales is not None and bool((scales < 1).any())
    node.op_type = "Resize"
    node.input[:] = [node.input[0], "", node.input[1]]
    del node.attribute[:]
    _set(node, "mode", mode)
    _set(node, "coordinate_transformation_mode", "asymmetric")
    _set(node, "nearest_mode", "ceil" if reduces else "floor")


def _scale_by_channel(node: onnx.NodeProto, repair: Repair) -> None:
    """Below opset 21 GroupNormalization has one scale and bias a group, from 21 on one a channel."""
    from onnx import numpy_helper

    groups = _integer(node, "num_groups", 1)
    shape = repair.shapes.get(node.input[0])
    channels = shape[1] if shape is not None and len(shape) > 1 else None
    if channels == groups:
        return
    for index in (1, 2):
        value = repair.constant(node.input[index])
        if value is None or channels is None or channels % groups:
            raise _not_raised(
                f"{label(node)} needs a scale for each channel from opset 21 on, but its number of channels "
                f"({channels}) or its constant '{node.input[index]}' is not known",
                node,
                fix="Export the model again with opset 21 or higher.",
            )
        name = repair.names.claim(f"{node.input[index]}_by_channel")
        repeated = np.repeat(value, channels // groups)
        repair.model.graph.initializer.append(numpy_helper.from_array(repeated, name))
        node.input[index] = name


def _not_raised(what: str, node: onnx.NodeProto, *, fix: str) -> ModelError:
    return ModelError("opset-not-raised", what, where=label(node), fix=fix)


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int | None, ...]]:
    """Known shapes of the values of all scopes; None for a dimension that is not fixed."""
    found: dict[str, tuple[int | None, ...]] = {}
    for graph in graphs(model.graph):
        for value in (*graph.input, *graph.value_info, *graph.output):
            tensor = value.type.tensor_type
            if tensor.HasField("shape"):
                dims = tensor.shape.dim
                found[value.name] = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)
    return found


def _integer(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((item.i for item in node.attribute if item.name == name), default)


def _set(node: onnx.NodeProto, name: str, value: int | str) -> None:
    from onnx import helper

    kept = [item for item in node.attribute if item.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
