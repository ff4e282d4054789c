"""The graph: the only package that imports onnx and onnx_ir, and it does so when a function is called."""

from __future__ import annotations

from quantool.graph.facts import constant, constant_loader, facts
from quantool.graph.identity import graph_identity, model_identity
from quantool.graph.infer import shapes_for
from quantool.graph.inputs import input_specs
from quantool.graph.load import Loaded, already_quantized, checker_error, decode_tensor, read
from quantool.graph.macs import macs
from quantool.graph.model import Model, Source
from quantool.graph.prepare import prepare
from quantool.graph.serialize import deserialize, serialize
from quantool.graph.structure import given_bytes, is_outlined

__all__ = [
    "Loaded",
    "Model",
    "Source",
    "already_quantized",
    "checker_error",
    "constant",
    "constant_loader",
    "decode_tensor",
    "deserialize",
    "facts",
    "given_bytes",
    "graph_identity",
    "input_specs",
    "is_outlined",
    "macs",
    "model_identity",
    "prepare",
    "read",
    "serialize",
    "shapes_for",
]
