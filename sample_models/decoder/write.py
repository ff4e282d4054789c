"""Writes a decoder: the graph, and its weights to external data, one chunk of one weight in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .config import ITEM_BYTES, DecoderConfig
from .graph import ONNX_TYPES, ROTARY, DecoderBody

OPSET, IR_VERSION = 17, 8
ALIGNMENT = 4096
INLINE_BYTES = 1024  # smaller weights stay in the model file, as onnx does by default
NUMPY_TYPES = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}

# (name, shape) -> float32 chunks along axis 0
WeightSource = Callable[[str, tuple[int, ...]], Iterator[np.ndarray]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a weight stands: the external data file beside the model, and bytes."""

    file: str
    offset: int
    size: int


def write_decoder(path: Path, config: DecoderConfig, weights: WeightSource, *, files: int = 1) -> Path:
    """Write the model and its weights; return the path.

    Args:
        path: the model file; external data goes beside it, as `model.onnx_data`, `model.onnx_data_1`, ...
        config: what to write.
        weights: gives each weight of `config.weight_shapes()`, chunk by chunk.
        files: number of external data files; 0 keeps all weights in the model file (under 2 GB).
    """
    places = _places(config, path.name, files)
    initializers = [_rotary(config)]
    for name, shape in config.weight_shapes().items():
        kind = ONNX_TYPES[config.precision]
        if name in places:
            initializers.append(_pointer(name, shape, kind, places[name]))
        else:
            data = b"".join(_bytes(weights(name, shape), config))
            initializers.append(helper.make_tensor(name, kind, shape, data, raw=True))
    onnx.save_model(_model(config, initializers), path)
    for file in dict.fromkeys(place.file for place in places.values()):
        inside = {name: place for name, place in places.items() if place.file == file}
        _write_data(path.with_name(file), inside, config, weights)
    return path


def _places(config: DecoderConfig, model: str, files: int) -> dict[str, Place]:
    """Share the weights that are not small among `files` files, in order, each offset aligned."""
    places: dict[str, Place] = {}
    index = offset = 0
    for name, shape in config.weight_shapes().items():
        size = prod(shape) * ITEM_BYTES[config.precision]
        if not files or size < INLINE_BYTES:
            continue
        if offset and offset + size / 2 > config.size / files and index + 1 < files:
            index, offset = index + 1, 0
        places[name] = Place(f"{model}_data_{index}" if index else f"{model}_data", offset, size)
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    return places


def _write_data(path: Path, places: dict[str, Place], config: DecoderConfig, weights: WeightSource) -> None:
    shapes = config.weight_shapes()
    with path.open("wb") as file:
        for name, place in places.items():
            file.seek(place.offset)
            for chunk in _bytes(weights(name, shapes[name]), config):
                file.write(chunk)


def _bytes(chunks: Iterator[np.ndarray], config: DecoderConfig) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk.astype(NUMPY_TYPES[config.precision], copy=False).tobytes()


def _pointer(name: str, shape: tuple[int, ...], kind: int, place: Place) -> onnx.TensorProto:
    tensor = TensorProto(name=name, dims=shape, data_type=kind, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", place.file), ("offset", place.offset), ("length", place.size)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _rotary(config: DecoderConfig) -> onnx.TensorProto:
    half = config.head_size // 2
    frequencies = config.rope_theta ** (-np.arange(half) / half)
    return numpy_helper.from_array(frequencies.astype(np.float32).reshape(1, half, 1), ROTARY)


def _model(config: DecoderConfig, initializers: list[onnx.TensorProto]) -> onnx.ModelProto:
    outputs = _outputs(config)
    if config.cache == "merged":
        names = [output.name for output in outputs]
        branches = {
            branch: helper.make_graph(DecoderBody(config, cached=cached).nodes, branch, [], outputs)
            for branch, cached in (("then_branch", True), ("else_branch", False))
        }
        nodes = [helper.make_node("If", ["use_cache_branch"], names, name="optimum::if", **branches)]
    else:
        nodes = DecoderBody(config, cached=config.cache == "with-past").nodes
    graph = helper.make_graph(nodes, "main_graph", _inputs(config), outputs, initializer=initializers)
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="sample_models",
    )


def _inputs(config: DecoderConfig) -> list[onnx.ValueInfoProto]:
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"])]
    cached = config.cache != "none"
    if config.attention_mask:
        total = "past_sequence_length + sequence_length" if cached else "sequence_length"
        inputs.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch_size", total]))
    if config.position_ids:
        shape = ["batch_size", "sequence_length"]
        inputs.append(helper.make_tensor_value_info("position_ids", TensorProto.INT64, shape))
    if cached:
        inputs += _cache(config, "past_key_values", "past_sequence_length")
    if config.cache == "merged":
        inputs.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))
    return inputs


def _outputs(config: DecoderConfig) -> list[onnx.ValueInfoProto]:
    shape = ["batch_size", "sequence_length", config.vocabulary]
    logits = helper.make_tensor_value_info("logits", ONNX_TYPES[config.compute], shape)
    if config.cache == "none":
        return [logits]
    return [logits, *_cache(config, "present", "past_sequence_length + sequence_length")]


def _cache(config: DecoderConfig, prefix: str, tokens: str) -> list[onnx.ValueInfoProto]:
    shape = ["batch_size", config.kv_heads, tokens, config.head_size]
    return [
        helper.make_tensor_value_info(f"{prefix}.{layer}.{part}", ONNX_TYPES[config.compute], shape)
        for layer in range(config.layers)
        for part in ("key", "value")
    ]
