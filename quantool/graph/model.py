"""The model while it is worked on: an onnx_ir graph, and where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quantool.schema import GivenNode, Note

if TYPE_CHECKING:
    import onnx
    import onnx_ir

#: key of ir.Value.meta: the constant that this one is the transpose of, where both stay in use
TRANSPOSE_OF: Final = "quantool.transpose_of"
#: key of ir.Node.meta: the given nodes that a node stands for
ORIGINS: Final = "quantool.origins"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The model as given. folder: where external data lives (None for a model in memory)."""

    path: Path | None
    folder: Path | None
    sha256: str
    opset: int
    size_bytes: int


@dataclass(slots=True, kw_only=True)
class Model:
    """A graph under work. `ir` changes in place; everything else is written while normalizing.

    given: the nodes as given, the rows of the report. absorbed: given node -> the node it was folded into, or ""
    where it became a constant. described: the tensors whose type the model as given tells, and so the result.
    returned: the types of the outputs as the model as given declares them, unknown dimensions included.
    Every ir.Node has a name unique over all scopes and carries the given nodes that it stands for in
    ``node.meta[ORIGINS]``; every ir.Value has a name unique over all scopes.
    """

    ir: onnx_ir.Model
    source: Source
    given: tuple[GivenNode, ...]
    absorbed: dict[str, str] = field(default_factory=dict)
    described: frozenset[str] = frozenset()
    returned: Mapping[str, onnx.TypeProto] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
