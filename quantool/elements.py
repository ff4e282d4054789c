"""The element types of quantized tensors: one row a type, with what every stage must know of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np

#: opsets whose QuantizeLinear and DequantizeLinear first take one scale a channel, and one a block
PER_AXIS_OPSET: Final = 13
PER_BLOCK_OPSET: Final = 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One element type.

    bits: width of a code; opset: the least ai.onnx opset whose QuantizeLinear and DequantizeLinear take the type;
    largest: its largest finite value where it is a floating type, else None.
    """

    bits: int
    opset: int
    largest: int | None = None

    @property
    def floating(self) -> bool:
        """Whether codes are floating-point numbers: steps grow with the value, and there is no zero point."""
        return self.largest is not None


#: by ml_dtypes names
ELEMENTS: Final[Mapping[str, Element]] = MappingProxyType(
    {
        "int8": Element(bits=8, opset=10),
        "uint8": Element(bits=8, opset=10),
        "int16": Element(bits=16, opset=21),
        "uint16": Element(bits=16, opset=21),
        "int4": Element(bits=4, opset=21),
        "uint4": Element(bits=4, opset=21),
        "int2": Element(bits=2, opset=25),
        "uint2": Element(bits=2, opset=25),
        "float8_e4m3fn": Element(bits=8, opset=19, largest=448),
        "float8_e4m3fnuz": Element(bits=8, opset=19, largest=240),
        "float8_e5m2": Element(bits=8, opset=19, largest=57344),
        "float8_e5m2fnuz": Element(bits=8, opset=19, largest=57344),
        "float4_e2m1fn": Element(bits=4, opset=23, largest=6),
    }
)


#: what stands for large tensors in a model that a session gets with them as arrays; the file holds nothing
EMPTY_FILE: Final = "empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedTensor:
    """A constant whose content is mapped from a file.

    element_type: by the number of onnx.TensorProto.DataType; values: its shape, unsigned integers of an element's
    width. Where several elements share a byte the array claims one for each: nobody may read it as an array.
    """

    element_type: int
    values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]


def required_opset(dtype: str, *, per_axis: bool = False, per_block: bool = False) -> int:
    """The least ai.onnx opset that holds a tensor of a type at a granularity."""
    granularity = PER_BLOCK_OPSET if per_block else PER_AXIS_OPSET if per_axis else 0
    return max(ELEMENTS[dtype].opset, granularity)
