"""The nodes of a decoder, spelled out in primitive operators as PyTorch's exporter leaves them."""

from __future__ import annotations

from collections import Counter
from math import sqrt
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .config import EMBEDDING, HEAD, DecoderConfig

ONNX_TYPES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
LOWEST = {"fp32": float(np.finfo(np.float32).min), "fp16": -65504.0, "bf16": -3.3895314e38}
ROTARY = "model.rotary_emb.inv_freq"


class DecoderBody:
    """The nodes of one pass over `input_ids`, with the past's keys and values (`cached`) or without."""

    def __init__(self, config: DecoderConfig, *, cached: bool) -> None:
        self.config, self.cached = config, cached
        self.nodes: list[onnx.NodeProto] = []
        self._seen: Counter[str] = Counter()
        self._write()

    def _node(self, op_type: str, scope: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        path = f"/{scope}/{op_type}"
        name = f"{path}_{self._seen[path]}" if self._seen[path] else path
        self._seen[path] += 1
        result = output or f"{name}_output_0"
        self.nodes.append(helper.make_node(op_type, list(inputs), [result], name=name, **attributes))
        return result

    def _integers(self, *values: int, scalar: bool = False) -> str:
        array = np.array(values[0] if scalar else values, np.int64)
        return self._node("Constant", "model", value=numpy_helper.from_array(array))

    def _number(self, scope: str, value: float, precision: str) -> str:
        tensor = helper.make_tensor("value", ONNX_TYPES[precision], [], [value])
        return self._node("Constant", scope, value=tensor)

    def _cast(self, scope: str, x: str, precision: str, current: str) -> str:
        return x if precision == current else self._node("Cast", scope, x, to=ONNX_TYPES[precision])

    def _weight(self, scope: str, name: str) -> str:
        return self._cast(scope, name, self.config.compute, self.config.precision)

    def _linear(self, scope: str, x: str) -> str:
        return self._node("MatMul", scope.replace(".", "/"), x, self._weight(scope, f"{scope}.weight"))

    def _write(self) -> None:
        config = self.config
        self._write_lengths()
        mask, rotary = self._write_mask(), self._write_rotary()
        x = self._node("Gather", "model/embed_tokens", self._weight("model/embed_tokens", EMBEDDING), "input_ids")
        for layer in range(config.layers):
            scope = f"model.layers.{layer}"
            normal = self._write_norm(f"{scope}.input_layernorm", x)
            x = self._node("Add", scope, x, self._write_attention(layer, normal, mask, rotary))
            normal = self._write_norm(f"{scope}.post_attention_layernorm", x)
            x = self._node("Add", scope, x, self._write_mlp(f"{scope}.mlp", normal))
        x = self._write_norm("model.norm", x)
        head = self._weight("lm_head", EMBEDDING if config.tied else HEAD)
        if config.tied:
            head = self._node("Transpose", "lm_head", head, perm=[1, 0])
        self._node("MatMul", "lm_head", x, head, output="logits")

    def _write_lengths(self) -> None:
        """Write the numbers of past, present and all tokens, int64 [1] each."""
        self.zero, self.one = self._integers(0), self._integers(1)
        shape = self._node("Shape", "model", "input_ids")
        self.batch, self.length = (self._node("Gather", "model", shape, axis) for axis in (self.zero, self.one))
        self.past = self.zero
        if self.cached:
            past_shape = self._node("Shape", "model", "past_key_values.0.key")
            self.past = self._node("Gather", "model", past_shape, self._integers(2))
        self.total = self._node("Add", "model", self.past, self.length)

    def _range(self, start: str, stop: str) -> str:
        ends = [self._node("Squeeze", "model", end, self.zero) for end in (start, stop)]
        return self._node("Range", "model", *ends, self._integers(1, scalar=True))

    def _write_mask(self) -> str:
        """Write the additive mask [batch or 1, 1, tokens, all tokens]: the lowest number where none may look."""
        precision = self.config.compute
        keys = self._node("Unsqueeze", "model", self._range(self.zero, self.total), self.zero)
        queries = self._node("Unsqueeze", "model", self._range(self.past, self.total), self.one)
        seen = self._node("LessOrEqual", "model", keys, queries)
        if self.config.attention_mask:
            given = self._node("Cast", "model", "attention_mask", to=TensorProto.BOOL)
            seen = self._node("And", "model", self._node("Unsqueeze", "model", given, self._integers(1, 2)), seen)
        zero, lowest = (self._number("model", value, precision) for value in (0.0, LOWEST[precision]))
        return self._node("Where", "model", seen, zero, lowest)

    def _write_rotary(self) -> tuple[str, str]:
        """Write cos and sin [batch, 1, tokens, head size] of the positions times the inverse frequencies."""
        scope = "model/rotary_emb"
        positions = "position_ids"
        if not self.config.position_ids:
            positions = self._node("Unsqueeze", scope, self._range(self.past, self.total), self.zero)
        row = self._node("Unsqueeze", scope, positions, self.one)
        row = self._node("Cast", scope, row, to=TensorProto.FLOAT)
        rows = self._node("Gather", scope, self._node("Shape", scope, row), self.zero)
        wanted = self._node("Concat", scope, rows, self._integers(-1), self.one, axis=0)
        half = self._integers(1, self.config.head_size // 2, 1)
        shape = self._node("Where", scope, self._node("Equal", scope, wanted, self._integers(-1)), half, wanted)
        angles = self._node("MatMul", scope, self._node("Expand", scope, ROTARY, shape), row)
        angles = self._node("Transpose", scope, angles, perm=[0, 2, 1])
        angles = self._node("Concat", scope, angles, angles, axis=-1)
        waves = [self._node(op_type, scope, angles) for op_type in ("Cos", "Sin")]
        waves = [self._cast(scope, wave, self.config.compute, "fp32") for wave in waves]
        cosine, sine = (self._node("Unsqueeze", scope, wave, self.one) for wave in waves)
        return cosine, sine

    def _rotate(self, scope: str, x: str, rotary: tuple[str, str]) -> str:
        half, last = self._integers(self.config.head_size // 2), self._integers(2**63 - 1)
        axis = self._integers(3)
        first = self._node("Slice", scope, x, self.zero, half, axis, self.one)
        second = self._node("Slice", scope, x, half, last, axis, self.one)
        turned = self._node("Concat", scope, self._node("Neg", scope, second), first, axis=-1)
        products = [self._node("Mul", scope, part, wave) for part, wave in zip((x, turned), rotary, strict=True)]
        return self._node("Add", scope, *products)

    def _heads(self, scope: str, part: str, x: str, heads: int) -> str:
        shape = self._integers(0, 0, heads, self.config.head_size)
        flat = self._linear(f"{scope}.{part}_proj", x)
        return self._node("Transpose", scope, self._node("Reshape", scope, flat, shape), perm=[0, 2, 1, 3])

    def _remember(self, layer: int, part: str, x: str) -> str:
        """Append key or value x [batch, kv heads, tokens, head size] to the past; the result is an output."""
        scope, present = f"model.layers.{layer}.self_attn", f"present.{layer}.{part}"
        if self.cached:
            return self._node("Concat", scope, f"past_key_values.{layer}.{part}", x, axis=2, output=present)
        if self.config.cache == "merged":
            return self._node("Identity", scope, x, output=present)
        return x

    def _repeat(self, scope: str, x: str) -> str:
        """Give each query head its key or value head: [batch, heads, all tokens, head size]."""
        config = self.config
        if config.heads == config.kv_heads:
            return x
        wide = self._node("Unsqueeze", scope, x, self._integers(2))
        wide = self._node("Expand", scope, wide, self._integers(1, 1, config.heads // config.kv_heads, 1, 1))
        return self._node("Reshape", scope, wide, self._integers(0, config.heads, -1, config.head_size))

    def _write_attention(self, layer: int, x: str, mask: str, rotary: tuple[str, str]) -> str:
        config, scope = self.config, f"model.layers.{layer}.self_attn"
        query = self._rotate(scope, self._heads(scope, "q", x, config.heads), rotary)
        key = self._rotate(scope, self._heads(scope, "k", x, config.kv_heads), rotary)
        key = self._repeat(scope, self._remember(layer, "key", key))
        value = self._heads(scope, "v", x, config.kv_heads)
        value = self._repeat(scope, self._remember(layer, "value", value))
        scores = self._node("MatMul", scope, query, self._node("Transpose", scope, key, perm=[0, 1, 3, 2]))
        scores = self._node("Div", scope, scores, self._number(scope, sqrt(config.head_size), config.compute))
        scores = self._node("Add", scope, scores, mask)
        shares = self._node("Softmax", scope, self._cast(scope, scores, "fp32", config.compute), axis=-1)
        mixed = self._node("MatMul", scope, self._cast(scope, shares, config.compute, "fp32"), value)
        mixed = self._node("Transpose", scope, mixed, perm=[0, 2, 1, 3])
        return self._linear(f"{scope}.o_proj", self._node("Reshape", scope, mixed, self._integers(0, 0, config.hidden)))

    def _write_norm(self, scope: str, x: str) -> str:
        """Write x / sqrt(mean(x^2) + epsilon) * gain, the quotient in float32."""
        wide = self._cast(scope, x, "fp32", self.config.compute)
        square = self._node("Pow", scope, wide, self._number(scope, 2.0, "fp32"))
        mean = self._node("ReduceMean", scope, square, axes=[-1], keepdims=1)
        shifted = self._node("Add", scope, mean, self._number(scope, self.config.epsilon, "fp32"))
        inverse = self._node("Reciprocal", scope, self._node("Sqrt", scope, shifted))
        normal = self._cast(scope, self._node("Mul", scope, wide, inverse), self.config.compute, "fp32")
        return self._node("Mul", scope, self._weight(scope, f"{scope}.weight"), normal)

    def _write_mlp(self, scope: str, x: str) -> str:
        gate = self._linear(f"{scope}.gate_proj", x)
        gate = self._node("Mul", scope, gate, self._node("Sigmoid", scope, gate))
        return self._linear(f"{scope}.down_proj", self._node("Mul", scope, gate, self._linear(f"{scope}.up_proj", x)))
