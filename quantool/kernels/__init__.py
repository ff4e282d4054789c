"""The quantization operators in NumPy, bit-exact with their oracles."""

from __future__ import annotations

from quantool.kernels.convolution import conv_integer, qlinear_conv
from quantool.kernels.directml import dml_quantize_linear
from quantool.kernels.low_precision import cast_lowp
from quantool.kernels.microsoft_elementwise import (
    qlinear_add,
    qlinear_concat,
    qlinear_leaky_relu,
    qlinear_mul,
    qlinear_sigmoid,
    qlinear_softmax,
    qlinear_where,
)
from quantool.kernels.microsoft_gemm import dynamic_quantize_matmul, matmul_integer_to_float, qgemm
from quantool.kernels.nbits import gather_block_quantized, matmul_nbits
from quantool.kernels.onnx_dequantize import dequantize_linear
from quantool.kernels.onnx_linear import dynamic_quantize_linear, quantize_linear
from quantool.kernels.packing import pack_lowbit, unpack_lowbit
from quantool.kernels.pooling import qlinear_average_pool, qlinear_global_average_pool
from quantool.kernels.qlinear import matmul_integer, qlinear_matmul
from quantool.kernels.tensorflow_dequantize import tf_dequantize
from quantool.kernels.tensorflow_fake_quantize import tf_quantize_and_dequantize
from quantool.kernels.tensorflow_quantize import tf_quantize_v2

__all__ = [
    "cast_lowp",
    "conv_integer",
    "dequantize_linear",
    "dml_quantize_linear",
    "dynamic_quantize_linear",
    "dynamic_quantize_matmul",
    "gather_block_quantized",
    "matmul_integer",
    "matmul_integer_to_float",
    "matmul_nbits",
    "pack_lowbit",
    "qgemm",
    "qlinear_add",
    "qlinear_average_pool",
    "qlinear_concat",
    "qlinear_conv",
    "qlinear_global_average_pool",
    "qlinear_leaky_relu",
    "qlinear_matmul",
    "qlinear_mul",
    "qlinear_sigmoid",
    "qlinear_softmax",
    "qlinear_where",
    "quantize_linear",
    "tf_dequantize",
    "tf_quantize_and_dequantize",
    "tf_quantize_v2",
    "unpack_lowbit",
]
