"""Compute a float16, bfloat16 or float64 model in float32, which is what integer kernels sit between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from quantool.graph.allocator import NameAllocator
from quantool.graph.normalize.constants import add_constant, computed, shape_of
from quantool.graph.normalize.ledger import helper_node
from quantool.graph.scopes import graphs
from quantool.schema import Note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import onnx_ir

    from quantool.graph.model import Model
    from quantool.schema import AnyArray

_NAMES: Final = {"FLOAT16": "float16", "BFLOAT16": "bfloat16", "DOUBLE": "float64"}
OTHER_FLOATS: Final = frozenset(_NAMES)
TYPE_ATTRIBUTES: Final = (
    "to", "dtype", "output_dtype", "precision", "softmax_precision", "qk_matmul_softmax_precision", "stash_type",
)  # fmt: skip
"""Attributes that name the element type of what a node writes or computes with."""
KNOWN_DOMAINS: Final = frozenset({"", "com.microsoft"})


def widen(model: Model) -> int:
    """Turn every other float type inside into float32, with a Cast at each input and output of the graph.

    Names and types of the graph's inputs and outputs stay. All or nothing: where a node would not accept it, the
    model stays as it is and a note says why. Returns the number of tensors that changed type.
    """
    top = model.ir.graph
    values = [value for value in _values(top) if _is_other(value.dtype)]
    if not values:
        return 0
    obstacle = _obstacle(model)
    if obstacle is not None:
        fix = "Convert the model to float32 first."
        model.notes.append(Note(code="not-widened", what=obstacle[1], where=obstacle[0], fix=fix))
        return 0
    fresh = NameAllocator(model).fresh
    for value in [value for value in top.inputs if _is_other(value.dtype)]:
        _cast_input(top, value, fresh=fresh)
    for value in dict.fromkeys(output for output in top.outputs if _is_other(output.dtype)):
        _cast_output(top, value, fresh=fresh)
    kept = {*top.inputs, *top.outputs}
    for value in values:
        if value not in kept:
            _widen_value(value)
    for graph in graphs(top):
        for node in graph:
            if not (node.op_type == "Cast" and node.outputs[0] in kept):
                _widen_attributes(node)
    return len(values)


def other_floats(model: Model) -> frozenset[str]:
    """The float types of a model beside float32, by their ml_dtypes or NumPy names."""
    kinds = {value.dtype for value in _values(model.ir.graph)}
    return frozenset(_NAMES[dtype.name] for dtype in kinds if dtype is not None and _is_other(dtype))


def _is_other(dtype: onnx_ir.DataType | None) -> bool:
    return dtype is not None and dtype.name in OTHER_FLOATS


def _values(top: onnx_ir.Graph) -> Iterator[onnx_ir.Value]:
    """The inputs, constants and written tensors of all scopes, each once."""
    for graph in graphs(top):
        yield from dict.fromkeys((*graph.inputs, *graph.initializers.values()))
        for node in graph:
            yield from node.outputs


def _obstacle(model: Model) -> tuple[str, str] | None:
    """The first node that stands in the way, and why; None where all is well."""
    import onnx_ir

    if model.ir.functions:
        return "the model", "it has local functions whose types are not known"
    for graph in graphs(model.ir.graph):
        for node in graph:
            touched = _touched(node)
            name = node.name or ""
            if touched and node.domain not in KNOWN_DOMAINS:
                return name, f"{node.domain}.{node.op_type} may need {_title(touched[0])} tensors"
            if any(not isinstance(value.type, onnx_ir.TensorType) for value in touched):
                return name, f"{node.op_type} handles sequences or optionals of {_title(touched[0])} tensors"
            if touched and node.op_type == "BitCast":
                return name, f"BitCast reads the bits of {_title(touched[0])} numbers"
            if _has_foreign_tensor(node):
                return name, f"{node.op_type} holds a tensor attribute of another float type"
    return None


def _touched(node: onnx_ir.Node) -> list[onnx_ir.Value]:
    """What a node reads or writes in another float type."""
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    return [value for value in values if _is_other(value.dtype)]


def _title(value: onnx_ir.Value) -> str:
    return value.dtype.name.lower() if value.dtype is not None else "unknown"


def _has_foreign_tensor(node: onnx_ir.Node) -> bool:
    """Whether an attribute other than a constant's value holds a tensor or a type that would have to change."""
    import onnx_ir

    types = onnx_ir.AttributeType
    return any(
        attribute.type in (types.TYPE_PROTO, types.TYPE_PROTOS, types.TENSORS)
        or (
            attribute.type == types.TENSOR
            and node.op_type not in {"Constant", "ConstantOfShape"}
            and _is_other(attribute.as_tensor().dtype)
        )
        for attribute in node.attributes.values()
    )


