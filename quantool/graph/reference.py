"""The onnx reference evaluator: it runs types that the runtime has no kernels for, slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from quantool.errors import DataError, ModelError
from quantool.graph.load import opset_of
from quantool.graph.protos import DEFAULT_DOMAINS, nodes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from mmap import mmap

    import onnx

    from quantool.schema import AnyArray, Feed

#: what its operators, plain NumPy, raise on inputs that they do not take
_FAILURES: Final = (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError, KeyError, AttributeError)
_FIRST_QUANTIZING_OPSET: Final = 19
_EXTERNAL: Final = 1  # TensorProto.DataLocation.EXTERNAL


def missing_operators(proto: onnx.ModelProto, opset: int) -> list[str]:
    """The operators of a model that the evaluator cannot run at an opset, sorted."""
    functions = {(function.domain, function.name) for function in proto.functions}
    used = {(node.domain, node.op_type) for node in nodes(proto)} - functions
    return sorted(name for domain, name in used if not _has(domain, name, opset))


def _has(domain: str, name: str, opset: int) -> bool:
    from onnx.reference.op_run import RuntimeContextError
    from onnx.reference.ops import load_op

    if domain not in DEFAULT_DOMAINS:
        return False
    try:
        load_op("", name, opset)
    except (RuntimeContextError, AssertionError):  # it is a function of other operators, expanded when a model runs
        return True
    except (RuntimeError, NotImplementedError):
        return False
    return True


class ReferenceSession:
    """A loaded model that runs as `quantool.runtime.Session` does.

    Attributes:
        inputs: the names of the model's inputs.
        outputs: the names of its outputs.

    Raises:
        ModelError: ``does-not-load``, where an operator has no implementation.
    """

    def __init__(self, data: bytes, external: Mapping[str, mmap], *, label: str) -> None:
        import onnx
        from onnx.reference import ReferenceEvaluator

        proto = onnx.ModelProto.FromString(data)
        _load_external(proto, external)
        try:
            self._evaluator = ReferenceEvaluator(proto, new_ops=_older_operators(proto))
        except _FAILURES as error:
            raise ModelError(
                "does-not-load",
                f"the onnx reference evaluator cannot load {label}: {error}",
                where=label,
                fix="Use a type that ONNX Runtime has kernels for.",
            ) from error
        self.label = label
        self.outputs = tuple(output.name for output in proto.graph.output)
        self.inputs = tuple(value.name for value in proto.graph.input)

    def run(self, feed: Feed, outputs: Sequence[str] | None = None, *, sample: int | str = "") -> dict[str, AnyArray]:
        """Run one feed; entries of the feed that the model has no input for are left out.

        Raises:
            DataError: ``does-not-run``, naming the sample.
        """
        wanted = self.outputs if outputs is None else tuple(outputs)
        known = {name: np.asarray(array) for name, array in feed.items() if name in self.inputs}
        try:
            with np.errstate(all="ignore"):
                arrays = self._evaluator.run(list(wanted), known)
        except _FAILURES as error:
            raise DataError(
                "does-not-run",
                f"{self.label} fails on the sample in the onnx reference evaluator: {error}",
                where=f"sample {sample}" if sample != "" else self.label,
                fix="Use a type that ONNX Runtime has kernels for.",
            ) from error
        return dict(zip(wanted, map(np.asarray, arrays), strict=True))


def _older_operators(proto: onnx.ModelProto) -> list[type]:
    """Q and DQ before opset 19, which the evaluator lacks: the newest do the same for what there was before."""
    from onnx.reference.ops import load_op

    if opset_of(proto) >= _FIRST_QUANTIZING_OPSET:
        return []
    return [type(name, (load_op("", name),), {"op_domain": ""}) for name in ("QuantizeLinear", "DequantizeLinear")]


def _load_external(proto: onnx.ModelProto, files: Mapping[str, mmap]) -> None:
    """Put external data into the message, in place."""
    for tensor in proto.graph.initializer:
        if tensor.data_location == _EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            start = int(entries.get("offset", 0))
            tensor.raw_data = files[entries["location"]][start : start + int(entries["length"])]
            tensor.data_location = 0
            del tensor.external_data[:]
