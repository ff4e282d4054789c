"""inspect: what a model is and what quantize would find beside it, or what a file of statistics holds."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import ml_dtypes  # noqa: F401  # registers int4 and its kin as NumPy type names
import numpy as np

from quantool import graph, targets
from quantool.data import find_beside
from quantool.ops import Role, op_of
from quantool.pipeline.source import model_info
from quantool.report.model import OutputInfo
from quantool.report.statistics import StatsInspection, inspect_statistics
from quantool.requests import Inspection, InspectRequest, TensorInfo
from quantool.schema import GraphFacts
from quantool.stats import Stats


def inspect(request: InspectRequest) -> Inspection:
    """Describe a model, a quantized one too. Raises ModelError where it cannot be read."""
    loaded = graph.read(request.model)
    model = graph.prepare(loaded)
    facts = graph.facts(model)
    kernels = targets.load(targets.DEFAULT).kernels
    able = [n for n in facts.nodes if (n.domain, n.op_type) in kernels and op_of(n).role is Role.ANCHOR]
    parameters, size = _parameters(facts)
    path = loaded.source.path
    beside = None if path is None else find_beside(Path(path))
    return Inspection(
        model=model_info(loaded),
        inputs=tuple(TensorInfo(name=n, dtype=d, shape=s) for n, d, s in graph.input_specs(loaded)),
        outputs=tuple(_output(facts, name) for name in facts.outputs),
        operators=dict(sorted(Counter(node.op_type for node in facts.given).items())),
        parameters=parameters,
        parameter_bytes=size,
        quantizable_nodes=len(able),
        quantizable_share=len(able) / len(facts.nodes) if facts.nodes else 0.0,
        data_beside=None if beside is None else str(beside),
    )


def inspect_stats(path: Path) -> StatsInspection:
    """Describe a ``.qcal`` file. Raises DataError where it cannot be read, QuantoolError for another version."""
    stats = Stats.load(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    info = OutputInfo(path=str(path), sha256=digest, size_bytes=path.stat().st_size)
    return inspect_statistics(stats, info)


def _output(facts: GraphFacts, name: str) -> TensorInfo:
    fact = facts.tensors[name]
    return TensorInfo(name=name, dtype=fact.dtype, shape=fact.shape)


def _parameters(facts: GraphFacts) -> tuple[int, int]:
    """Elements and bytes of all constants."""
    elements = size = 0
    for fact in facts.tensors.values():
        if fact.is_constant and fact.dtype not in ("", "string"):
            count = int(np.prod([d for d in fact.shape or () if isinstance(d, int)], dtype=np.int64))
            elements += count
            size += count * np.dtype(fact.dtype).itemsize
    return elements, size
