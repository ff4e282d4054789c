"""Writes decoder models (causal language models) of any size as ONNX: RMSNorm, rotary positions, SwiGLU, KV cache."""

from sample_models.decoder.config import DecoderConfig
from sample_models.decoder.random_weights import RandomWeights, random_ids
from sample_models.decoder.write import write_decoder

__all__ = ["DecoderConfig", "RandomWeights", "random_ids", "write_decoder"]
