"""ONNX Runtime: sessions, taps, the optimized model, latency. The only package that imports onnxruntime.

Names load on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from quantool.runtime.latency import interleaved as interleaved
    from quantool.runtime.optimized import load_and_inspect as load_and_inspect
    from quantool.runtime.progress import watched as watched
    from quantool.runtime.resident import Peak as Peak
    from quantool.runtime.resident import machine_bytes as machine_bytes
    from quantool.runtime.resident import private_bytes as private_bytes
    from quantool.runtime.resident import return_freed_blocks as return_freed_blocks
    from quantool.runtime.resident import watched_memory as watched_memory
    from quantool.runtime.session import Loadable as Loadable
    from quantool.runtime.session import Optimization as Optimization
    from quantool.runtime.session import Port as Port
    from quantool.runtime.session import Session as Session
    from quantool.runtime.session import Thrift as Thrift
    from quantool.runtime.session import runtime_version as runtime_version
    from quantool.runtime.taps import tap as tap
    from quantool.runtime.taps import tensor_types as tensor_types

_HOME: Final = {
    "Loadable": "session",
    "Optimization": "session",
    "Peak": "resident",
    "Port": "session",
    "Session": "session",
    "Thrift": "session",
    "interleaved": "latency",
    "load_and_inspect": "optimized",
    "machine_bytes": "resident",
    "private_bytes": "resident",
    "runtime_version": "session",
    "return_freed_blocks": "resident",
    "tap": "taps",
    "tensor_types": "taps",
    "watched": "progress",
    "watched_memory": "resident",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
