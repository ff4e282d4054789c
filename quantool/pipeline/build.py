"""From a plan and its parameters to a quantized graph; the float graph stays as it is."""

from __future__ import annotations

from dataclasses import replace

from quantool import graph
from quantool.edits import SetOpset
from quantool.graph.allocator import NameAllocator
from quantool.graph.edit import apply
from quantool.graph.scopes import paused_collector
from quantool.pipeline.source import FloatModel
from quantool.rewrite import rewrite
from quantool.runtime import Loadable, Thrift
from quantool.schema import Parameters, Plan


def quantized_graph(source: FloatModel, plan: Plan, parameters: Parameters) -> graph.Model:
    """A copy of the normalized graph with the plan's edits applied; weights are shared, not copied."""
    with paused_collector():
        model = replace(source.model, ir=source.model.ir.clone())
        edits = rewrite(source.facts, plan, parameters, fresh=NameAllocator(model).fresh)
        apply(model, [*edits, SetOpset("", plan.opset)])
    return model


def loadable(model: graph.Model, *, threads: int, thrift: Thrift) -> Loadable:
    """A graph under work as something that the runtime loads."""
    data, folder = graph.serialize(model)
    return Loadable(model=data, folder=folder, threads=threads, thrift=thrift, label="the quantized model")
