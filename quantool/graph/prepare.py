"""From a model as given to the graph that is worked on: named, inlined, raised, with constants in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantool.graph.constants import lift
from quantool.graph.functions import inline
from quantool.graph.infer import infer
from quantool.graph.model import ORIGINS, Model
from quantool.graph.names import name_nodes, name_values
from quantool.graph.opset import least_ir_version, raise_opset
from quantool.graph.scopes import graphs, paused_collector
from quantool.graph.structure import copy_without_weights, resolve_external
from quantool.graph.wellformed import complete_imports, sort

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import onnx
    import onnx_ir

    from quantool.graph.load import Loaded


def prepare(loaded: Loaded, *, opset: int | None = None) -> Model:
    """Build the graph under work; the model as given is not changed.

    Nodes get unique names, local functions are inlined, values get names unique over all scopes, Constant nodes
    and inner initializers become initializers of the main graph, initializers leave its inputs, shapes are
    inferred, and the opset is raised to `opset` where that is higher than the model's.

    Raises:
        ModelError: a function cannot be inlined, or an operator cannot be raised to `opset`.
    """
    structure, weights = copy_without_weights(loaded.proto)
    if loaded.external is not None:
        resolve_external(structure, loaded.external)
    complete_imports(structure)
    sort(structure.graph)
    given = name_nodes(structure.graph)
    structure, origins = inline(structure)
    names = name_values(structure.graph)
    constants = lift(structure, weights, names=names)
    structure.ir_version = max(structure.ir_version, least_ir_version(structure))
    structure, notes = infer(structure)
    if opset is not None and opset > loaded.source.opset:
        added, more = raise_opset(structure, opset)
        origins |= {node: origins.get(near, near) for node, near in added.items()}
        lift(structure, weights, names=name_values(structure.graph))
        structure, again = infer(structure)
        notes += more + (again if not notes else [])
    folder = loaded.source.folder
    with paused_collector():
        graph = _build(structure, weights, origins, folder=folder)
    absorbed = _absorbed({origins.get(name, name) for name in constants}, graph)
    described = frozenset(info.name for info in loaded.proto.graph.value_info)
    returned = {value.name: value.type for value in loaded.proto.graph.output}
    return Model(
        ir=graph,
        source=loaded.source,
        given=given,
        absorbed=absorbed,
        described=described,
        returned=returned,
        notes=notes,
    )


def _build(
    structure: onnx.ModelProto,
    weights: Mapping[str, onnx.TensorProto],
    origins: Mapping[str, str],
    *,
    folder: Path | None,
) -> onnx_ir.Model:
    import onnx_ir

    from quantool.graph.located import locate_tensors

    model = onnx_ir.from_proto(structure)
    for name, tensor in weights.items():
        model.graph.initializers[name].const_value = onnx_ir.serde.deserialize_tensor(tensor)
    if folder is not None:
        locate_tensors(model.graph, folder)
    for graph in graphs(model.graph):
        for node in graph:
            name = node.name or ""
            node.meta[ORIGINS] = (origins.get(name, name),)
    return model


def _absorbed(candidates: set[str], model: onnx_ir.Model) -> dict[str, str]:
    """The given nodes that are constants now; a call is one only if no node of it is left."""
    alive = {origin for graph in graphs(model.graph) for node in graph for origin in node.meta[ORIGINS]}
    return dict.fromkeys(sorted(candidates - alive), "")
