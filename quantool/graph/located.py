"""External tensors whose file was found and checked when the model was read.

Imported only by functions that build a graph, because it needs onnx_ir.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir

from quantool.kernels.packing import unpack_lowbit

if TYPE_CHECKING:
    from quantool.schema import AnyArray


class LocatedTensor(onnx_ir.ExternalTensor):
    """An external tensor that knows its real file.

    It has no base_dir, so that onnx_ir leaves the checks to quantool.graph.external: onnx_ir would refuse files
    with several hard links, which package installers make. Each array has a map of its own, which goes when nobody
    reads it any more: no weight stays in memory, and threads share nothing.
    """

    __slots__ = ("_file",)

    def __init__(self, tensor: onnx_ir.ExternalTensor, folder: Path) -> None:
        super().__init__(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=tensor.shape,
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
        )
        self._file = str(folder / tensor.location)

    @property
    def path(self) -> str:
        """The real file."""
        return self._file

    def numpy(self) -> AnyArray:
        """The values, mapped from the file anew; several elements in one byte are unpacked."""
        shape = tuple(int(dim) for dim in self.shape.numpy())
        if self.size == 0:
            return np.empty(shape, self.dtype.numpy())
        if self.dtype.bitwidth < 8:
            return unpack_lowbit(np.frombuffer(self.tobytes(), np.uint8), dtype=self.dtype.numpy(), shape=shape)
        start = self.offset or 0
        begin = start - start % mmap.ALLOCATIONGRANULARITY
        with Path(self._file).open("rb") as file:
            content = mmap.mmap(file.fileno(), start - begin + self.nbytes, access=mmap.ACCESS_READ, offset=begin)
        dtype = np.dtype(self.dtype.numpy()).newbyteorder("<")
        values = np.frombuffer(content, dtype, count=self.size, offset=start - begin)
        return values.reshape(shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        """What `numpy` gives, for functions of NumPy."""
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def tobytes(self) -> bytes:
        """The bytes in the file."""
        with Path(self._file).open("rb") as file:
            file.seek(self.offset or 0)
            return file.read(self.nbytes)


def locate_tensors(graph: onnx_ir.Graph, folder: Path) -> None:
    """Replace the external initializers of a graph, in place."""
    for value in graph.initializers.values():
        if isinstance(value.const_value, onnx_ir.ExternalTensor):
            value.const_value = LocatedTensor(value.const_value, folder)
