"""Where a model does its work: at the top, or inside the bodies of If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from quantool.graph.protos import DEFAULT_DOMAINS, graphs

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx

    from quantool.graph.load import Loaded


def only_in_bodies(loaded: Loaded, operators: Container[tuple[str, str]]) -> bool:
    """Whether operators (domain, type) stand inside bodies alone, at least one; local functions count as the top."""
    if loaded.proto.functions:
        return False
    top, *bodies = graphs(loaded.proto.graph)
    return not _any(top.node, operators) and any(_any(body.node, operators) for body in bodies)


def _any(nodes: Iterable[onnx.NodeProto], operators: Container[tuple[str, str]]) -> bool:
    return any(("" if n.domain in DEFAULT_DOMAINS else n.domain, n.op_type) in operators for n in nodes)
