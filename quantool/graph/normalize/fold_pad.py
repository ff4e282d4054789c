"""Fold a Pad with zeros into the pads of the Conv that follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantool.graph.normalize.constants import integers, tensor_of
from quantool.graph.normalize.ledger import absorb, only_reader
from quantool.graph.scopes import graphs

if TYPE_CHECKING:
    import onnx_ir

    from quantool.graph.model import Model


def fold_pads(model: Model) -> int:
    """Add the spatial pads of a Pad to those of the Conv that alone reads it; a Conv pads with zeros too."""
    changes = 0
    for graph in graphs(model.ir.graph):
        for node in tuple(graph):
            if node.op_type == "Pad" and not node.domain and _fold(model, node):
                changes += 1
    return changes


def _fold(model: Model, pad: onnx_ir.Node) -> bool:
    conv, source = only_reader(pad.outputs[0]), pad.inputs[0]
    if conv is None or source is None or conv.op_type != "Conv" or conv.domain:
        return False
    if conv.inputs[0] is not pad.outputs[0] or not _pads_with_zeros(pad):
        return False
    rank = _rank(conv)
    added, own = _spatial_pads(pad, rank), _own_pads(conv, rank)
    if added is None or own is None:
        return False
    import onnx_ir

    conv.attributes["pads"] = onnx_ir.AttrInt64s("pads", [a + b for a, b in zip(added, own, strict=True)])
    conv.attributes.pop("auto_pad", None)
    conv.replace_input_with(0, source)
    absorb(model, pad, into=conv)
    return True


def _pads_with_zeros(pad: onnx_ir.Node) -> bool:
    if pad.attributes.get_string("mode", "constant") != "constant":
        return False
    if len(pad.inputs) > 2 and pad.inputs[2] is not None:
        tensor = tensor_of(pad.inputs[2])
        return tensor is not None and not tensor.numpy().any()
    return pad.attributes.get_float("value", 0.0) == 0


def _rank(conv: onnx_ir.Node) -> int:
    """The number of axes of what a Conv reads, 0 where unknown."""
    weight = conv.inputs[1]
    return 0 if weight is None or weight.shape is None else len(weight.shape)


def _spatial_pads(pad: onnx_ir.Node, rank: int) -> list[int] | None:
    """What a Pad adds at the begins and ends of the spatial axes, or None where it does anything else."""
    given = integers(pad.inputs[1]) if len(pad.inputs) > 1 else pad.attributes.get_ints("pads")
    axes: tuple[int, ...] | None = tuple(range(rank))
    if len(pad.inputs) > 3 and pad.inputs[3] is not None:
        axes = integers(pad.inputs[3])
    if rank < 3 or given is None or axes is None or len(given) != 2 * len(axes) or min(given) < 0:
        return None
    begins, ends = [0] * rank, [0] * rank
    for position, axis in enumerate(axes):
        begins[axis % rank] = given[position]
        ends[axis % rank] = given[position + len(axes)]
    if any(begins[:2] + ends[:2]):
        return None
    return begins[2:] + ends[2:]


def _own_pads(conv: onnx_ir.Node, rank: int) -> list[int] | None:
    """A Conv's own pads where they do not depend on the input's size."""
    match conv.attributes.get_string("auto_pad", "NOTSET"):
        case "NOTSET":
            zeros = (0,) * (2 * (rank - 2))
            return list(conv.attributes.get_ints("pads", zeros))
        case "VALID":
            return [0] * (2 * (rank - 2))
    return None
