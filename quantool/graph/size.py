"""How large a model will be when it is written, without computing a constant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from quantool.graph.save import EXTERNAL_FROM_BYTES, INLINE_LIMIT_BYTES
from quantool.graph.scopes import paused_collector
from quantool.graph.shards import ALIGNMENT_BYTES

if TYPE_CHECKING:
    from quantool.graph.model import Model

#: what a message holds of a constant beside its name and values: type, shape, and where it is stored
CONSTANT_BYTES: Final = 48
#: what it adds to a node: a tag and a length
NODE_BYTES: Final = 8
#: the entries of metadata that tell where a model comes from
PROVENANCE_BYTES: Final = 512


def written_bytes(model: Model, *, before: Model, serialized: int, external: bool | None) -> int:
    """Bytes of a model and its external data, a little more rather than less.

    before: the graph that it was made from, whose message takes `serialized` bytes with its constants that are not
    external. external: whether constants go to a file of their own, None where they do if they are too large.
    """
    with paused_collector():
        structure = serialized - _inside(before) - _structure(before) + _structure(model)
    sizes = _constants(model)
    total = sum(sizes)
    if external or (external is None and total > INLINE_LIMIT_BYTES):
        total += ALIGNMENT_BYTES * sum(size >= EXTERNAL_FROM_BYTES for size in sizes)
    return structure + total + PROVENANCE_BYTES


def weight_count(model: Model) -> int:
    """The number of floating-point constants' elements."""
    tensors = (value.const_value for value in model.ir.graph.initializers.values())
    return sum(int(tensor.size) for tensor in tensors if tensor is not None and tensor.dtype.is_floating_point())


def _constants(model: Model) -> list[int]:
    tensors = (value.const_value for value in model.ir.graph.initializers.values())
    return [int(tensor.nbytes) for tensor in tensors if tensor is not None]


def _inside(model: Model) -> int:
    """The bytes of constants that stand in the message."""
    import onnx_ir

    tensors = (value.const_value for value in model.ir.graph.initializers.values())
    return sum(int(t.nbytes) for t in tensors if t is not None and not isinstance(t, onnx_ir.ExternalTensor))


def _structure(model: Model) -> int:
    """Nodes, and the names and shapes of constants."""
    import onnx_ir

    nodes = sum(int(onnx_ir.serde.serialize_node(node).ByteSize()) + NODE_BYTES for node in model.ir.graph)
    return nodes + sum(len(name.encode()) + CONSTANT_BYTES for name in model.ir.graph.initializers)
