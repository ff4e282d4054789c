"""What `quantool tensor` prints: parameters in float32's own shortest form, then what they cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import numpy as np

from quantool.report.summary import Fact
from quantool.report.wording import decibel, percent, size, visible
from quantool.requests import TensorResult

_SHOWN: Final = 4

Number = TypeVar("Number", int, float)
Floats = float | tuple[float, ...]


def tensor_facts(found: TensorResult) -> tuple[Fact, ...]:
    """One line a figure; several scales are shown by the first few and their extremes."""
    shape = "x".join(map(str, found.shape)) or "scalar"
    rows = [
        ("input", f"{visible(found.input_path)}: {found.input_dtype} {shape}"),
        ("formula", f"{found.formula} to {found.dtype}{_version(found)}"),
        ("scale", _numbers(found.scale, _float)),
        ("multiplies by", _numbers(found.scale_factor, _float)),
        ("zero point", _numbers(found.zero_point, str)),
        ("range used", _range(found.range)),
        ("codes reach", _range(found.reach)),
    ]
    if found.residual_shift:
        rows.append(("shift lost", f"{found.residual_shift:.4g} of a code: the formula's offset is no integer"))
    if found.expanded_bytes is not None:
        rows.append(("parameters", f"{size(found.expanded_bytes)}, one scale and zero point an element"))
    if found.clipped_share is not None:
        rows.append(("SQNR", decibel(found.sqnr_db, exact=found.exact)))
        rows.append(("clipped", percent(found.clipped_share)))
    if found.output is not None:
        rows.append(("written", f"{visible(found.output.path or '')}: {found.stored_as}"))
    return tuple(Fact(label, value) for label, value in rows)


def _version(found: TensorResult) -> str:
    if found.opset is not None:
        return f", opset {found.opset}"
    return "" if found.feature_level is None else f", feature level {found.feature_level}"


def _float(value: float) -> str:
    return str(np.float32(value))


def _numbers(values: Number | tuple[Number, ...], form: Callable[[Number], str]) -> str:
    if not isinstance(values, tuple):
        return form(values)
    if not values:
        return "none"
    first = ", ".join(form(value) for value in values[:_SHOWN])
    if len(values) <= _SHOWN:
        return first
    return f"{first} ... ({len(values)}, from {form(min(values))} to {form(max(values))})"


def _range(bounds: tuple[Floats, Floats]) -> str:
    lo, hi = bounds
    if isinstance(lo, float) and isinstance(hi, float):
        return f"{_float(lo)}..{_float(hi)}"
    return f"{_numbers(lo, _float)} to {_numbers(hi, _float)}"
