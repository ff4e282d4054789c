"""Quantize float ONNX models, and prove on real samples what that cost.

Everything public is here and loaded on first use, so that importing quantool costs nothing.
"""

from __future__ import annotations

from quantool.version import __version__

TYPE_CHECKING = False  # the name that type checkers know; importing typing would double the start-up time
if TYPE_CHECKING:
    from quantool import kernels
    from quantool.api import calibrate, check, compare, explain, merge, quantize, sensitivity, tune
    from quantool.errors import (
        DataError,
        GateError,
        ModelError,
        NothingQuantizedError,
        OptionError,
        QuantoolError,
        RecipeError,
        VerificationError,
    )
    from quantool.stats import Stats

__all__ = [
    "DataError",
    "GateError",
    "ModelError",
    "NothingQuantizedError",
    "OptionError",
    "QuantoolError",
    "RecipeError",
    "Stats",
    "VerificationError",
    "__version__",
    "calibrate",
    "check",
    "compare",
    "explain",
    "kernels",
    "merge",
    "quantize",
    "sensitivity",
    "tune",
]

_FUNCTIONS = ("calibrate", "check", "compare", "explain", "merge", "quantize", "sensitivity", "tune")


def __getattr__(name: str) -> object:
    """Load a public name from the module that defines it (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'quantool' has no attribute '{name}'")
    from importlib import import_module

    if name == "kernels":
        return import_module("quantool.kernels")
    module = "quantool.api" if name in _FUNCTIONS else "quantool.stats" if name == "Stats" else "quantool.errors"
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)