def _cast_input(top: onnx_ir.Graph, value: onnx_ir.Value, *, fresh: Callable[[str], str]) -> None:
    """Let readers see an input in float32, except for a Cast, which reads any type."""
    import onnx_ir

    uses = [(node, index) for node, index in value.uses() if node.op_type != "Cast"]
    if not uses:
        return
    cast = _cast(value, onnx_ir.DataType.FLOAT, name=fresh(f"{value.name}_widen"))
    cast.outputs[0].name = fresh(f"{value.name}_float32")
    cast.outputs[0].type, cast.outputs[0].shape = onnx_ir.TensorType(onnx_ir.DataType.FLOAT), value.shape
    for node, index in uses:
        node.replace_input_with(index, cast.outputs[0])
    top.insert_before(top[0], cast)


def _cast(value: onnx_ir.Value, dtype: onnx_ir.DataType, *, name: str) -> onnx_ir.Node:
    return helper_node("Cast", [value], name=name, to=int(dtype))


def _cast_output(top: onnx_ir.Graph, value: onnx_ir.Value, *, fresh: Callable[[str], str]) -> None:
    """Return a tensor in its declared type; inside, its readers get float32.

    An input passed on stays as it is, and so does what a Cast writes for the output alone.
    """
    writer = value.producer()
    if value.is_graph_input() or (writer is not None and writer.op_type == "Cast" and not value.uses()):
        return
    if value.is_initializer():
        _split_constant(top, value, fresh=fresh)
        return
    assert value.dtype is not None
    cast = _cast(value, value.dtype, name=fresh(f"{value.name}_narrow"))
    declared = cast.outputs[0]
    declared.name, declared.type, declared.shape = value.name, value.type, value.shape
    declared.doc_string, value.doc_string = value.doc_string, None
    declared.metadata_props.update(value.metadata_props)
    for index, output in enumerate(top.outputs):
        if output is value:
            top.outputs[index] = declared
    value.name = fresh(f"{value.name}_float32")
    top.append(cast)


def _split_constant(top: onnx_ir.Graph, value: onnx_ir.Value, *, fresh: Callable[[str], str]) -> None:
    """Give the readers of a constant that is also an output a float32 copy."""
    tensor = value.const_value
    if value.uses() and tensor is not None:
        copy = add_constant(top, fresh(f"{value.name}_float32"), _widened(tensor))
        for node, index in value.uses():
            node.replace_input_with(index, copy)


def _widen_value(value: onnx_ir.Value) -> None:
    import onnx_ir

    value.type = onnx_ir.TensorType(onnx_ir.DataType.FLOAT)
    if value.is_initializer() and value.const_value is not None:
        value.const_value = _widened(value.const_value)


def _widened(tensor: onnx_ir.TensorProtocol) -> onnx_ir.TensorProtocol:
    """A tensor in float32; finite numbers beyond its range, as masks in float64 have, become its largest."""
    import onnx_ir

    largest = np.finfo(np.float32).max

    def load() -> AnyArray:
        array = tensor.numpy()
        if tensor.dtype.name != "DOUBLE":
            return array
        clipped: AnyArray = np.where(np.isfinite(array), np.clip(array, -largest, largest), array)
        return clipped

    return computed(load, dtype=onnx_ir.DataType.FLOAT, shape=shape_of(tensor))


def _widen_attributes(node: onnx_ir.Node) -> None:
    import onnx_ir

    for name in TYPE_ATTRIBUTES:
        dtype = node.attributes.get(name)
        if dtype is not None and dtype.type == onnx_ir.AttributeType.INT and dtype.as_int() in _other_types():
            node.attributes.add(onnx_ir.AttrInt64(name, onnx_ir.DataType.FLOAT))
    tensor = node.attributes.get("value")
    if tensor is not None and tensor.type == onnx_ir.AttributeType.TENSOR and _is_other(tensor.as_tensor().dtype):
        node.attributes.add(onnx_ir.AttrTensor("value", _widened(tensor.as_tensor())))


def _other_types() -> frozenset[int]:
    import onnx_ir

    return frozenset(int(onnx_ir.DataType[name]) for name in OTHER_FLOATS)
