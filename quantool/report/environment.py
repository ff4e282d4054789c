"""What a run runs on: it stands in reports, so that a run can be repeated, and never in models."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from quantool.report.detail import Environment
from quantool.version import __version__

#: what decides the bytes of a result and its time; asked of the metadata, so that nothing is imported
PACKAGES: Final = ("onnx", "onnxruntime", "onnx-ir", "numpy", "ml_dtypes")
_CPU_INFO: Final = Path("/proc/cpuinfo")


def environment(threads: int | None = None) -> Environment:
    """The versions, the system and the processor of this process."""
    return Environment(
        versions={"quantool": __version__, **_versions()},
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu=_processor(),
        cpus=_usable_cpus(),
        threads=threads,
    )


@cache
def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # a wheel of another name, as onnxruntime-gpu
            found[package] = "unknown"
    return found


@cache
def _processor() -> str | None:
    """The processor's name; None where the system does not tell."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, None) or platform.processor() or None


def _usable_cpus() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()
