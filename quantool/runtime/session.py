"""One ONNX Runtime session on the CPU, quiet, whose failures are ours."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from mmap import mmap
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as _state

from quantool.elements import EMPTY_FILE, MappedTensor
from quantool.errors import DataError, ModelError
from quantool.schema import AnyArray, Feed

# ONNX Runtime's classes share no parent but Exception. ValueError: its Python side on missing inputs;
# RuntimeError: what pybind makes of a C++ exception without a class of its own.
RUNTIME_ERRORS: Final = (
    *(getattr(_state, name) for name in ("EPFail", "EngineError", "Fail", "InvalidArgument", "InvalidGraph")),
    *(getattr(_state, name) for name in ("InvalidProtobuf", "NoModel", "NoSuchFile", "NotImplemented")),
    *(getattr(_state, name) for name in ("RuntimeException", "ModelLoaded")),
    RuntimeError,
    TypeError,
    ValueError,
)
MESSAGE_LENGTH: Final = 300

_ERRORS_ONLY: Final = 4  # severity "fatal": what fails reaches us as an exception, the rest is noise on stderr
_DTYPES: Final = {
    "float": "float32",
    "double": "float64",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float4e2m1": "float4_e2m1fn",
}


class Optimization(StrEnum):
    """How far ONNX Runtime may rewrite the graph at load."""

    ALL = "all"
    DISABLED = "disabled"


class Thrift(StrEnum):
    """What a session gives up to take less private memory.

    ACTIVATIONS: no block is set aside for a run's tensors beside that for its outputs; results are the same. WEIGHTS:
    external weights stay mapped from their file as well: no prepacking, no blocked layouts, and no rewrite of the
    optimizer that makes a weight anew. That takes longer, and results differ in the last bits.
    """

    NONE = "none"
    ACTIVATIONS = "activations"
    WEIGHTS = "weights"


#: the rewrites of ONNX Runtime's optimizer, below blocked layouts, that make a new weight out of a large one
_COPYING: Final = (
    *("ConstantFolding", "ConvBNFusion", "ConvMulFusion", "MatMulBNFusion", "MatMulScaleFusion", "TransposeOptimizer"),
    *("AttentionFusion", "MultiHeadAttentionFusion", "GroupQueryAttentionFusion"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loadable:
    """A model that ONNX Runtime can load, and how.

    model: serialized bytes, or the path of a file. folder: where external data lies; None for the folder of
    the path, or where there is none. external: name of an external data file -> its mapped content, for a file
    that has no name on disk yet; ONNX Runtime copies it. mapped: tensor -> its content, for a model whose large
    tensors refer to a file of the name EMPTY_FILE; nothing is copied. threads: 0 leaves the number to ONNX Runtime.
    label: what errors call the model. optimized_to: a file to write the optimized model to. copied: its large weights
    go to a file beside it; else those of external data keep their place, and others stay inside. arena: memory is kept
    for the next run.
    """

    model: bytes | Path
    folder: Path | None = None
    external: Mapping[str, mmap] = field(default_factory=lambda: MappingProxyType({}))
    mapped: Mapping[str, MappedTensor] = field(default_factory=lambda: MappingProxyType({}))
    threads: int = 0
    optimization: Optimization = Optimization.ALL
    label: str = "the model"
    optimized_to: Path | None = None
    copied: bool = True
    thrift: Thrift = Thrift.NONE
    arena: bool = True

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise ValueError(f"threads is {self.threads}; it must be 0 (automatic) or more.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """An input or output of a session.

    dtype: the NumPy or ml_dtypes name, "string", or ONNX Runtime's text (``seq(tensor(float))``) for what is
    no tensor. shape: symbolic dimensions by name, unnamed ones None.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]

    @property
    def is_tensor(self) -> bool:
        """Whether a run gives an array for it."""
        return "(" not in self.dtype


