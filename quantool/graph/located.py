"""External tensors whose file was found and checked when the model was read.

Imported only by functions that build a graph, because it needs onnx_ir.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir

if TYPE_CHECKING:
    from pathlib import Path


class LocatedTensor(onnx_ir.ExternalTensor):
    """An external tensor that knows its real file.

    It has no base_dir, so that onnx_ir leaves the checks to quantool.graph.external: onnx_ir would refuse files
    with several hard links, which package installers make.
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


def locate_tensors(graph: onnx_ir.Graph, folder: Path) -> None:
    """Replace the external initializers of a graph, in place."""
    for value in graph.initializers.values():
        if isinstance(value.const_value, onnx_ir.ExternalTensor):
            value.const_value = LocatedTensor(value.const_value, folder)
