"""Apply edits, data that a rewriter made, to a model.

Edits are declarative: the names in them are those of the result, whatever the order of the edits. So an
AddNode may write the tensor of a node that a RemoveNode takes away. Beside ``RenameOutput("y", "y_float")``
every other edit calls that tensor ``y_float``, while a graph output ``y`` waits for a new writer.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

from quantool.edits import AddInitializer, AddNode, RemoveNode, RenameOutput, SetInput, SetOpset
from quantool.graph.model import ORIGINS
from quantool.graph.retype import infer_types
from quantool.graph.scopes import graphs, paused_collector, subgraphs

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir

    from quantool.edits import Edit
    from quantool.graph.model import Model
    from quantool.schema import AttributeValue


def apply(model: Model, edits: Sequence[Edit]) -> None:
    """Apply edits in place, drop constants that nobody reads, and sort all scopes; O(nodes + edits).

    Raises:
        ValueError: an edit names an unknown node or tensor or a taken name, or leaves a tensor unwritten.
    """
    with paused_collector():
        editor = _Editor(model.ir)
        editor.run(edits)
        remove_unused_initializers(model.ir.graph)
        model.ir.graph.sort()
        infer_types(model.ir.graph, editor.added, formerly=editor.formerly)


def remove_unused_initializers(top: onnx_ir.Graph) -> None:
    """Drop the initializers of every scope that no node reads and no graph returns."""
    for graph in graphs(top):
        unused = [
            name
            for name, value in graph.initializers.items()
            if not (value.uses() or value.is_graph_output() or value.is_graph_input())
        ]
        for name in unused:
            del graph.initializers[name]


def detach(node: onnx_ir.Node) -> None:
    """Stop a node, and the nodes inside its subgraphs, from reading anything, before it is removed."""
    for graph in subgraphs(node):
        for inner in graph:
            detach(inner)
    node.resize_inputs(0)


class _Editor:
    """The tables that make each edit O(1), and one method for each kind of edit."""

    def __init__(self, ir_model: onnx_ir.Model) -> None:
        self._model = ir_model
        self._nodes: dict[str, onnx_ir.Node] = {}
        self._homes: dict[str, onnx_ir.Graph] = {}
        self._values: dict[str, onnx_ir.Value] = {}
        self._replaced: dict[str, onnx_ir.Node] = {}  # removed nodes by name, or by what they wrote
        self._successors: set[str] = set()
        self.added: set[onnx_ir.Node] = set()
        self.formerly: dict[onnx_ir.Node, dict[int, onnx_ir.DataType | None]] = {}
        for graph in graphs(ir_model.graph):
            for value in (*graph.inputs, *graph.initializers.values()):
                self._values[value.name or ""] = value
            for node in graph:
                self._nodes[node.name or ""] = node
                self._homes[node.name or ""] = graph
                self._values.update({output.name or "": output for output in node.outputs})

    def run(self, edits: Sequence[Edit]) -> None:
        """Renames first and inputs last, so that every edit may use the final names."""
        for rename in (edit for edit in edits if isinstance(edit, RenameOutput)):
            self._rename(rename)
        self._successors = {edit.name for edit in edits if isinstance(edit, AddNode)}
        removed = [self._release(edit) for edit in edits if isinstance(edit, RemoveNode)]
        for initializer in (edit for edit in edits if isinstance(edit, AddInitializer)):
            self._add_initializer(initializer)
        for addition in (edit for edit in edits if isinstance(edit, AddNode)):
            self._add_node(addition)
        for change in (edit for edit in edits if isinstance(edit, SetInput)):
            self._set_input(change)
        for node in removed:
            assert node.graph is not None
            node.graph.remove(node)
        opsets = [edit for edit in edits if isinstance(edit, SetOpset)]
        for opset in opsets:
            self._set_opset(opset)
        self._check_writers()

    def _rename(self, edit: RenameOutput) -> None:
        value = self._values.get(edit.old)
        if value is None or value.producer() is None:
            raise ValueError(f"RenameOutput: no node writes a tensor '{edit.old}'")
        if edit.new in self._values:
            raise ValueError(f"RenameOutput: the name '{edit.new}' for '{edit.old}' is taken")
        del self._values[edit.old]
        if value.is_graph_output():
            self._return_stand_in(value)
        value.name = edit.new
        self._values[edit.new] = value

    def _return_stand_in(self, value: onnx_ir.Value) -> None:
        """Let the graph return a tensor of the same name that is yet to be written."""
        stand_in = _blank_copy(value)
        stand_in.doc_string, value.doc_string = value.doc_string, None
        stand_in.metadata_props.update(value.metadata_props)
        graph = value.graph
        assert graph is not None
        for index, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[index] = stand_in
        self._values[stand_in.name or ""] = stand_in

    def _release(self, edit: RemoveNode) -> onnx_ir.Node:
        """Free what a node writes and reads; the node itself leaves later, since others may go beside it."""
        node = self._nodes.pop(edit.name, None)
        if node is None:
            raise ValueError(f"RemoveNode: there is no node '{edit.name}'")
        self._replaced[edit.name] = node
        for output in node.outputs:
            if output.name:
                stand_in = _blank_copy(output)
                stand_in.doc_string = output.doc_string
                stand_in.metadata_props.update(output.metadata_props)
                output.replace_all_uses_with(stand_in, replace_graph_outputs=True)
                self._values[output.name] = stand_in
                if edit.name not in self._successors:
                    self._replaced[output.name] = node
        for graph in (inner for held in subgraphs(node) for inner in graphs(held)):
            self._forget(graph)
        detach(node)
        return node

    def _forget(self, graph: onnx_ir.Graph) -> None:
        for value in (*graph.inputs, *graph.initializers.values()):
            self._values.pop(value.name or "", None)
        for node in graph:
            self._nodes.pop(node.name or "", None)
            for output in node.outputs:
                self._values.pop(output.name or "", None)

    def _add_initializer(self, edit: AddInitializer) -> None:
        import onnx_ir

        value = self._unwritten(edit.name, f"AddInitializer '{edit.name}'")
        dtype = data_type(edit.dtype)
        shape = onnx_ir.Shape(edit.shape)

        def load() -> onnx_ir.TensorProtocol:
            array = edit.load()
            if array.shape != edit.shape:
                raise ValueError(f"constant '{edit.name}' has shape {array.shape}, {edit.shape} was announced")
            return onnx_ir.Tensor(np.asarray(array.astype(dtype.numpy(), copy=False), order="C"), dtype=dtype)

        value.const_value = onnx_ir.LazyTensor(load, dtype=dtype, shape=shape, name=edit.name)
        value.type, value.shape = onnx_ir.TensorType(dtype), shape
        self._model.graph.register_initializer(value)

    def _add_node(self, edit: AddNode) -> None:
        import onnx_ir

        if edit.name in self._nodes:
            raise ValueError(f"AddNode: the name '{edit.name}' is taken")
        graph = self._homes.get(edit.near) if edit.near else self._model.graph
        if graph is None:
            raise ValueError(f"AddNode '{edit.name}': there is no node '{edit.near}' to put it near")
        where = f"AddNode '{edit.name}'"
        node = onnx_ir.Node(
            edit.domain,
            edit.op_type,
            [self._readable(name) for name in edit.inputs],
            [_attribute(name, value) for name, value in edit.attributes.items()],
            outputs=[self._unwritten(name, where) for name in edit.outputs],
            name=edit.name,
        )
        node.meta[ORIGINS] = ()
        for name in (edit.name, *edit.outputs):
            if (replaced := self._replaced.get(name)) is not None:
                node.doc_string = replaced.doc_string
                node.metadata_props.update(replaced.metadata_props)
                break
        neighbour = self._nodes.get(edit.near)
        if neighbour is None:
            graph.append(node)
        else:
            graph.insert_before(neighbour, node)
        self._nodes[edit.name] = node
        self._homes[edit.name] = graph
        self.added.add(node)

    def _set_input(self, edit: SetInput) -> None:
        node = self._nodes.get(edit.node)
        if node is None:
            raise ValueError(f"SetInput: there is no node '{edit.node}'")
        if edit.index >= len(node.inputs):
            node.resize_inputs(edit.index + 1)
        before = node.inputs[edit.index]
        if before is not None:
            self.formerly.setdefault(node, {}).setdefault(edit.index, before.dtype)
        node.replace_input_with(edit.index, self._readable(edit.tensor))
        while node.inputs and node.inputs[-1] is None:
            node.resize_inputs(len(node.inputs) - 1)

    def _set_opset(self, edit: SetOpset) -> None:
        import onnx

        imports = self._model.graph.opset_imports
        domain = "" if edit.domain == "ai.onnx" else edit.domain
        imports[domain] = max(edit.version, imports.get(domain, edit.version))
        opsets = [onnx.helper.make_opsetid(name, version) for name, version in imports.items()]
        least = onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True)
        self._model.ir_version = max(self._model.ir_version, least)

    def _readable(self, name: str) -> onnx_ir.Value | None:
        """The tensor of this name, made now where a later edit writes it."""
        import onnx_ir

        if not name:
            return None
        if name not in self._values:
            self._values[name] = onnx_ir.Value(name=name)
        return self._values[name]

    def _unwritten(self, name: str, where: str) -> onnx_ir.Value:
        import onnx_ir

        value = self._readable(name)
        if value is None:
            return onnx_ir.Value(name="")
        if not _is_loose(value):
            raise ValueError(f"{where}: the tensor '{name}' has a writer already")
        return value

    def _check_writers(self) -> None:
        for name, value in self._values.items():
            if name and _is_loose(value) and (value.uses() or value.is_graph_output()):
                readers = ", ".join(f"'{node.name}'" for node in value.consumers()) or "the graph's outputs"
                raise ValueError(f"no node writes the tensor '{name}', which {readers} read")


def _is_loose(value: onnx_ir.Value) -> bool:
    return value.producer() is None and not value.is_initializer() and not value.is_graph_input()


def _blank_copy(value: onnx_ir.Value) -> onnx_ir.Value:
    """A tensor of the same name and type that nobody writes or reads."""
    import onnx_ir

    shape = None if value.shape is None else value.shape.copy()
    return onnx_ir.Value(name=value.name, type=copy.copy(value.type), shape=shape)


def data_type(dtype: str) -> onnx_ir.DataType:
    """The ONNX type of a NumPy or ml_dtypes name."""
    import ml_dtypes
    import onnx_ir

    return onnx_ir.DataType.from_numpy(np.dtype(getattr(ml_dtypes, dtype, dtype)))


def _attribute(name: str, value: AttributeValue) -> onnx_ir.Attr:
    import onnx_ir

    if value == ():
        return onnx_ir.AttrInt64s(name, ())
    return onnx_ir.convenience.convert_attribute(name, value)
