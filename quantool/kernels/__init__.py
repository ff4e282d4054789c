"""The quantization operators in NumPy, bit-exact with their oracles (SPEC.md section 8)."""

from quantool.kernels.onnx_dequantize import dequantize_linear
from quantool.kernels.onnx_linear import dynamic_quantize_linear, quantize_linear
from quantool.kernels.packing import pack_lowbit, unpack_lowbit

__all__ = ["dequantize_linear", "dynamic_quantize_linear", "pack_lowbit", "quantize_linear", "unpack_lowbit"]
