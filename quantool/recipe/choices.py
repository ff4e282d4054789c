"""The values that options and rules take by name."""

from __future__ import annotations

from enum import StrEnum


class Calibrator(StrEnum):
    """How a range is read off a tensor's statistic."""

    MSE = "mse"
    MINMAX = "minmax"
    PERCENTILE = "percentile"
    ENTROPY = "entropy"
    MOVING_AVERAGE = "moving-average"


class Formula(StrEnum):
    """How a range becomes a scale and a zero point."""

    ONNX = "onnx"
    ONNX_SYMMETRIC = "onnx-symmetric"
    TF_MIN_FIRST = "tf-min-first"
    TF_SCALED = "tf-scaled"
    TF_MIN_COMBINED = "tf-min-combined"


class Effort(StrEnum):
    """How much is tried to keep accuracy."""

    FAST = "fast"
    BALANCED = "balanced"
    MAX = "max"


class Collect(StrEnum):
    """What calibration collects beyond the statistics of tensors."""

    FULL = "full"
    GRAM = "gram"


class GraphIO(StrEnum):
    """What graph inputs and outputs hold."""

    FLOAT = "float"
    QUANTIZED = "quantized"


class Algorithm(StrEnum):
    """What may be done for a node's accuracy; a rule forces or forbids it, else the samples decide."""

    GPTQ = "gptq"
    BIAS_CORRECTION = "bias-correction"
    SMOOTHING = "smoothing"
    EQUALIZATION = "equalization"
    AWQ = "awq"
    MSE_CLIP = "mse-clip"
    K_QUANT = "k-quant"
    HQQ = "hqq"


#: what is done to weights alone, activations left in float
OF_WEIGHTS = (Algorithm.GPTQ, Algorithm.AWQ, Algorithm.MSE_CLIP, Algorithm.K_QUANT, Algorithm.HQQ)
#: what is done where activations become integers too
OF_STATIC = (Algorithm.GPTQ, Algorithm.BIAS_CORRECTION, Algorithm.SMOOTHING, Algorithm.EQUALIZATION)
#: what looks for the scales of weights; a node takes one
OF_SCALES = (Algorithm.MSE_CLIP, Algorithm.K_QUANT, Algorithm.HQQ)
#: what is fitted to samples
OF_DATA = (Algorithm.GPTQ, Algorithm.AWQ)
