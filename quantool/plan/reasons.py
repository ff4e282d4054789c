"""Why nodes stay in float: the closed list of reason codes, with what would change each."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from quantool.schema import Reason

#: code -> (text, what would change it)
REASONS: Final = MappingProxyType(
    {
        "excluded": ("Excluded by the recipe.", "Remove the pattern from --exclude or --exclude-op."),
        "not-included": ("Not among the nodes that --include names.", "Widen --include or --include-op."),
        "float-activations": (
            "A rule keeps its activations in float.",
            'Remove activations = "float" from the rule, or add one behind it that names a type.',
        ),
        "in-subgraph": (
            "Lies in the body of an If, Loop or Scan, whose tensors cannot be calibrated.",
            "Use --mode dynamic or weight-only, which need no ranges.",
        ),
        "no-integer-kernel": (
            "The target has no integer kernel for this operator.",
            "Choose another --target; on this one the node runs in float anyway.",
        ),
        "not-float": (
            "Works on integers, booleans or non-tensors.",
            "Nothing to do: there is nothing to quantize.",
        ),
        "unknown-type": (
            "The type of its input could not be determined.",
            "Run shape inference on the model, or register the custom operator.",
        ),
        "weight-not-constant": (
            "Its weight is computed at run time.",
            "Make the weight an initializer.",
        ),
        "bias-not-constant": ("Its bias is computed at run time.", "Make the bias an initializer."),
        "activation-matmul": (
            "Multiplies two activations (attention): quantizing it costs accuracy and saves next to nothing.",
            "Ask for it with --include.",
        ),
        "constant-first-operand": (
            "Its constant is the first operand, which the integer kernels take as the activation.",
            "Transpose the product so that the weight stands second.",
        ),
        "unsupported-form": (
            "Its attributes or the rank of its weight have no integer form.",
            "Rewrite the node in the usual form.",
        ),
        "feature-level": (
            "The target's feature level takes no QuantizeLinear of such a tensor.",
            "Use a level that does, as --target directml-6.2, where the device has it.",
        ),
        "softmax": (
            "Softmax amplifies small errors of its input; nothing from the scores to its output is quantized.",
            "Ask for it with --include-op Softmax.",
        ),
        "normalization": (
            "Part of a normalization: its squares and quotients need float.",
            "Nothing to do: the next MatMul is quantized all the same.",
        ),
        "float-function": (
            "A function that the target computes in float only.",
            "Nothing to do: its neighbours are quantized where they can be.",
        ),
        "recurrent": (
            "Recurrent layers accumulate their error over time.",
            "Use --mode dynamic --include-op LSTM and verify the result.",
        ),
        "before-log": (
            "Feeds a Log, Sqrt, Pow, Sin or Cos (a spectrum or angles), where a small error becomes a large one.",
            "Ask for it with --include and verify the result.",
        ),
        "not-between-integers": (
            "Does not stand between integer operators: quantizing it would only add conversions.",
            "Nothing to do: its neighbours run in float.",
        ),
        "unequal-ranges": (
            "Its inputs differ in range so much that one scale would destroy the small ones.",
            "Rescale the inputs in the model, or ask for it with --include.",
        ),
        "too-lossy": (
            "Measured on the samples: its error costs more than running it as integers saves.",
            "Ask for it with --include and verify the result.",
        ),
        "not-fused": (
            "The runtime does not run it as integers in this place, although it has the kernel.",
            "Nothing to do: it was tried, and stays float so that nothing gets slower.",
        ),
        "mode": ("This mode does not quantize the operator.", "Use --mode static with calibration data."),
        "folded": ("Computed before run time: it became a constant.", "Nothing to do."),
        "shares-parameters": (
            "The runtime moves its values in float; they keep the scale of its input, so that nothing is lost.",
            "Nothing to do; a Pad with zeros is folded into the convolution that follows.",
        ),
    }
)


def reason(code: str, detail: str = "") -> Reason:
    """The reason of that code; `detail` is added to its text."""
    text, fix = REASONS[code]
    return Reason(code=code, text=f"{text} {detail}".rstrip(), fix=fix)
