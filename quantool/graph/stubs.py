"""A model as ONNX Runtime can load it while its external data is mapped from files without a name.

Its own way for that copies every tensor. Here large tensors refer to an empty file and are given to the session as
arrays on the mapped content; an optimizer that asks for the values of one fails, so that it cannot read wrong ones.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from quantool.elements import EMPTY_FILE, MappedTensor
from quantool.graph.external import entry, is_external
from quantool.graph.protos import bits_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from mmap import mmap

    import onnx

    from quantool.schema import AnyArray

INSIDE_BYTES: Final = 64 * 1024
"""Smaller tensors are put into the model, since optimizers look at scales, zero points and shapes."""


def with_mapped_weights(model_bytes: bytes, external: Mapping[str, mmap]) -> tuple[bytes, dict[str, MappedTensor]]:
    """The model with its large external tensors left out, and those by name.

    external: name of each external data file -> its content.
    """
    import onnx

    model = onnx.ModelProto.FromString(model_bytes)
    mapped: dict[str, MappedTensor] = {}
    for tensor in model.graph.initializer:
        if not is_external(tensor):
            continue
        place = entry(tensor)
        content = np.frombuffer(external[place.location], np.uint8, count=place.length, offset=place.offset)
        del tensor.external_data[:]
        if place.length < INSIDE_BYTES:
            tensor.ClearField("data_location")
            tensor.raw_data = content.tobytes()
            continue
        mapped[tensor.name] = MappedTensor(element_type=tensor.data_type, values=_elements(tensor, content))
        for key, value in (("location", EMPTY_FILE), ("offset", 0), ("length", place.length)):
            tensor.external_data.add(key=key, value=str(value))
    data: bytes = model.SerializeToString()
    return data, mapped


def _elements(tensor: onnx.TensorProto, content: AnyArray) -> AnyArray:
    """The content with an element's shape, as unsigned integers of its width.

    Where several elements share a byte, the array claims one for each, which is what ONNX Runtime wants to see: it
    goes by the type, and reads no further than the content.
    """
    shape = tuple(tensor.dims)
    width = bits_of(tensor)
    if width >= 8:
        return content.view(f"u{width // 8}").reshape(shape)
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return np.lib.stride_tricks.as_strided(content, shape, strides, writeable=False)
