"""Writes decoder models (causal language models) of any size as ONNX: RMSNorm, rotary positions, SwiGLU, KV cache."""

from .config import DecoderConfig
from .random_weights import RandomWeights, random_ids
from .write import write_decoder

__all__ = ["DecoderConfig", "RandomWeights", "random_ids", "write_decoder"]
