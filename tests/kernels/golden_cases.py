"""Read the recorded cases of tests/golden and compare a result with them bit by bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

GOLDEN = Path(__file__).parent.parent / "golden"


def load_family(path: Path) -> Iterator[dict[str, Any]]:
    with np.load(path) as archive:
        blob, cases = archive["blob"].tobytes(), json.loads(archive["meta"].tobytes())
    for case in cases:
        for part in ("inputs", "outputs", "masks"):
            arrays = case.get(part, {}).items()
            case[part] = {k: None if d is None else _array(blob, d) for k, d in arrays}
        yield case


def _array(blob: bytes, stored: dict[str, Any]) -> np.ndarray:
    count = int(np.prod(stored["shape"], dtype=int))
    values = np.frombuffer(blob, stored["store"], count, stored["off"]).reshape(stored["shape"]).copy()
    dtype = getattr(ml_dtypes, stored["dtype"], None)
    if dtype is None:
        return values
    return values.astype(dtype) if "int" in stored["dtype"] else values.view(dtype)


def call_arguments(case: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of one case; concat's numbered inputs become its list of triples."""
    arguments = {**case["inputs"], **case["params"]}
    if case["op"] == "qlinear_concat":
        arguments["inputs"] = [
            tuple(arguments.pop(f"{part}{i}") for part in ("x", "x_scale", "x_zero_point"))
            for i in range(arguments.pop("n"))
        ]
    return arguments


def mismatches(got: np.ndarray, want: np.ndarray, case: dict[str, Any], name: str) -> np.ndarray:
    """A flat bool array: True where an element is not what was recorded, within the case's own tolerance."""
    bad = ~_within(got, want, case).reshape(-1)
    mask = case["masks"].get(name)
    return bad if mask is None else bad & mask.reshape(-1)


def _within(got: np.ndarray, want: np.ndarray, case: dict[str, Any]) -> np.ndarray:
    if "tol" in case:
        return np.abs(got.astype(np.float64) - want.astype(np.float64)) <= case["tol"]
    if "ulp" in case:
        return np.abs(got.view(np.int32).astype(np.int64) - want.view(np.int32)) <= case["ulp"]
    if "rtol" in case:
        return np.abs(got - want) <= case["atol"] + case["rtol"] * np.abs(want)
    return same_bits(got, want)


def same_bits(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Elementwise: equal bits, or NaN in both."""
    unsigned = f"u{want.dtype.itemsize}"
    equal = np.ascontiguousarray(got).view(unsigned) == np.ascontiguousarray(want).view(unsigned)
    if "float" not in want.dtype.name:
        return equal
    return equal | (np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64)))
