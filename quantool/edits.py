"""What a rewriter asks of the graph: edits as data; graph/edit.py applies them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from quantool.schema import AnyArray, AttributeValue


@dataclass(frozen=True, slots=True, kw_only=True)
class AddInitializer:
    """Store a constant. load() gives the array when it is written; dtype and shape are known before."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], AnyArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddNode:
    """Add a node to the scope of the node `near` ("" is the top); the final sort finds its place."""

    op_type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    domain: str = ""
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    near: str = ""


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """Remove a node; its outputs must be written by another node or read by nobody."""

    name: str


@dataclass(frozen=True, slots=True)
class SetInput:
    """Make one input of a node read another tensor ("" makes it absent)."""

    node: str
    index: int
    tensor: str


@dataclass(frozen=True, slots=True)
class RenameOutput:
    """Give the tensor that a node writes a new name, and free the old one; readers keep reading it."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class SetOpset:
    """Import a domain at a version (ai.onnx is never lowered)."""

    domain: str
    version: int


Edit = AddInitializer | AddNode | RemoveNode | SetInput | RenameOutput | SetOpset