class Session:
    """A loaded model.

    Attributes:
        inputs: name -> port, in the model's order.
        outputs: name -> port, in the model's order.

    Raises:
        ModelError: ``does-not-load``.
    """

    def __init__(self, source: Loadable) -> None:
        model = source.model if isinstance(source.model, bytes) else str(source.model)
        left_out = list(_COPYING) if source.thrift is Thrift.WEIGHTS else None
        self._weights = {name: _as_value(tensor) for name, tensor in source.mapped.items()}
        try:
            with _folder(source) as folder:
                self._session = onnxruntime.InferenceSession(
                    model,
                    _options(source, folder, self._weights),
                    providers=["CPUExecutionProvider"],
                    disabled_optimizers=left_out,
                )
        except RUNTIME_ERRORS as error:
            raise ModelError(
                "does-not-load",
                f"ONNX Runtime {onnxruntime.__version__} cannot load {source.label}: {shortened(error)}",
                where=source.label,
                fix="Mend what ONNX Runtime names, or use a version of it that knows the operator.",
            ) from error
        self.label = source.label
        self.inputs = {port.name: port for port in map(_port, self._session.get_inputs())}
        self.outputs = {port.name: port for port in map(_port, self._session.get_outputs())}

    def run(self, feed: Feed, outputs: Sequence[str] | None = None, *, sample: int | str = "") -> dict[str, AnyArray]:
        """Run one feed; entries of the feed that the model has no input for are left out.

        outputs: the names wanted, all outputs where None; the members of a sequence ``y`` are ``y[0]``, ``y[1]`` and so
        on, maps and absent optionals are left out. sample: names the feed in errors.

        Raises:
            DataError: ``does-not-run``, naming the sample.
        """
        wanted = tuple(self.outputs) if outputs is None else tuple(outputs)
        ports = ((name, self.inputs.get(name), value) for name, value in feed.items())
        known = {name: np.asarray(value) if port.is_tensor else value for name, port, value in ports if port}
        try:
            arrays = self._session.run(list(wanted), known)
        except RUNTIME_ERRORS as error:
            raise DataError(
                "does-not-run",
                f"{self.label} fails on the sample: {shortened(error)}",
                where=f"sample {sample}" if sample != "" else self.label,
                fix=f"Give arrays that the model takes: {self._signature()}.",
            ) from error
        return {key: array for name, value in zip(wanted, arrays, strict=True) for key, array in _members(name, value)}

    def _signature(self) -> str:
        return ", ".join(f"{p.name} {p.dtype}{list(p.shape)}" for p in self.inputs.values()) or "no input"


def runtime_version() -> str:
    """The version of ONNX Runtime."""
    return str(onnxruntime.__version__)


def shortened(error: Exception) -> str:
    """ONNX Runtime's own words without its tag, source paths and line breaks, at most 300 characters."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error))
    text = re.sub(r"/\S*onnxruntime_src/\S+:\d+ ", "", text)
    text = " ".join(text.split())
    return text if len(text) <= MESSAGE_LENGTH else text[: MESSAGE_LENGTH - 3] + "..."


def dtype_name(runtime_type: str) -> str:
    """The NumPy name of ``tensor(float)`` and the like; what is no tensor keeps ONNX Runtime's text."""
    match = re.fullmatch(r"tensor\((\w+)\)", runtime_type)
    return runtime_type if match is None else _DTYPES.get(match[1], match[1])


def _as_value(tensor: MappedTensor) -> onnxruntime.OrtValue:
    """A tensor of ONNX Runtime on the mapped content; it must live as long as sessions that use it."""
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(tensor.values, tensor.element_type)


@contextmanager
def _folder(source: Loadable) -> Iterator[Path | None]:
    """The folder of external data; for tensors that come as arrays, one with the empty file that stands for them."""
    if not source.mapped:
        yield source.folder
        return
    with tempfile.TemporaryDirectory(prefix="quantool-") as folder:
        (Path(folder) / EMPTY_FILE).touch()
        yield Path(folder)


def _options(
    source: Loadable, folder: Path | None, weights: Mapping[str, onnxruntime.OrtValue]
) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = source.threads
    options.graph_optimization_level = _level(source)
    options.enable_cpu_mem_arena = source.arena
    options.enable_mem_pattern = source.thrift is Thrift.NONE
    if source.thrift is Thrift.WEIGHTS:
        options.add_session_config_entry("session.disable_prepacking", "1")
    # Idle threads that spin would slow whatever runs next, such as the other side of a comparison.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if folder is not None and isinstance(source.model, bytes):
        key = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(key, str(folder))
    for name, value in weights.items():
        options.add_initializer(name, value)
    if source.external:
        contents = list(source.external.values())
        options.add_external_initializers_from_files_in_memory(
            list(source.external), contents, [len(content) for content in contents]
        )
    if source.optimized_to is not None:
        options.optimized_model_filepath = str(source.optimized_to)
    if source.optimized_to is not None and source.copied and not source.mapped:
        key = "session.optimized_model_external_initializers_file_name"
        options.add_session_config_entry(key, source.optimized_to.name + ".data")
    return options


def _level(source: Loadable) -> onnxruntime.GraphOptimizationLevel:
    levels = onnxruntime.GraphOptimizationLevel
    if source.optimization is Optimization.DISABLED:
        return levels.ORT_DISABLE_ALL
    return levels.ORT_ENABLE_EXTENDED if source.thrift is Thrift.WEIGHTS else levels.ORT_ENABLE_ALL


def _members(name: str, value: object) -> Iterator[tuple[str, AnyArray]]:
    """The tensors of an output by name: itself, or what a sequence holds."""
    if isinstance(value, list):
        for index, member in enumerate(value):
            yield from _members(f"{name}[{index}]", member)
    elif isinstance(value, np.ndarray | np.generic):
        yield name, np.asarray(value)


def _port(argument: onnxruntime.NodeArg) -> Port:
    shape = tuple(d if isinstance(d, int) else (d or None) for d in argument.shape or ())
    return Port(name=argument.name, dtype=dtype_name(argument.type), shape=shape)
